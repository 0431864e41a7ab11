# SPDX-License-Identifier: Apache-2.0
"""The suite of choices without a GPU: rows of groups, cases, reports and what is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.choice import run
from jitgen.bench.choice.cases import (
    LAYER_BYTES,
    LAYER_FLOP,
    MOST_BYTES,
    MOST_FLOP,
    STEP,
    Case,
    Kind,
    Routing,
    kernels_of,
    layer_cases,
    random_cases,
    skewed_cases,
)
from jitgen.bench.choice.report import ChoiceReport, Measured, regrets, summary
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from tests import needs

SMALL = Case(
    problem=GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=4, m=60, n=64, k=128),
    routing=Routing(kind=Kind.ZIPF, amount=1.2, seed=3),
)


def report() -> ChoiceReport:
    """Return one of two cases, of which the first has two kernels."""
    slow = Case(problem=replace(SMALL.problem, m=61), routing=Routing(kind=Kind.EVEN))
    found = [
        Measured(case=SMALL, times_us={"one": 10.0, "two": 12.0}, took_s=1.5),
        Measured(case=slow, times_us={"two": 8.0}, took_s=0.5),
    ]
    return ChoiceReport(family="skewed", seed=4, conditions={"gpu": "NVIDIA H200"}, found=found)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("groups", "rows"), [(1, 7), (8, 3), (64, 32_768)])
def test_every_row_has_a_group(kind: Kind, groups: int, rows: int) -> None:
    routing = Routing(kind=kind, amount=0.9, seed=5)
    counts = routing.deal(groups, rows)

    assert len(counts) == groups
    assert sum(counts) == rows
    assert min(counts) >= 0
    assert counts == routing.deal(groups, rows)


def test_how_uneven_rows_are() -> None:
    def largest(kind: Kind, amount: float) -> float:
        return max(Routing(kind=kind, amount=amount).deal(32, 3200)) / 100

    assert largest(Kind.EVEN, 0.0) == 1
    assert 1.2 < largest(Kind.SPREAD, 0.5) < 1.6
    assert largest(Kind.HOT, 0.5) == 16
    assert largest(Kind.HOT, 1.0) == 32
    assert largest(Kind.ZIPF, 0.6) < largest(Kind.ZIPF, 1.2) < 32
    assert 1.5 < largest(Kind.ROUTED, 0.5) < largest(Kind.ROUTED, 1.5)


def test_random_cases_fit_a_gpu_and_reach_all_ends() -> None:
    """Also: a longer list begins with the shorter one, so that a run can be continued."""
    cases = random_cases(150, 0)

    assert random_cases(20, 0) == cases[:20]
    assert random_cases(20, 1) != cases[:20]
    for case in cases:
        sizes = case.problem
        assert 2 * sizes.m * sizes.n * sizes.k <= MOST_FLOP
        assert sizes.groups * sizes.n * sizes.k * sizes.operands.b_dtype.bits / 8 <= MOST_BYTES
        assert sizes.n % STEP == sizes.k % STEP == 0
        assert 512 <= sizes.n <= 32_768
        assert 512 <= sizes.k <= 18_432
    assert max(case.problem.groups for case in cases) > 400
    assert max(case.problem.rows_per_group for case in cases) > 4096
    assert max(case.problem.n for case in cases) > 24_000
    assert {case.problem.layout for case in cases} == set(Layout)
    types = [case.problem.a_dtype + str(case.problem.b_dtype) for case in cases]
    assert 90 < types.count("e4m3None") < 135
    assert len(set(types)) == 3
    assert len(kernels_of(cases, Arch.SM_90A)) <= 84  # not of each shape: a fixed menu


def test_layers_are_those_that_engines_serve() -> None:
    """Likewise begun by a shorter list; every layout and kind of rows among 60."""
    cases = layer_cases(60, 1)

    assert layer_cases(20, 1) == cases[:20]
    assert layer_cases(20, 2) != cases[:20]
    assert {case.problem.layout for case in cases} == set(Layout)
    assert len({case.routing for case in cases}) == 60
    assert {str(case.routing).split()[0] for case in cases} == {"even", "spread", "routed"}
    assert max(case.problem.groups for case in cases) == 256
    for case in cases:
        sizes = case.problem
        assert 2 * sizes.m * sizes.n * sizes.k < LAYER_FLOP
        assert sizes.groups * sizes.n * sizes.k < LAYER_BYTES


def test_every_kind_of_rows_meets_other_layers() -> None:
    cases = skewed_cases(40, 0)

    assert len({str(case) for case in cases}) == 40
    for kind in Kind:
        met = {case.problem for case in cases if case.routing.kind is kind}
        assert len(met) >= 3, kind


def test_contiguous_rows_count_with_their_padding() -> None:
    counts = SMALL.row_counts

    assert sum(counts) == 60
    assert SMALL.asked.m == 128 * sum(count > 0 for count in counts)
    assert replace(SMALL, problem=replace(SMALL.problem, layout=Layout.RAGGED)).asked.m == 60


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    report().save(path)
    found = ChoiceReport.read(path)

    assert found == report()
    assert found.found[0].case.row_counts == SMALL.row_counts


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"suite": "hopper"}, "no report of choice of this version"),
        ({"kernels": ["one"]}, "damaged: IndexError"),
        ({"seed": "x"}, "damaged: ValueError"),
        ({"found": [{"problem": 3}]}, "damaged: KeyError"),
    ],
)
def test_what_is_no_report(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ChoiceReport.from_json({**report().to_json(), **change})


def test_what_is_lost() -> None:
    """A choice that was not measured is not counted."""
    found = list(regrets(report(), lambda _: "two"))

    assert [round(each.lost, 3) for each in found] == [0.2, 0]
    assert found[0].to_json()["best_us"] == 10.0
    assert summary(found) == {
        "cases": 2,
        "mean": pytest.approx(0.1),
        "worst": pytest.approx(0.2),
        "beyond_2": 1,
        "beyond_8": 1,
    }
    assert len(list(regrets(report(), lambda _: "one"))) == 1


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_candidates_are_checked_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = kernels_of([SMALL], Arch.CPU)[:2]
    monkeypatch.setattr(run, "kernels_of", lambda *_: configs)
    timed = run.measure(SMALL, Arch.CPU)

    assert list(timed.times_us) == [config.name(Arch.CPU) for config in configs]
    assert min(timed.times_us.values()) > 0

    def wrong(operands: Workload, config: object) -> None:
        operands.out.fill_(1.0 if config == configs[1] else 0.5)

    monkeypatch.setattr(run, "_call", wrong)
    with pytest.raises(WrongResult):
        run.measure(SMALL, Arch.CPU)
