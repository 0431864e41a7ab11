# SPDX-License-Identifier: Apache-2.0
"""Where kernels came from: counted when they are first asked for, kept for thirty days."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.cache.traffic import DAYS, WORST, counted, read
from jitgen.errors import KernelMiss
from jitgen.runtime import loader, tiers
from jitgen.runtime.session import current
from jitgen.settings import settings
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.coverage_fakes import GPU, H20, H200, prewarmed, small
from tests.unit.fleet_fakes import CPU, configs
from tests.unit.store_fakes import publish

__all__ = ["jitgen"]

DAY = 86400
NOW = 20_000 * DAY + 5.0
KEY = "ab" * 32


def use(tier: str, at: float = NOW) -> list[object]:
    return ["use", KEY, tier, int(at)]


def miss(tier: str, ms: int, at: float = NOW, name: str = "a kernel") -> list[object]:
    return ["miss", KEY, name, tier, ms, int(at)]


def test_hits_and_misses_by_tier_and_day() -> None:
    records = [use("disk"), use("disk"), use("base", NOW - DAY), miss("compiled", 2300)]
    found = read(counted(None, [*records, miss("service", 40), miss("nowhere", 3)], NOW))

    today, yesterday = found.days
    assert (today.date, yesterday.date) == ("2024-10-04", "2024-10-03")
    assert {tier: each.kernels for tier, each in today.tiers.items()} == {
        "disk": 2,
        "service": 1,
        "compiled": 1,
        "nowhere": 1,
    }
    assert (today.hit_rate, yesterday.hit_rate, found.total.hit_rate) == (0.4, 1.0, 0.5)
    assert (today.lost_s, yesterday.lost_s) == (pytest.approx(2.343), 0)
    assert [(each.tier, each.seconds) for each in found.worst] == [
        ("compiled", 2.3),
        ("service", 0.04),
        ("nowhere", 0.003),
    ]


def test_the_worst_ten_of_all_days_are_told() -> None:
    """Also if they came in many pieces."""
    text = None
    for number in range(50):
        text = counted(text, [miss("compiled", number * 7 % 50, NOW - number % 3 * DAY)], NOW)
    found = read(text)

    assert [round(each.seconds * 1000) for each in found.worst] == list(range(49, 39, -1))
    assert len(found.worst) == WORST
    assert found.total.tiers["compiled"].kernels == 50


def test_old_days_are_dropped() -> None:
    text = counted(None, [use("disk", NOW - n * DAY) for n in range(2 * DAYS)], NOW)

    assert len(read(text).days) == DAYS
    assert [day.date for day in read(counted(text, [], NOW + 29 * DAY)).days] == ["2024-10-04"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"x": {}}',
        '{"20000": []}',
        '{"20000": {"disk": [1]}}',
        '{"20000": {"disk": [-1, 0]}}',
        '{"20000": {"disk": [true, 0]}}',
        '{"20000": {"worst": [["x", 1, 2, 3], [1, "a", "disk", 2]]}}',
        '{"99999999999": {"disk": [1, 0]}}',
        json.dumps({"20000": {"disk": [2**60, 0]}}),
    ],
)
def test_what_another_user_wrote_counts_for_nothing(text: str) -> None:
    found = read(text)

    assert found.total.hit_rate is None
    assert found.worst == ()
    assert read(counted(text, [use("disk")], NOW)).total.tiers["disk"].kernels == 1


@pytest.mark.parametrize(
    "record",
    [
        ["use", KEY, "moon", 1],
        ["use", KEY, "disk", -5],
        ["miss", KEY, "a", "disk", 1, int(NOW)],
        ["miss", KEY, "a", "compiled", -1, int(NOW)],
        ["miss", KEY, "a", "compiled", 1.5, int(NOW)],
        ["miss", KEY],
        [],
    ],
)
def test_malformed_records_count_for_nothing(record: list[Any]) -> None:
    assert read(counted(None, [record], NOW)).days == ()


class TestLoader:
    """What a program that asks for kernels leaves behind."""

    def test_a_frozen_miss_is_one_from_nowhere(self, store: Store) -> None:
        publish(store, 1)
        with settings.scope(on_miss="error"), pytest.raises(KernelMiss):
            current.get().get_kernel(configs(1)[0], CPU)
        found = store.index.traffic()

        assert found.total.tiers["nowhere"].kernels == 1
        assert found.worst[0].name == configs(1)[0].name(CPU)

    @pytest.mark.parametrize("tier", ["disk", "base", "remote", "service", "compiled"])
    def test_each_tier_is_counted_as_itself(
        self, store: Store, tier: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of them used to be counted as loads from the disk, and compiles not at all."""
        entry = publish(store, 1)
        monkeypatch.setattr(loader, "_kernel", lambda *_: _Loaded())
        spec = tiers.KernelSpec(config=configs(1)[0], arch=CPU, name="a", key=entry.key)
        current.get().loader._opened(spec, (entry, tier), 0.0)
        found = store.index.traffic()

        assert {name: each.kernels for name, each in found.total.tiers.items()} == {tier: 1}
        assert found.total.hit_rate == (1.0 if tier in ("disk", "base") else 0.0)
        assert store.index.uses(entry.key)[0] == (0 if tier == "compiled" else 1)
        assert bool(found.worst) is (tier not in ("disk", "base"))

    def test_a_damaged_database_loses_the_counts_alone(
        self, store: Store, cache_root: Path
    ) -> None:
        entry = publish(store, 1)
        store.index.record_use(entry.key)
        assert store.index.traffic().total.tiers["disk"].kernels == 1
        store.index.close()
        with sqlite3.connect(cache_root / "v1" / "index" / "cache.db") as database:
            database.execute("UPDATE Cache SET value = 'nonsense' WHERE key = 'traffic'")

        assert Store.open().index.traffic().days == ()
        assert Store.open().index.uses(entry.key)[0] == 1


