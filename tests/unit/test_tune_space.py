# SPDX-License-Identifier: Apache-2.0
"""A search of the whole space: what it plans, what it leaves, and where it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.autotune.bench import Bench, Measurements
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.process import Stuck
from jitgen.autotune.space import SpacePlan, TrialState, plan
from jitgen.autotune.space_run import SpaceReport, search
from jitgen.autotune.tuner import HUNG
from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import CacheError, ConfigError, SettingError
from jitgen.plans import prewarm as compiling
from jitgen.selection import measurements as tuned
from jitgen.settings import settings
from jitgen.targets.legality import check
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.tune_stand import LIMIT_S, NAMES, SMALL, Stand, set_up
from tests.unit.tune_stand import run as tune_run

__all__ = ["jitgen"]

WIDE = {"tile_n": ("16", "32")}
SIZES = "-g 2 -m 16 -n 64 -k 64 --arch cpu"


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return set_up(tmp_path, monkeypatch)


def planned(
    part: dict[str, tuple[str, ...]] | None = None,
    problem: GroupedGemmProblem = SMALL,
    arch: Arch = Arch.CPU,
    **options: Any,
) -> SpacePlan:
    return plan(problem, arch, Store.open(), part=part or {}, **options)


def run(found: SpacePlan, budget_s: float = 600.0, **options: Any) -> SpaceReport:
    options = {"budget_s": budget_s, "time_limit_s": LIMIT_S, **options}
    return search(found, Store.open(), **options)


class TestPlan:
    def test_a_value_that_is_none(self) -> None:
        """The error said "m", which was not given, and not which --set it was."""
        with pytest.raises(ConfigError, match=r"no config has tile_m='wide': .*\(got 'wide'\)"):
            planned({"tile_m": ("wide",)})

    def test_it_goes_beyond_the_candidates(self) -> None:
        """Every legal config, best predicted first, within what the model leaves."""
        found, every = planned(), planned(within=1e9)
        costs = [row.cost_us for row in every.planned]

        assert {row.name for row in every.planned} > set(NAMES)
        assert every.pruned == 0
        assert costs == sorted(costs)
        assert len(found.planned) + found.pruned == len(every.planned)
        assert all(row.cost_us <= 1.5 * costs[0] for row in found.planned)
        assert all(check(row.config, Arch.CPU) for row in every.planned)
        assert found.chosen.name == NAMES[0]

    @pytest.mark.parametrize(
        "arch",
        [
            pytest.param(arch, marks=() if arch == "sm_90a" else pytest.mark.nightly)
            for arch in Arch
            if arch.is_gpu
        ],
    )
    def test_targets_without_a_device(self, arch: Arch) -> None:
        problem = replace(SMALL, groups=8, m=4096, n=4096, k=7168)
        found = planned(problem=problem, arch=arch)

        assert len(found.planned) > 4
        assert found.seconds > len(found.planned)
        with pytest.raises(NoDevice, match="--dry-run says what it would do there"):
            run(found)

    @pytest.mark.nightly
    def test_a_part(self) -> None:
        """Fields are narrowed, or take values that the list of configs leaves at their defaults."""
        problem = replace(SMALL, groups=8, m=4096, n=4096, k=7168)
        part = {"tile_m": ("64", "128"), "raster": ("1", "8"), "stream_b": ("TRUE",)}
        found = planned(part, problem, Arch.SM_90A, within=1e9)
        configs = [row.config for row in found.planned]

        assert {config.tile.m for config in configs} == {64, 128}
        assert {config.schedule.raster for config in configs} == {1, 8}
        assert {config.schedule.stream_b for config in configs} == {True}
        assert found.refused > 0
        assert len(set(configs)) == len(configs)

    @pytest.mark.parametrize(
        ("part", "complaint"),
        [
            (
                {"colour": ("1",)},
                "no field 'colour' can be searched over; allowed: tile_m, ",
            ),
            ({"m": ("8",)}, "no field 'm' can be"),
            ({"tile_n": ("33",)}, "no config of this part is legal on cpu: .*tile_n"),
            ({"tile_n": ("many",)}, "n must be an integer"),
            ({"a_dtype": ("bf16",)}, "no field 'a_dtype' can be searched over"),
        ],
    )
    def test_parts_that_are_none(self, part: dict[str, tuple[str, ...]], complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            planned(part)

    def test_what_will_not_be_finished(self) -> None:
        """On a CPU a problem of a GPU's size takes an hour: that is said before it begins."""
        found = planned(problem=replace(SMALL, groups=8, m=4096, n=4096, k=7168), within=1e9)
        fitting, left = found.within(600.0)

        assert found.seconds > 3600
        assert fitting + left == found.planned
        assert 0 < len(fitting) < len(found.planned)
        assert found.within(0.0) == ((), found.planned)
        assert found.within(1e9)[1] == ()


