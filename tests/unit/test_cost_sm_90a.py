# SPDX-License-Identifier: Apache-2.0
"""What Hopper's cost models assume of rows, against a walk over the tiles as kernels take them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.ops.grouped_gemm.config import Cluster, KernelConfig, Problem, Tile
from jitgen.targets.legality import rules
from jitgen.targets.sm_90a import cost, fp4_cost
from jitgen.targets.sm_90a.devices import H200, fit_of

ROWS = 32


def _fp4(groups: int, blocks: int) -> Problem:
    return Problem(
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


def _busiest(problem: Problem, config: KernelConfig, slots: int) -> int:
    """Return the most tiles with rows that a CTA meets: M fastest, over strips of tiles."""
    of_block = -(-128 // config.tile.m)
    tiles_m, tiles_n = problem.m // 128 * of_block, problem.n // config.tile.n
    met = [0] * slots
    for index in range(tiles_m * tiles_n):
        strip, rest = divmod(index, config.schedule.raster * tiles_n)
        first = strip * config.schedule.raster
        tile_m = first + rest % min(config.schedule.raster, tiles_m - first)
        met[index % slots] += tile_m % of_block * config.tile.m < ROWS
    return max(met)


@pytest.mark.parametrize("blocks", [1, 2, 8, 24])
def test_padding_is_dealt_to_the_same_ctas(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 tokens, two of eight tiles have rows, and every second CTA meets none of them."""
    monkeypatch.setattr(fp4_cost, "LAST_ROWS", ROWS)
    problem = _fp4(blocks, blocks)
    for config in rules(Arch.SM_90A, problem.op).candidates(problem):
        slots = 132 // config.schedule.split_k
        count, _ = fp4_cost._dealt(problem, config, slots)
        waves = count * (problem.n / config.tile.n) / slots

        assert waves == pytest.approx(_busiest(problem, config, slots), rel=0.1, abs=1)


def test_groups_of_several_blocks_have_rows_in_most_tiles() -> None:
    few, many = (
        fp4_cost._dealt(problem, config, 66)[0] / problem.m
        for problem in (_fp4(8, 8), _fp4(8, 800))
        for config in rules(Arch.SM_90A, problem.op).candidates(problem)
        if (config.tile.m, config.schedule.split_k) == (16, 2)
    )

    assert many == pytest.approx(1 / 16, rel=0.02)
    assert few < many


@pytest.mark.parametrize("groups", [1, 2, 5, 16, 300])
def test_deals_have_all_rows(groups: int) -> None:
    problem = Problem(layout=Layout.RAGGED, groups=groups, m=groups * 130, n=4096, k=4096)
    every = cost.deals(problem)

    assert len(every) == (1 if groups == 1 else 2)
    for deal in every:
        assert math.fsum(deal.rows) * deal.times == pytest.approx(problem.m)
        assert len(deal.rows) * deal.times == groups


def test_whole_tiles_of_few_groups() -> None:
    """Of two groups of 130 rows, or of 87 and 173, one has two tiles of 128 rows or both have."""
    problem = Problem(layout=Layout.MASKED, groups=2, m=260, n=6464, k=2432)
    config = KernelConfig(
        layout=Layout.MASKED, tile=Tile(m=128, n=160, k=128), cluster=Cluster(m=2)
    )
    clusters = [cost.work(problem, config, 132, deal).clusters for deal in cost.deals(problem)]

    assert clusters == [4 * 21, 3 * 21]


def test_contiguous_tiles_of_256_rows_meet_two_groups() -> None:
    """Then they go over K twice; never where one group has all blocks."""
    config = KernelConfig(layout=Layout.CONTIGUOUS, tile=Tile(m=256, n=128, k=128))

    def k_blocks(groups: int) -> float:
        problem = Problem(layout=Layout.CONTIGUOUS, groups=groups, m=1024, n=4096, k=4096)
        (deal,) = cost.deals(problem)
        return cost.work(problem, config, 132, deal).k_blocks

    assert k_blocks(1) == 32
    assert k_blocks(8) == 64
    assert 32 < k_blocks(4) < 64


@pytest.mark.parametrize("key", sorted(fit_of(H200).speeds))
def test_tiles_that_nobody_measured_are_near_those_that_were(key: tuple[int, ...]) -> None:
    """A new candidate is neither always nor never chosen."""
    tile_m, tile_n, cluster_m, cluster_n, stream_b, split_k = key
    known = fit_of(H200)
    config = KernelConfig.parse(
        f"grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t{tile_m}x{tile_n}x128"
        f"_c{cluster_m}x{cluster_n}_acc1{'_raster1_streamb' * bool(stream_b)}"
        f"{f'_splitk{split_k}' * (split_k > 1)}_sm_90a"
    )[0]
    measured = cost.speed_of(config, known)
    assumed = cost.speed_of(config, replace(known, speeds={}))

    assert assumed.k_block_us == pytest.approx(measured.k_block_us, rel=0.4)
    assert assumed.tile_us == pytest.approx(measured.tile_us, rel=1)
