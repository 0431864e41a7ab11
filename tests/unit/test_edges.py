# SPDX-License-Identifier: Apache-2.0
"""Sizes at the edges of a kernel's tiles."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from jitgen.config import Arch, DType, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.formats.protocol import TORCH
from jitgen.ops.edges import around, each_once, in_pairs, rows_around
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.ops.sizes import Number
from jitgen.targets.legality import require
from jitgen.verify.verification import samples_of
from tests.cases import pool
from tests.covering import covering

ARCH = Arch.parse("sm_90a")

SUMS = (DType.BF16, DType.F16, DType.F32)


def test_values_lie_at_a_constant_and_one_step_beside_it() -> None:
    columns = Number("N", "columns", multiple=8)
    assert around(columns, 256) == (8, 16, 248, 256, 264)
    assert around(columns, 250) == (8, 16, 248, 256, 264)


def test_no_value_is_beyond_what_a_number_may_be() -> None:
    assert around(Number("K", "places", most=32), 32) == (1, 2, 31, 32)
    assert around(Number("T", "tokens", least=0), 1) == (1, 2)


def test_groups_have_rows_around_a_constant() -> None:
    counts = {count for rows in rows_around(16) for count in rows}
    assert {0, 1, 15, 16, 17} <= counts
    assert {len(rows) for rows in rows_around(16)} >= {1, 32, 33}


@pytest.mark.parametrize("axes", [("ab", "xyz"), ("abc", "xyz", "12"), ("ab", "x", "1234", "+-*")])
def test_each_two_values_occur_together(axes: tuple[str, ...]) -> None:
    found = [*in_pairs(*axes)]
    for one, other in combinations(range(len(axes)), 2):
        together = {(each[one], each[other]) for each in found}
        assert together == set(product(axes[one], axes[other]))
    assert len(found) <= 2 * len(max(axes, key=len)) * len(min(axes, key=len)) + 8


def test_each_value_occurs_once_at_least() -> None:
    assert [*each_once("abc", "xy", "1")] == [("a", "x", "1"), ("b", "y", "1"), ("c", "x", "1")]


@pytest.mark.parametrize(
    "op",
    [
        "activation_backward",
        "add_lora",
        "combine",
        "permute_quantize",
        "route",
        "activation_quantize",
    ],
)
def test_samples_can_be_made_of_all(op: str) -> None:
    for kernel in covering(pool(ARCH, op), lambda kernel: kernel.values):
        samples = samples_of(kernel.config)
        edges = samples.Sizes.edges(kernel.config, ARCH)
        assert len(edges) >= 10
        for seed, sizes in enumerate(edges[:: len(edges) // 4], 1):
            case = samples.make(kernel.config, sizes, is_exact=True, seed=seed)
            assert all(output.expected is not None for output in case.outputs)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_rows_and_blocks_of_a_grouped_gemm_lie_around_its_constants(arch: str) -> None:
    target = Arch.parse(arch)
    for kernel in covering(pool(target, "grouped_gemm"), lambda kernel: kernel.values):
        config = kernel.config
        edges = samples_of(config).Sizes.edges(config, target)
        stages = getattr(require(config, target).derived, "num_ab_stage", 1)
        stages *= config.schedule.split_k
        height, width = config.tile.m * config.cluster.m, config.tile.n * config.cluster.n
        assert {count for sizes in edges for count in sizes.rows} >= {0, 1, height - 1, height + 1}
        assert {-(-sizes.k // config.tile.k) for sizes in edges} >= {1, stages, stages + 1}
        assert any(sizes.n < width for sizes in edges)
        assert any(sizes.n > width for sizes in edges)
        assert any(sizes.rows[-1] == 0 for sizes in edges)


@pytest.mark.parametrize("out_dtype", list(SUMS))
def test_extreme_scales_keep_results_finite(out_dtype: DType) -> None:
    problem = GroupedGemmProblem(
        layout=Layout.RAGGED, groups=3, m=12, n=64, k=256, out_dtype=out_dtype
    )
    call = random_call(problem, (3, 4, 5), is_extreme=True, seed=3)
    assert call.b_scale.abs().max() > 100 * call.b_scale.abs().min()
    assert Solved.of(call, is_exact=False).expected.to(TORCH[out_dtype]).isfinite().all()