class TestSearch:
    def test_it_measures_each_beside_the_choice(self, stand: Stand) -> None:
        found = planned(WIDE, within=1e9)
        stand.script(**{f"us_{found.planned[1].name}": 40.0})
        heard: list[tuple[str, int, int]] = []
        report = run(
            found, on_trial=lambda trial, done, total, _: heard.append((trial.name, done, total))
        )
        names, count = [row.name for row in found.planned], len(found.planned)

        assert report.best is not None
        assert (report.best.name, report.best.ratio) == (names[1], 0.8)
        assert heard == [(name, n, count) for n, name in enumerate(names, 1)]
        assert report.count(TrialState.MEASURED) == count
        assert all(trial.seconds > 0 for trial in report.trials)

    def test_it_goes_on_where_it_was(self, stand: Stand) -> None:
        first = planned(WIDE, within=1e9)
        some = replace(first, planned=first.planned[:2])
        run(some)
        second = planned(WIDE, within=1e9)
        stand.script()
        report = run(second)
        tried = {name for row in first.planned[:2] for name in [row.name]}

        assert [row.name for row in second.planned] == [r.name for r in first.planned[2:]]
        assert {trial.name for trial in second.known} == tried
        assert report.count(TrialState.KNOWN) == 2
        assert report.count(TrialState.MEASURED) == len(first.planned) - 2
        assert planned(WIDE, within=1e9).planned == ()
        assert len(planned(WIDE, within=1e9, again=True).planned) == len(first.planned)

    def test_other_kernels_are_not_known(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change of a template makes another key, and the old time says nothing."""
        stand.script()
        first = planned(WIDE)
        run(first)
        assert not planned(WIDE).planned
        from jitgen.codegen import parameters
        from jitgen.runtime import spec

        monkeypatch.setattr(parameters, "RENDERING", 999)
        spec.key.cache_clear()
        try:
            assert len(planned(WIDE).planned) == len(first.planned)
        finally:
            spec.key.cache_clear()

    def test_time_runs_out(self, stand: Stand) -> None:
        """What does not fit is named, and the next run tries it."""
        stand.script()
        found = planned(WIDE, within=1e9)
        report = run(found, budget_s=0.0)

        assert report.best is None
        assert report.count(TrialState.LEFT) == len(found.planned)
        assert "no time" in report.trials[0].reason
        assert planned(WIDE, within=1e9).planned == found.planned
        assert stand.calls == []

    def test_bad_kernels(self, stand: Stand) -> None:
        """One that dies is never tried again; one that refuses neither, for this problem."""
        found = planned(WIDE, within=1e9)
        names = [row.name for row in found.planned]
        stand.script(**{f"verify_{names[0]}": "die", f"verify_{names[1]}": "refuse"})
        report = run(found)
        reasons = {trial.name: trial.reason for trial in report.trials if trial.reason}
        again = planned(WIDE, within=1e9)

        assert "SIGSEGV" in reasons[names[0]]
        assert "at most 4 groups" in reasons[names[1]]
        assert again.planned == ()
        assert report.count(TrialState.EXCLUDED) == 2

    @pytest.mark.parametrize("named", [True, False])
    def test_a_kernel_that_hangs_for_good_is_excluded(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch, named: bool
    ) -> None:
        """The next search met it again; where the hang has no name, it is not the choice."""
        found = planned(WIDE, within=1e9)
        name = next(row.name for row in found.planned if row.name != found.chosen.name)

        def measure(_: Bench, problem: object, names: list[str]) -> Measurements:
            if name in names:
                error = Stuck("process 1 hangs in the driver")
                error.kernels = (name,) if named else ()
                raise error
            return Measurements(dict.fromkeys(names, 50.0), {}, {}, {})

        monkeypatch.setattr(Bench, "measure", measure)
        with pytest.raises(Stuck):
            run(found)

        assert tuned.exclusions(Store.open(), Arch.CPU) == {name: HUNG}

    def test_what_is_not_compiled(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is known of it, and a later run tries it."""
        stand.script()
        real = compiling.prewarm

        def prewarm(configs: Any, **options: Any) -> compiling.PrewarmReport:
            report = real(configs, **options)
            rows = [replace(row, state=compiling.PrewarmState.WOULD_COMPILE) for row in report.rows]
            return replace(report, rows=tuple(rows))

        monkeypatch.setattr(compiling, "prewarm", prewarm)
        found = planned(WIDE)
        report = run(found)

        assert report.count(TrialState.MISSING) == len(found.planned)
        assert "compiling is off" in report.trials[0].reason
        assert planned(WIDE).planned == found.planned

    def test_a_cache_that_is_only_read(self) -> None:
        found = planned(WIDE)
        with settings.scope(cache="ro"), pytest.raises(CacheError, match="JITGEN_CACHE=ro"):
            run(found)

    def test_edited_kernels_are_not_measured_as_originals(self, tmp_path: Path) -> None:
        found = planned(WIDE)
        with (
            settings.scope(override=tmp_path),
            pytest.raises(SettingError, match=r"JITGEN_OVERRIDE is set.*bench kernel FILE"),
        ):
            run(found)
        with (
            settings.scope(override=tmp_path),
            pytest.raises(SettingError, match="JITGEN_OVERRIDE is set"),
        ):
            tune_run()

    def test_damage_is_no_knowledge(self, stand: Stand) -> None:
        stand.script()
        run(planned(WIDE))
        (path,) = Store.open().root.rglob("space/*.json")
        for text in ("[]", '{"schema": 1}', "{", path.read_text().replace("time_us", "time")):
            path.write_text(text)

            assert planned(WIDE).planned


class TestCommand:
    def test_a_search(self, stand: Stand, jitgen: Jitgen) -> None:
        stand.script()
        dry = jitgen(f"tune --space {SIZES} --set tile_n=16,32 --dry-run --json")
        done = jitgen(f"tune --space {SIZES} --set tile_n=16,32 --time-limit 1")
        again = jitgen(f"tune --space {SIZES} --set tile_n=16,32 --json")
        (problem,) = dry.document["problems"]
        names = [row["name"] for row in problem["planned"]]

        assert (dry.code, done.code, again.code) == (0, 0, 0)
        assert dry.document["estimate_s"] > 0
        assert f"[{len(names)}/{len(names)}]" in done.err
        assert all(name in done.out for name in names)
        assert "left out by the model" in done.err
        (found,) = again.document["problems"]
        assert {row["state"] for row in found["kernels"]} == {"known"}
        assert found["best"] in names

    def test_what_will_not_be_finished_is_said(self, stand: Stand, jitgen: Jitgen) -> None:
        done = jitgen("tune --space -g 8 -m 4096 -n 4096 -k 7168 --arch cpu --dry-run")

        assert done.code == 0
        assert "will not be finished in 600.00 s, from grouped_gemm_" in done.err
        assert stand

    @pytest.mark.parametrize(
        ("words", "code", "complaint"),
        [
            ("--space", 2, "--space takes a plan, or --groups"),
            (f"{SIZES} --set tile_n=16", 2, "--set: only with --space"),
            (f"{SIZES} --dry-run", 2, "--dry-run: only with --space"),
            (f"--space {SIZES} --set tile_n", 2, "'tile_n' is not FIELD=VALUE"),
            (f"--space {SIZES} --set tile_n=", 2, "is not FIELD=VALUE"),
            (f"--space {SIZES} --set tile_n=33", 2, "no config of this part is legal"),
            (f"--space {SIZES} --within 0.9", 2, "--within"),
            (f"--space {SIZES} --export x", 2, "--space takes a plan"),
            (f"--space {SIZES[:-3]}sm_90a", 1, "none is here; --dry-run says"),
            ("--space swiglu", 2, "only grouped_gemm can be measured"),
        ],
    )
    def test_bad_input(self, jitgen: Jitgen, words: str, code: int, complaint: str) -> None:
        done = jitgen(f"tune {words}")

        assert (done.code, complaint in done.err) == (code, True), done.err

    def test_where_compiling_is_off(
        self, jitgen: Jitgen, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(Store.open().root))
        monkeypatch.setenv("JITGEN_ON_MISS", "error")
        done = jitgen(f"tune --space {SIZES} --set tile_n=16 --json")

        assert done.code == 3
        assert stand
        assert {row["state"] for row in done.document["problems"][0]["kernels"]} == {"missing"}
