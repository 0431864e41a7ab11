# SPDX-License-Identifier: Apache-2.0
"""Leases in a shared folder: one holder, renewal, takeover; and no store is no reason to stop."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from pathlib import Path

import pytest

import jitgen.server.leases as leases_module
from jitgen.cache import Entry
from jitgen.server.bucket import SharedBucket
from jitgen.server.leases import Leases
from jitgen.server.log import Log
from jitgen.server.metrics import Metrics
from jitgen.server.revocations import Revocations
from jitgen.server.settings import Replicas

KEY = "1" * 64


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks often."""
    monkeypatch.setattr(leases_module, "_LOOK_S", 0.02)


def shared(folder: Path) -> SharedBucket:
    state = folder / "state"
    state.mkdir(exist_ok=True)
    return SharedBucket(f"file://{folder}/shared", Revocations(state, None))


def leases(folder: Path, name: str, lease_s: float = 60.0) -> Leases:
    settings = Replicas(shared="x", name=name, lease_s=lease_s)
    return Leases(settings, shared(folder), Metrics(), Log(io.StringIO()))


def holders(folder: Path) -> list[str]:
    found = sorted((folder / "shared/v1/leases" / KEY).glob("*.json"))
    return [json.loads(path.read_text())["owner"] for path in found]


def test_one_works_while_the_other_waits(tmp_path: Path) -> None:
    """Four replicas want a kernel: never two at a time, and nothing is left behind."""
    busy = most = 0

    async def one(name: str) -> None:
        nonlocal busy, most
        async with leases(tmp_path, name).held(KEY) as entry:
            assert entry is None
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.05)
            busy -= 1

    async def scene() -> None:
        await asyncio.gather(*(one(f"replica {number}") for number in range(4)))

    asyncio.run(scene())

    assert most == 1
    assert holders(tmp_path) == []


def test_a_holder_that_died_is_followed(tmp_path: Path) -> None:
    """Its lease ends by itself, and is then taken over once."""
    dead = tmp_path / "shared/v1/leases" / KEY
    dead.mkdir(parents=True)
    (dead / "0.json").write_text(json.dumps({"owner": "dead", "ends": time.time() + 0.4}))
    begin = time.monotonic()

    async def scene() -> list[str]:
        async with leases(tmp_path, "next").held(KEY):
            return holders(tmp_path)

    assert asyncio.run(scene()) == ["dead", "next"]
    assert time.monotonic() - begin >= 0.3
    assert holders(tmp_path) == []


@pytest.mark.parametrize("ends", [1e300, "nan", "inf"])
def test_a_lease_that_never_ends_is_taken_over_once_it_is_silent(
    tmp_path: Path, ends: object
) -> None:
    """A writer of the shared store could stop every compile with one object a kernel."""
    dead = tmp_path / "shared/v1/leases" / KEY
    dead.mkdir(parents=True)
    (dead / "0.json").write_text(json.dumps({"owner": "for ever", "ends": ends}))

    async def scene() -> list[str]:
        async with asyncio.timeout(10), leases(tmp_path, "next", lease_s=0.05).held(KEY):
            return holders(tmp_path)

    assert asyncio.run(scene()) == ["for ever", "next"]


def test_a_holder_that_works_long_keeps_it(tmp_path: Path) -> None:
    """It is renewed when a third of its time is over."""

    async def scene() -> float:
        mine = leases(tmp_path, "slow", lease_s=0.3)
        async with mine.held(KEY):
            await asyncio.sleep(0.5)
            lease = tmp_path / "shared/v1/leases" / KEY / "0.json"
            ends: float = json.loads(lease.read_text())["ends"]
            return ends - time.time()

    assert asyncio.run(scene()) > 0.05


def test_a_store_that_does_not_answer_costs_a_second_compile_only(tmp_path: Path) -> None:
    """The work is done without a lease, and the trouble is told."""

    class Broken(SharedBucket):
        def entry(self, key: str) -> Entry | None:
            raise OSError("gone")

    told = io.StringIO()
    (tmp_path / "state").mkdir()
    broken = Broken("file:///none", Revocations(tmp_path / "state", None))
    metrics = Metrics()

    async def scene() -> bool:
        async with Leases(Replicas(), broken, metrics, Log(told)).held(KEY) as entry:
            return entry is None

    assert asyncio.run(scene())
    assert "gone" in told.getvalue()


def test_a_store_that_hangs_holds_up_nothing_else(tmp_path: Path) -> None:
    """A few reads of what is not there took every thread, and with them the disk."""
    hangs = threading.Event()

    class Hanging(SharedBucket):
        def entry(self, key: str) -> Entry | None:
            hangs.wait(20)
            raise OSError("time is over")

    (tmp_path / "state").mkdir()
    hanging = Hanging("file:///none", Revocations(tmp_path / "state", None))
    told = io.StringIO()

    async def scene() -> None:
        mine = Leases(Replicas(), hanging, Metrics(), Log(told))
        reads = [asyncio.create_task(mine.found(f"{number:064x}")) for number in range(100)]
        await asyncio.sleep(0.05)
        async with asyncio.timeout(5):
            await asyncio.to_thread(lambda: None)
        hangs.set()
        assert await asyncio.gather(*reads) == [None] * 100
        assert await mine.found(KEY) is None

    asyncio.run(scene())
    assert told.getvalue().count("time is over") <= leases_module._THREADS