class _Loaded:
    name = "a kernel"


class TestCommands:
    """`jitgen cache stats`, and how `jitgen doctor` ends."""

    def test_stats_have_tiers_rates_and_the_worst(self, jitgen: Jitgen, store: Store) -> None:
        entry = publish(store, 1)
        for _ in range(3):
            store.index.record_use(entry.key, "disk")
        store.index.record_miss(entry.key, "slow kernel", "compiled", 4.5)
        found = jitgen("cache stats --json").document["traffic"]
        assert found["total"]["tiers"]["disk"] == {"kernels": 3, "seconds": 0}
        assert (found["total"]["hit_rate"], found["total"]["lost_s"]) == (0.75, 4.5)
        assert found["worst"][0]["name"] == "slow kernel"
        done = jitgen("cache stats")

        assert "HIT RATE" in done.out
        assert "75.0 %" in done.out
        assert "4.50 s  compiled" in done.out

    def test_a_place_that_is_left_alone_is_told(self, jitgen: Jitgen, tmp_path: Path) -> None:
        unsafe = tmp_path / "unsafe"
        (unsafe / "v1" / "entries").mkdir(parents=True)
        unsafe.chmod(0o777)
        with settings.scope(base=[tmp_path / "none", unsafe]):
            found = jitgen("cache stats --json").document["left_alone"]
            done = jitgen("cache stats")

        reasons = {each["place"]: each["reason"] for each in found}
        assert reasons[f"JITGEN_BASE {tmp_path}/none"] == "there is no such folder"
        assert "can be written by" in reasons[f"JITGEN_BASE {unsafe}"]
        assert f"left alone: JITGEN_BASE {tmp_path}/none: there is no such folder" in done.err
        assert jitgen("cache stats --json").document["left_alone"] == []

    def test_the_doctor_ends_with_a_start(
        self, jitgen: Jitgen, store: Store, tmp_path: Path
    ) -> None:
        prewarmed(small(tmp_path), store, H200)
        publish(store, 1)
        store.index.record_miss(KEY, "slow kernel", "compiled", 4.5)
        with settings.scope(device=H20, arch=str(GPU), service="http://127.0.0.1:9", verify="off"):
            found = jitgen("doctor --json").document["findings"]

        start = {each["name"]: each for each in found if each["section"] == "start"}
        assert [each["section"] for each in found if each["section"] != "heard"][-1] == "start"
        places = f"{settings.cache_dir}, then http://127.0.0.1:9"
        assert start["looks into"]["value"] == places
        assert "JITGEN_ON_MISS=compile" in start["a missing one"]["value"]
        assert start["plan"]["value"] == f"small was prewarmed for {H200}"
        assert start["plan"]["health"] == "warn"
        assert f"--device '{H20}'" in start["plan"]["advice"]
        assert "callers waited 4.50 s" in start["earlier"]["value"]
