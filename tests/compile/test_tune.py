# SPDX-License-Identifier: Apache-2.0
"""Tuning with kernels that are compiled, verified and timed: those of the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen import grouped_gemm
from jitgen.autotune import TuningState, bench, tune
from jitgen.autotune.measure.clock import Call
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.workload import Workload
from jitgen.autotune.row_distributions import row_counts, row_distributions
from jitgen.autotune.trials import Trials, over_all
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands, Tile
from jitgen.runtime.session import current, select
from jitgen.selection.record import problem_json
from tests.candidates import candidates

pytestmark = pytest.mark.usefixtures("shared_cache")

PROBLEM = GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=32, n=128, k=128)


@pytest.fixture(scope="module")
def kernel_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this file's own: what is measured here would choose the kernels of others."""
    return tmp_path_factory.mktemp("tuned")


def name(rows: int, layout: Layout = Layout.RAGGED) -> str:
    config = GroupedGemmConfig(layout=layout, tile=Tile(m=rows, n=128, k=128))
    return config.name("cpu")


def test_the_whole_way() -> None:
    """From a problem to a choice that was measured, which the next call runs."""
    (row,) = tune([PROBLEM], arch="cpu").rows
    choice = select(PROBLEM, "cpu")
    workload = Workload.random(PROBLEM, device="cpu")
    workload.call(grouped_gemm)
    workload.check("the chosen kernel")

    assert row.state is TuningState.MEASURED
    assert row.record is not None
    assert row.record.times_us.keys() == {name(rows) for rows in (8, 16, 32, 64)}
    assert all(0.1 < time < 1e6 for time in row.record.times_us.values())
    assert not row.record.excluded
    assert choice.source == "tuned"
    assert choice.config.name("cpu") == row.record.winner
    assert [launch.config for (launch,) in current.get().memo.values()] == [choice.config]


