# SPDX-License-Identifier: Apache-2.0
"""Workloads of every layout, and the clocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

import jitgen
from jitgen import reference
from jitgen.autotune.measure import clock
from jitgen.autotune.measure.errors import NoDevice, WrongResult
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.autotune.row_distributions import OF_FEW, Distribution, row_counts, row_distributions
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.config import SCALES
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from jitgen.selection.choice import edges_of


def problem(layout: Layout = Layout.RAGGED, **changes: object) -> GroupedGemmProblem:
    return replace(GroupedGemmProblem(layout=layout, groups=3, m=12, n=136, k=144), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("layout", list(Layout))
def test_a_right_result_passes_and_a_wrong_one_does_not(
    layout: Layout, scales: ScaleGranularity
) -> None:
    load = Workload.random(
        problem(layout, a_dtype=scales.operands[0], scale_granularity=scales),
        (5, 0, 130),
        device="cpu",
        seed=3,
    )
    load.out.fill_(float("nan"))
    load.call(reference.grouped_gemm)
    load.check("the reference")

    group, where = list(load.valid_rows())[-1]
    assert group == 2
    load.out[where][129, 135] *= -2
    with pytest.raises(WrongResult, match=r"^a kernel is wrong by"):
        load.check("a kernel")
    load.check("a kernel", allowance=1000)
    load.out[where][129, 135] = float("nan")
    with pytest.raises(WrongResult):
        load.check("a kernel")


@pytest.mark.parametrize("scales", SCALES)
def test_sums_in_float64_show_the_rounding_alone(scales: ScaleGranularity) -> None:
    """Scales per tensor used to fail: float64 times float32 where one of them is a number."""
    a_dtype = scales.operands[0]
    given = problem(a_dtype=a_dtype, out_dtype=DType.F32, scale_granularity=scales)
    load = Workload.random(given, device="cpu")
    load.call(reference.grouped_gemm)

    assert 0 < load.errors(torch.float64)[0] < 1e-6
    assert load.errors()[0] < 1e-6


def test_contiguous_groups_start_at_multiples_of_128() -> None:
    load = Workload.random(problem(Layout.CONTIGUOUS), (1, 128, 129), device="cpu")

    assert load.problem.m == len(load.groups) == load.a.shape[0] == 128 + 128 + 256
    assert load.groups[:3].tolist() == [0, -1, -1]
    assert [where.start for _, where in load.valid_rows()] == [0, 128, 256]
    assert int((load.groups >= 0).sum()) == sum(load.row_counts)


def test_masked_rows_and_what_is_expected_of_them() -> None:
    load = Workload.random(problem(Layout.MASKED), (4, 0, 2), max_rows=8, device="cpu")

    assert (load.a.shape, load.problem.m) == ((3, 8, 144), 6)
    assert load.groups.tolist() == [4, 0, 2]
    with pytest.raises(ConfigError, match="max_rows must be at least 4"):
        Workload.random(problem(Layout.MASKED), (4, 0, 2), max_rows=3, device="cpu")
    with pytest.raises(ConfigError, match="max_rows is for the masked layout"):
        Workload.random(problem(), (4, 0, 2), max_rows=3, device="cpu")


def test_rows_are_spread_evenly_unless_given() -> None:
    load = Workload.random(problem(m=11), device="cpu")

    assert sorted(load.row_counts) == [3, 4, 4]
    assert load.groups[-1] == load.problem.m == 11
    with pytest.raises(ConfigError, match="row_counts must be 3 counts"):
        Workload.random(problem(), (1, 2), device="cpu")


@pytest.mark.parametrize("layout", list(Layout))
def test_bytes_and_operations_count_valid_rows_of_used_groups(layout: Layout) -> None:
    load = Workload.random(problem(layout), (5, 0, 7), device="cpu")

    of_rows = 12 * (144 + 2 * 4 + 136 * 2)
    of_groups = 2 * (136 * 144 + 2 * 2 * 4)
    assert load.num_bytes == of_rows + of_groups
    assert load.flop == 2 * 12 * 136 * 144


def test_copies_share_nothing_and_seeds_repeat() -> None:
    first, again = (Workload.random(problem(m=11), device="cpu", seed=1) for _ in range(2))
    other = first.copy()

    assert torch.equal(first.a.view(torch.uint8), again.a.view(torch.uint8))
    assert torch.equal(first.b_scale, other.b_scale)
    assert first.b.data_ptr() != other.b.data_ptr()
    assert other.a_scale.stride() == first.a_scale.stride()


def test_the_shorter_a_call_the_more_sets_of_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Workload.random(problem(), device="cpu")
    found = rotation(load)

    assert found[0] is load
    assert len(found) == len({each.b.data_ptr() for each in found}) == 8
    monkeypatch.setattr("jitgen.autotune.measure.rotation._FLOP_RATE", 1.0)
    assert len(rotation(load)) == 2
    monkeypatch.setattr("jitgen.autotune.measure.rotation._MOST_BYTES", 1)
    assert rotation(load) == [load]


def test_a_workload_fits_grouped_gemm() -> None:
    load = Workload.random(problem(Layout.MASKED), device="cpu")
    load.call(jitgen.grouped_gemm, expected_m=4)
    load.check("the kernel")


def test_competitors_take_turns() -> None:
    order: list[str] = []
    first, second = clock.compete_on_host(
        [lambda: order.append("a"), lambda: order.append("b")], calls=2, repetitions=3, warmup=1
    )

    assert "".join(order) == "aabb" * 4
    assert len(first.seconds) == len(second.seconds) == 3


def test_rounds_on_a_cpu() -> None:
    order: list[str] = []
    functions = [partial(order.append, name) for name in "ab"]
    times = clock.compete(functions, rounds=2, repetitions=3, warmup=1, on_gpu=False)

    assert "".join(order) == "ab" * 9
    assert [len(each.seconds) for each in times] == [2, 2]


def test_medians_of_rounds() -> None:
    times = Times(seconds=(2.0, 1.0, 4.0))

    assert times.median == 2.0
    assert times.spread == 1.5
    assert times.detail(1e3, "ms") == "1e+03..4e+03 ms in 3 runs"
    assert clock._medians([9, 9, 9, 1, 2, 3, 7, 5, 6], 3, 1).seconds == (2, 6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_time_wants_a_device() -> None:
    with pytest.raises(NoDevice, match="the suite needs a GPU"):
        clock.require_gpu("the suite")


def test_a_single_contiguous_group_fills_its_last_block_more_or_less() -> None:
    """So that a tile of 64 rows does not win by draws that all leave one half of it empty."""
    for blocks in (1, 2, 64):
        problem = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=1, m=128 * blocks, n=64, k=64)
        last = [(rows - 1) % 128 + 1 for (rows,) in row_distributions(problem, Arch.SM_90A)]

        assert len(last) == len(OF_FEW)
        assert min(last) <= 64 < max(last) == 128


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("groups", [4, 32])
def test_draws_are_of_their_bucket(layout: Layout, groups: int) -> None:
    """Those in its middle, too: what they choose is asked for by calls of as many rows."""
    step = 128 if layout is Layout.CONTIGUOUS else 1
    for rows in (128, 320, 4096):
        asked = GroupedGemmProblem(layout=layout, groups=groups, m=groups * rows, n=64, k=64)
        edges = edges_of(asked, Arch.SM_90A)
        before = edges[edges.index(rows) - 1]
        found = row_distributions(asked, Arch.SM_90A)
        means = [sum(-(-count // step) * step for count in counts) / groups for counts in found]

        assert len(set(found)) == (5 if groups == 4 else 4)
        assert any(len(set(counts)) == 1 for counts in found)
        assert all(before - step / 4 <= mean <= rows + step / 4 for mean in means)
        assert min(means) < max(means) or (step, rows) == (128, 128)


def test_rows_of_an_even_draw_fill_whole_blocks_where_they_can() -> None:
    asked = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=8, m=8 * 512, n=64, k=64)

    assert row_counts(asked, Distribution.EVEN) == (512,) * 8
    assert row_counts(asked.with_mean(480), Distribution.EVEN) == (416,) * 8


@pytest.mark.parametrize(("layout", "share"), [(Layout.RAGGED, 0.3), (Layout.MASKED, 8 / 71)])
def test_one_draw_has_a_group_of_many_rows(layout: Layout, share: float) -> None:
    """In the masked layout fewer, because all groups have room for as many."""
    asked = GroupedGemmProblem(layout=layout, groups=64, m=64 * 256, n=64, k=64)
    counts = row_distributions(asked, Arch.SM_90A)[-1]

    assert len(set(counts)) == 2
    assert max(counts) / sum(counts) == pytest.approx(share, rel=0.01)


def test_contiguous_groups_of_a_block_all_have_rows() -> None:
    asked = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=8, m=8 * 128, n=64, k=64)

    assert all(min(counts) > 0 for counts in row_distributions(asked, Arch.SM_90A))
