# SPDX-License-Identifier: Apache-2.0
"""What Hopper's cost models assume of rows, against a walk over the tiles as kernels take them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.targets.legality import check, rules
from jitgen.targets.sm_90a import cost, fp4_cost
from jitgen.targets.sm_90a.devices import H200, fit_of


def _fp4(groups: int, blocks: int) -> GroupedGemmProblem:
    return GroupedGemmProblem(
        layout=Layout.CONTIGUOUS,
        groups=groups,
        m=128 * blocks,
        n=192 * 128 * 11,
        k=1024,
        a_dtype=DType.BF16,
        b_dtype=DType.E2M1,
        scale_granularity=ScaleGranularity.MX32,
        a_scale_granularity=ScaleGranularity.NONE,
        b_layout=BLayout.WIDE1,
    )


def _live(problem: GroupedGemmProblem, config: GroupedGemmConfig, last: int) -> int:
    """Return how many tiles along M have rows where each group's last block has `last` of them."""
    blocks = problem.m // 128
    filled = [128] * (blocks - min(problem.groups, blocks)) + [last] * min(problem.groups, blocks)
    starts = range(0, 128, config.tile.m)
    return sum(start < rows for rows in filled for start in starts)


@pytest.mark.parametrize(("groups", "blocks"), [(1, 1), (8, 8), (40, 24), (8, 13), (2, 300)])
def test_contiguous_tiles_without_rows_are_not_counted(groups: int, blocks: int) -> None:
    """Whatever the height of a tile is; blocks that follow on others are more or less full."""
    problem = _fp4(groups, blocks)
    lasts = fp4_cost.LAST_ROWS["alone" if blocks <= groups else "behind others"]
    for config in rules(Arch.SM_90A, problem.op).candidates(problem):
        counts = [
            fp4_cost._tiles(config, distribution)[0]
            for distribution in fp4_cost._row_distributions(problem)
        ]

        assert counts == [_live(problem, config, last) for last in lasts]


def test_listed_tiles_are_all_that_a_problem_of_experts_has() -> None:
    """The model deals tiles evenly: so does a kernel, whose list holds them all."""
    for groups in (8, 256, 512):
        problem = _fp4(groups, groups)
        for config in rules(Arch.SM_90A, problem.op).candidates(problem):
            entries = check(config, Arch.SM_90A).derived.max_entries  # type: ignore[union-attr]

            assert entries * config.tile.m >= problem.m or config.tile.m == 128


def test_tiles_hold_the_rows_that_a_block_may_have() -> None:
    """
    Several short ones would decode the weights twice, and of a tall one no padding is multiplied,
    for fear of which 32 rows were chosen where a group has a block.
    """
    found = rules(Arch.SM_90A, "grouped_gemm")

    def best(groups: int, blocks: int) -> int:
        problem = _fp4(groups, blocks)
        every = [found.predict(problem, each, H200, 132) for each in found.candidates(problem)]
        return min(every, key=lambda each: each.cost).config.tile.m

    assert best(32, 32) == 64
    assert best(8, 80) == 128


@pytest.mark.parametrize("groups", [1, 2, 5, 16, 300])
def test_distributions_have_all_rows(groups: int) -> None:
    problem = GroupedGemmProblem(
        layout=Layout.RAGGED, groups=groups, m=groups * 130, n=4096, k=4096
    )
    every = cost.row_distributions(problem)

    assert len(every) == (1 if groups == 1 else 2)
    for distribution in every:
        assert math.fsum(distribution.rows) * distribution.times == pytest.approx(problem.m)
        assert len(distribution.rows) * distribution.times == groups


def test_whole_tiles_of_few_groups() -> None:
    """Of two groups of 130 rows, or of 87 and 173, one has two tiles of 128 rows or both have."""
    problem = GroupedGemmProblem(layout=Layout.MASKED, groups=2, m=260, n=6464, k=2432)
    config = GroupedGemmConfig(
        layout=Layout.MASKED, tile=Tile(m=128, n=160, k=128), cluster=Cluster(m=2)
    )
    clusters = [
        cost.work(problem, config, 132, distribution).clusters
        for distribution in cost.row_distributions(problem)
    ]

    assert clusters == [4 * 21, 3 * 21]


def test_contiguous_tiles_of_256_rows_meet_two_groups() -> None:
    """Then they go over K twice; never where one group has all blocks."""
    config = GroupedGemmConfig(layout=Layout.CONTIGUOUS, tile=Tile(m=256, n=128, k=128))

    def k_blocks(groups: int) -> float:
        problem = GroupedGemmProblem(
            layout=Layout.CONTIGUOUS, groups=groups, m=1024, n=4096, k=4096
        )
        (distribution,) = cost.row_distributions(problem)
        return cost.work(problem, config, 132, distribution).k_blocks

    assert k_blocks(1) == 32
    assert k_blocks(8) == 64
    assert 32 < k_blocks(4) < 64


@pytest.mark.parametrize(("rows", "height"), [(512, 4), (2048, 4), (4096, 8), (16_384, 8)])
def test_strips_of_long_groups_are_higher(rows: int, height: int) -> None:
    problem = GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=4, m=4 * rows, n=4096, k=7168)
    found = rules(Arch.SM_90A, problem.op)
    both = [
        found.predict(problem, each, H200, 132)
        for each in found.candidates(problem)
        if each.tile.m == 256 and each.cluster.n == 2
    ]

    assert len(both) == 2
    assert min(both, key=lambda each: each.cost).config.schedule.raster == height


@pytest.mark.parametrize("key", sorted(fit_of(H200).speeds))
def test_unmeasured_tiles_are_near_those_that_were(key: tuple[int, ...]) -> None:
    """A new candidate is neither always nor never chosen."""
    tile_m, tile_n, cluster_m, cluster_n, stream_b, split_k = key
    known = fit_of(H200)
    config = GroupedGemmConfig.parse(
        f"grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t{tile_m}x{tile_n}x128"
        f"_c{cluster_m}x{cluster_n}_acc1{'_raster1_streamb' * bool(stream_b)}"
        f"{f'_splitk{split_k}' * (split_k > 1)}_sm_90a"
    )[0]
    measured = cost.speed_of(config, known)
    assumed = cost.speed_of(config, replace(known, speeds={}))

    assert assumed.k_block_us == pytest.approx(measured.k_block_us, rel=0.4)
    assert assumed.tile_us == pytest.approx(measured.tile_us, rel=1)
