# SPDX-License-Identifier: Apache-2.0
"""What `jitgen prewarm --dask` makes of answers, without a cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from jitgen.cache import Store
from jitgen.compile import workers
from jitgen.compile.workers import OutcomeKind
from jitgen.errors import ResourceError, ToolchainError
from jitgen.fleet import cluster
from jitgen.fleet.cluster import ClusterError, compile_on_worker
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.fleet_fakes import CPU, Compiles, configs

__all__ = ["jitgen"]


class Client:
    """A cluster of one worker, which is this process."""

    loop = None

    def __init__(self, address: str, **_: Any) -> None:
        if "nowhere" in address:
            raise OSError("Timed out trying to connect")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def nthreads(self) -> dict[str, int]:
        return {"a": 2, "b": 2}

    def submit(self, function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        future = SimpleNamespace(status="finished")
        try:
            answer = function(*arguments)
            future.result = lambda: answer
        except ResourceError as error:
            failure = error
            future.status, future.exception = "error", lambda: failure
        return Hashable(future)


class Hashable:
    def __init__(self, future: Any) -> None:
        self._future = future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiles]:
    made = Compiles()
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(workers, "run", made.run)
    fake = SimpleNamespace(Client=Client, as_completed=lambda futures, loop: reversed(futures))
    monkeypatch.setitem(sys.modules, "distributed", fake)
    return made


def test_each_kernel_comes_back(compiles: Compiles, tmp_path: Path) -> None:
    mine = Store.open(tmp_path / "mine", mode="rw")
    bad = configs(3)[1].name("cpu")
    compiles.before = lambda name: OutcomeKind.CRASH if name == bad else None
    seen: list[tuple[int, int]] = []
    report = cluster.prewarm(
        configs(3),
        arch=CPU,
        store=mine,
        address="tcp://x:1",
        on_progress=lambda _, done, total: seen.append((done, total)),
    )

    assert [str(row.state) for row in report.rows] == ["compiled", "failed", "compiled"]
    assert report.rows[1].error == "ResourceError: crash!"
    assert (report.jobs, seen) == (4, [(1, 3), (2, 3), (3, 3)])
    assert {info.name for info in mine.entries()} == set(compiles.counts) - {bad}
    assert cluster.prewarm(configs(1), arch=CPU, store=mine, address="tcp://nowhere:1").ok, (
        "all cached"
    )


def test_a_refusal_is_no_reason_to_try_again(compiles: Compiles) -> None:
    config = configs(1)[0].to_json()
    compiles.refused = lambda _: {"error": "no!", "is_certain": True}

    assert compile_on_worker(config, "cpu", 1.0) == {"error": "no!"}


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "no memory", "is_certain": False},
        {"key": "", "tier": "compiled", "why_private": "No space left on device (ENOSPC)"},
    ],
)
def test_what_one_worker_is_short_of_another_may_have(
    compiles: Compiles, answer: dict[str, Any]
) -> None:
    """A full disk of one worker used to count as the compiler's refusal."""
    compiles.refused = lambda _: answer
    with pytest.raises(ResourceError):
        compile_on_worker(configs(1)[0].to_json(), "cpu", 1.0)


def test_damage_on_the_way(
    compiles: Compiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "compile_on_worker", lambda *_: {"entry": b"x", "seconds": 1.0})
    store = Store.open(tmp_path / "mine", mode="rw")
    (row,) = cluster.prewarm(configs(1), arch=CPU, store=store, address="tcp://x:1").rows

    assert row.error.startswith("what came back is damaged: ")
    assert list(store.entries()) == []


def test_no_scheduler_at_the_address(compiles: Compiles, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "mine", mode="rw")
    with pytest.raises(ClusterError, match=r"no Dask scheduler at tcp://nowhere:1 \(Timed out"):
        cluster.prewarm(configs(1), arch=CPU, store=store, address="tcp://nowhere:1")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("foo", "it must be a host and a port"),
        ("tcp://foo", "it must be a host and a port"),
        ("foo:99999", "it must be a host and a port"),
        ("", "it must be a host and a port"),
        ("http://foo:1", "the scheme 'http' is not one of tcp, tls"),
    ],
)
def test_what_is_no_address_is_refused_before_dask_has_it(
    address: str, why: str, tmp_path: Path
) -> None:
    """Dask made half a client of it, whose end printed a traceback twenty seconds later."""
    store = Store.open(tmp_path / "mine", mode="rw")
    with pytest.raises(ClusterError, match=re.escape(why)):
        cluster.prewarm(configs(1), arch=CPU, store=store, address=address)


def test_without_the_extra(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    name = configs(1)[0].name("cpu")
    done = jitgen(f"prewarm --config {name} --dask tcp://x:1")

    assert done.code == 1
    assert "run: pip install 'jitgen[dask]'" in done.err
    assert jitgen(f"prewarm --config {name} --dask tcp://x:1 --dry-run").code == 0
    both = jitgen(f"prewarm --config {name} --dask tcp://x:1 --jobs 2")
    assert (both.code, "--jobs is for this machine" in both.err) == (2, True)
    with pytest.raises(ToolchainError):
        cluster._distributed()
