# SPDX-License-Identifier: Apache-2.0
"""Ranks that warm up together, here as threads: one compile a kernel, even if a rank dies."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.compile import workers
from jitgen.compile.workers import OutcomeKind
from jitgen.errors import CacheError
from jitgen.fleet import coordination as fleet_store
from jitgen.fleet.coordination import CoordinationError, CoordinationStore
from jitgen.fleet.rank import RankInfo
from jitgen.fleet.report import WarmUpReport
from jitgen.fleet.warm_up import together
from jitgen.runtime.spec import spec_of
from tests.unit.fleet_fakes import CPU, Compiles, JobStore, configs

PATIENCE_S = 0.15


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(fleet_store, "BEAT_S", 0.02)
    monkeypatch.setattr("jitgen.fleet.rank.BEAT_S", 0.02)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Compiles:
    made = Compiles()
    monkeypatch.setattr(workers, "run", made.run)
    return made


class Job:
    """Some ranks, each on a machine of its own or all on one."""

    def __init__(self, folder: Path, world: int, number: int, *, machines: int) -> None:
        self.world, self.configs = world, configs(number)
        self.shared = JobStore()
        self.roots = [folder / f"machine-{rank % machines}" for rank in range(world)]
        self.reports: dict[int, WarmUpReport] = {}

    def coordination(self, rank: int) -> CoordinationStore:
        return CoordinationStore(self.shared, rank, self.roots[rank].name, PATIENCE_S)

    def warm_up(self, rank: int) -> None:
        info = RankInfo(rank=rank, world=self.world, jobs=1, offers_all=True)
        store, start = Store.open(self.roots[rank], mode="rw"), time.perf_counter()
        report = together(self.configs, CPU, store, info, self.coordination(rank), start, None)
        self.reports[rank] = report

    def run(self, *ranks: int) -> None:
        threads = [threading.Thread(target=self.warm_up, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert sorted(self.reports) == sorted(ranks), "a rank is stuck, or failed"


@pytest.mark.parametrize("machines", [1, 3])
def test_each_kernel_is_compiled_once(tmp_path: Path, compiles: Compiles, machines: int) -> None:
    job = Job(tmp_path, 3, 7, machines=machines)
    compiles.before = lambda _: time.sleep(0.01)
    job.run(0, 1, 2)

    assert sorted(compiles.counts.values()) == [1] * 7
    others = ("shared", "cached") if machines == 1 else ("fetched",)  # cached: it began later
    for report in job.reports.values():
        assert report.ok
        assert report.count("compiled") + sum(report.count(other) for other in others) == 7
        assert report.count("compiled") in (2, 3)  # shares are equal
    manifests = {json.dumps(report.manifest) for report in job.reports.values()}
    assert len(manifests) == 1
    manifest = job.reports[0].manifest
    assert (manifest["ok"], manifest["complete"], manifest["compiles"]) == (True, True, 7)
    assert {line["rank"] for line in manifest["kernels"]} == {0, 1, 2}
    assert {line["seconds"] for line in manifest["kernels"]} == {1.5}


def test_the_entries_are_those_that_were_compiled(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 2, 3, machines=2)
    job.run(0, 1)
    stores = [Store.open(root, mode="ro") for root in job.roots]

    for config in job.configs:
        one, two = (store.read(spec_of(config, CPU).key) for store in stores)
        assert one is not None
        assert two is not None
        assert (one.meta, one.files) == (two.meta, two.files)


def test_what_a_dead_rank_had_claimed_is_taken_over(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 3, 6, machines=3)
    dead = job.coordination(2)
    shard = sorted(spec_of(config, CPU).key for config in job.configs)[2::3]
    with dead.alive():
        records = [dead.claim(key, None) for key in shard]
    job.run(0, 1)

    assert None not in records
    assert sorted(compiles.counts.values()) == [1] * 6
    for report in job.reports.values():
        assert (report.ok, report.lost, report.manifest["lost"]) == (True, (2,), [2])
    assert dead.claim(shard[0], records[0]) is None, "it can change nothing any more"


def test_a_rank_that_never_comes_is_not_waited_for(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 3, 6, machines=3)
    job.run(0, 1)

    assert sorted(compiles.counts.values()) == [1] * 6
    assert all(report.ok and report.lost == () for report in job.reports.values())


def test_a_slow_rank_that_lives_is_waited_for(tmp_path: Path, compiles: Compiles) -> None:
    """A long compile used to look like a dead rank wherever there was a barrier with a limit."""
    job = Job(tmp_path, 2, 2, machines=2)
    compiles.before = lambda _: time.sleep(4 * PATIENCE_S)
    job.run(0, 1)

    assert sorted(compiles.counts.values()) == [1, 1]
    assert all(report.lost == () for report in job.reports.values())


def test_who_has_it_gives_it(tmp_path: Path, compiles: Compiles) -> None:
    """Of two machines one is new: nothing is compiled that the other has."""
    job = Job(tmp_path, 2, 4, machines=2)
    job.run(0)
    job.shared, job.reports = JobStore(), {}
    job.run(0)
    before = dict(compiles.counts)
    job.reports = {}
    job.run(1)

    assert dict(compiles.counts) == before
    assert job.reports[1].count("fetched") == 4
    assert [line["seconds"] for line in job.reports[1].manifest["kernels"]] == [0.0] * 4


def test_with_a_service_no_rank_compiles(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 2, 4, machines=2)
    compiles.tier = "service"
    job.run(0, 1)

    for report in job.reports.values():
        assert report.count("fetched") == 4
        assert (report.manifest["ok"], report.manifest["compiles"]) == (True, 0)


def test_a_refusal_is_everybodys(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 2, 4, machines=2)
    bad = job.configs[1].name("cpu")
    refusal = {"error": "no!", "is_certain": True}
    compiles.refused = lambda name: refusal if name == bad else None
    job.run(0, 1)

    assert compiles.counts[bad] == 1
    for report in job.reports.values():
        assert [row.name for row in report.rows if row.error] == [bad]
        assert [line["error"] for line in report.manifest["kernels"] if line["error"]] == ["no!"]


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "no memory", "is_certain": False},
        {"key": "", "tier": "compiled", "why_private": "No space left on device (ENOSPC)"},
    ],
)
def test_what_one_machine_is_short_of_another_may_have(
    tmp_path: Path, compiles: Compiles, answer: dict[str, Any]
) -> None:
    """A full disk of one machine used to take the kernel from every rank of the job."""
    job = Job(tmp_path, 2, 4, machines=2)
    bad, first = job.configs[1].name("cpu"), []

    def short(name: str) -> dict[str, Any] | None:
        if name != bad:
            return None
        first.append(threading.get_ident())
        return answer if first[0] == threading.get_ident() else None

    compiles.refused = short
    job.run(0, 1)

    assert len(set(first)) == 2, "the other machine tried it, and not the first one again"
    assert all(report.ok for report in job.reports.values())


@pytest.mark.parametrize("kind", [OutcomeKind.CRASH, OutcomeKind.ERROR, OutcomeKind.TIMEOUT])
def test_a_process_that_dies_is_tried_once_more(
    tmp_path: Path, compiles: Compiles, kind: OutcomeKind
) -> None:
    job = Job(tmp_path, 2, 4, machines=2)
    bad = job.configs[1].name("cpu")
    compiles.before = lambda name: kind if name == bad else None
    job.run(0, 1)

    assert compiles.counts[bad] == 2
    assert all(report.count("failed") == 1 for report in job.reports.values())


def test_a_store_that_goes_leaves_each_to_itself(
    tmp_path: Path, compiles: Compiles, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path, 2, 4, machines=2)

    def vanish(_: str) -> None:
        job.shared.is_gone = True

    compiles.before = vanish
    job.run(0, 1)

    assert all(report.ok for report in job.reports.values())
    assert all(count <= 2 for count in compiles.counts.values())
    assert "warms up alone from now on" in caplog.text


def test_damage_on_the_board_is_no_kernel(tmp_path: Path, compiles: Compiles) -> None:
    job = Job(tmp_path, 2, 1, machines=2)
    job.run(0)
    key = spec_of(job.configs[0], CPU).key
    job.shared.set(f"blob/{key}/0", b"damaged")
    job.reports.clear()
    job.run(1)

    assert "its bytes are damaged" in job.reports[1].rows[0].error
    job.shared.set(f"kernel/{key}", b'{"odd": 1}')
    with pytest.raises(CoordinationError, match="none of ours"):
        job.coordination(0).read(key)


def test_an_entry_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_store, "CHUNK_BYTES", 7)
    coordination, data = CoordinationStore(JobStore(), 0, "host", 1.0), bytes(range(256))
    mine = coordination.claim("k", None)
    assert mine is not None
    coordination.done("k", mine, data, seconds=1.0)
    record = coordination.read("k")

    assert record is not None
    assert record.chunks > 30
    assert coordination.entry("k", record, 256) == data
    with pytest.raises(CoordinationError, match="longer than 255 bytes"):
        coordination.entry("k", record, 255)


def test_alone(compiles: Compiles) -> None:
    """Without torch.distributed it is a prewarm, with a report of the same form."""
    seen: list[str] = []
    report = jitgen.warm_up(
        configs(2), arch="cpu", on_progress=lambda row, done, total: seen.append(f"{done}/{total}")
    )

    assert (report.ok, report.rank, report.world, seen) == (True, 0, 1, ["1/2", "2/2"])
    assert report.count("compiled") == report.manifest["compiles"] == 2
    assert jitgen.warm_up(configs(2), arch="cpu").count("cached") == 2


def test_a_cache_that_may_not_be_written() -> None:
    with jitgen.Session(cache="off"), pytest.raises(CacheError, match="JITGEN_CACHE=off"):
        jitgen.warm_up(configs(1), arch="cpu")