def test_kernels_that_crash_or_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that another kernel left there does not pass for theirs."""
    monkeypatch.setattr(bench, "TRIALS", "tests.compile.tune_mistakes:Trials")
    (row,) = tune([PROBLEM], arch="cpu", again=True).rows

    assert row.record is not None
    assert row.record.times_us.keys() == {name(32), name(64)}
    assert row.record.excluded[name(8)] == "its process was killed by SIGABRT"
    assert row.record.excluded[name(16)].startswith("its result is wrong by")
    assert select(PROBLEM, "cpu").config.tile.m in (32, 64)


@pytest.mark.parametrize("layout", Layout)
def test_every_layout(layout: Layout) -> None:
    trials = Trials()
    problem = replace(PROBLEM, layout=layout)
    config, *_ = candidates(Arch.CPU, layout, Operands())
    trials.open(problem_json(problem), "cpu")
    trials.verify(config.name("cpu"))

    assert trials.time([config.name("cpu")])[0] > 0


def test_an_equal_result_needs_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = Workload.check

    def check(self: Workload, what: str, **options: Any) -> None:
        checked.append(what)
        real(self, what, **options)

    monkeypatch.setattr(Workload, "check", check)
    trials = Trials()
    trials.open(problem_json(PROBLEM), "cpu")
    for _ in range(3):
        trials.verify(name(8))

    assert len(checked) == len(row_distributions(PROBLEM, Arch.CPU)) == 4


def test_a_different_result_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials()
    trials.open(problem_json(PROBLEM), "cpu")
    trials.verify(name(8))
    real = trials._call

    def off(kernel: str, workload: Workload) -> Call:
        def call() -> None:
            real(kernel, workload)()
            workload.out[3, 5] += 0.5 * float(workload.out.abs().max())

        return call

    monkeypatch.setattr(trials, "_call", off)
    with pytest.raises(WrongResult, match="its result is wrong"):
        trials.verify(name(8))


@pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
@pytest.mark.parametrize("rows", [1, 8, 64, 128, 192, 500])
def test_row_counts(layout: Layout, rows: int) -> None:
    """About as many rows as the problem has, unequal."""
    problem = GroupedGemmProblem(layout=layout, groups=64, m=64 * rows, n=8, k=16)
    counts = row_counts(problem)

    assert counts == row_counts(problem)
    assert len(counts) == 64
    assert min(counts) >= 1
    assert sum(counts) == pytest.approx(problem.m, rel=0.02)
    assert max(counts) <= 1.6 * rows + 1
    assert (len(set(counts)) > 1) == (rows > 1)


@pytest.mark.parametrize("rows", [1, 8, 64, 128, 192, 384, 512, 1000])
def test_contiguous_rows_are_uneven_too(rows: int) -> None:
    """
    Whole blocks as evenly as they go used to choose tiles of two blocks where every group had an
    even number of them, 31 % behind on groups of anything else.
    """
    problem = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=64, m=64 * rows, n=8, k=16)
    counts = row_counts(problem)
    blocks = [-(-count // 128) for count in counts]

    assert counts == row_counts(problem)
    assert sum(blocks) * 128 == pytest.approx(max(128, problem.m), rel=0.1)
    assert sum(count > 0 for count in counts) == min(64, max(1, problem.m // 128))
    assert len(set(counts)) > 1
    assert (len(set(blocks)) > 1) == (rows != 128)


@pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
@pytest.mark.parametrize("groups", [1, 2, 3, 8])
def test_few_groups_have_the_rows_of_the_problem(layout: Layout, groups: int) -> None:
    """So that what is timed falls into the bucket that it is recorded for."""
    problem = GroupedGemmProblem(layout=layout, groups=groups, m=groups * 1536, n=8, k=16)

    assert sum(row_counts(problem)) == pytest.approx(problem.m, abs=groups)


def test_few_groups_are_timed_with_several_draws() -> None:
    """One draw alone decided for eight groups used to choose what suits that draw's last wave."""
    few = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8 * 320, n=8, k=16)
    drawn = row_distributions(few, Arch.SM_90A)

    assert drawn[0] == row_counts(few)
    assert len(set(drawn)) == 5
    assert all(sum(counts) == pytest.approx(few.m, abs=8) for counts in drawn[::2])
    assert all(sum(counts) == pytest.approx(8 * 288, abs=8) for counts in drawn[1::2])
    assert len(row_distributions(replace(few, groups=32, m=32 * 320), Arch.SM_90A)) == 4
    assert row_distributions(replace(few, groups=1, m=320), Arch.SM_90A) == [(320,), (288,)]


def test_a_kernel_that_is_never_far_behind_is_ahead() -> None:
    """The mean of its times may be a little longer than that of one that is far behind in some."""
    even, uneven = [100.0, 105.0, 115.0], [108.0, 105.0, 100.0]

    first, between, last = over_all([even, uneven])
    assert even[1] + uneven[1] > even[0] + uneven[0]
    assert between < first < last
    assert over_all([uneven]) == pytest.approx(uneven)


def test_the_fewest_rows_are_timed_with_one_row_each_too() -> None:
    """Ragged 32 x 1 once took a tile of 128 rows, level with 64 at the bucket's edge of 8 rows."""
    ones = (1,) * 32
    for layout in (Layout.RAGGED, Layout.MASKED):
        few = GroupedGemmProblem(layout=layout, groups=32, m=32 * 8, n=8, k=16)

        assert row_distributions(few, Arch.SM_90A)[-1] == ones
        assert ones not in row_distributions(replace(few, m=32 * 16), Arch.SM_90A)
    blocks = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=32, m=32 * 128, n=8, k=16)
    assert ones not in row_distributions(blocks, Arch.SM_90A)  # which has rows of whole blocks


def test_nothing_is_open() -> None:
    with pytest.raises(RuntimeError, match="no problem is open"):
        Trials().verify(name(8))
