# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm_wgrad` before it is compiled: names, rules, choices, samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jitgen
from jitgen.config import Arch, Config, DType, Layout
from jitgen.config.grouped_gemm import Cluster, Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.grouped_gemm_wgrad.samples import Sizes
from jitgen.targets.legality import check, rules, size_refusal
from jitgen.targets.sm_90a.grouped_gemm_wgrad import GroupedGemmWgrad
from jitgen.targets.sm_90a.rules import SMEM_BYTES
from tests.refusals import assert_refused
from tests.strategies import wgrad_sweep

CONFIG = GroupedGemmWgradConfig(layout=Layout.RAGGED, tile=Tile(m=128, n=256, k=64))
LAYER = GroupedGemmWgradProblem(layout=Layout.RAGGED, groups=8, m=32768, n=4096, k=2048)
ARCHS = (Arch.CPU, Arch.SM_90A)


@pytest.mark.parametrize(
    "words", ["ragged_bf16_bf16_t64x64x64_c1x1_raster8", "ragged_bf16_t64x64x64_c1x1", "x"]
)
def test_what_is_no_name(words: str) -> None:
    """A default is never written, and types are two."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(f"grouped_gemm_wgrad_{words}_sm_90a")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"layout": Layout.CONTIGUOUS}, "E_LAYOUT"),
        ({"a_dtype": DType.E4M3}, "E_MMA"),
        ({"a_dtype": DType.F32}, "E_MMA"),
        ({"out_dtype": DType.F16}, "E_MMA"),
        ({"tile": Tile(m=192, n=128, k=64)}, "E_WGMMA_M"),
        ({"tile": Tile(m=128, n=96, k=64)}, "E_WGMMA_N"),
        ({"tile": Tile(m=128, n=128, k=128)}, "E_TILE_K"),
        ({"tile": Tile(m=256, n=256, k=64)}, "E_REGS"),
        ({"cluster": Cluster(m=2, n=2)}, "E_CLUSTER"),
        ({"num_ab_stage": 5}, "E_SMEM"),
        ({"num_ab_stage": 2}, "E_STAGES"),
    ],
    ids=str,
)
def test_rules_of_sm_90a(change: dict[str, object], code: str) -> None:
    """Each with a legal neighbour."""
    assert_refused(replace(CONFIG, **change), "sm_90a", code)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cluster": Cluster(m=2)}, "E_CLUSTER"),
        ({"num_ab_stage": 4}, "E_STAGES"),
        ({"tile": Tile(m=64, n=256, k=128)}, "E_TILE_N"),
        ({"layout": Layout.CONTIGUOUS}, "E_LAYOUT"),
        ({"a_dtype": DType.E4M3}, "E_MMA"),
    ],
    ids=str,
)
def test_rules_of_cpu(change: dict[str, object], code: str) -> None:
    usual = replace(CONFIG, tile=Tile(m=64, n=128, k=128))
    assert_refused(replace(usual, **change), "cpu", code)  # type: ignore[arg-type]


def test_what_the_store_has_is_what_stages_leave() -> None:
    """Fewer stages, more places; always a divisor of a warpgroup's boxes, within shared memory."""
    sm_90a = GroupedGemmWgrad()
    four, three = (sm_90a.derive(replace(CONFIG, num_ab_stage=n)) for n in (4, 3))

    assert (four.num_boxes, three.num_boxes) == (2, 4)
    for config in wgrad_sweep(Arch.SM_90A):
        derived = sm_90a.derive(config)
        boxes = derived.m_blocks * config.tile.n // derived.box_n
        assert boxes % derived.num_boxes == 0
        assert derived.num_boxes >= min(2, boxes)
        assert derived.smem_bytes <= SMEM_BYTES


@pytest.mark.parametrize("out_dtype", [DType.BF16, DType.F32])
@pytest.mark.parametrize("arch", ARCHS)
def test_few_may_be_chosen(arch: Arch, out_dtype: DType) -> None:
    problem = replace(LAYER, out_dtype=out_dtype)
    found = rules(arch, problem.op).candidates(problem)

    assert 1 <= len(found) <= 12
    assert all(check(config, arch) for config in found)
    assert jitgen.select(problem, arch).config in found


def test_large_tiles_are_for_many_columns() -> None:
    """A gradient of few tiles is cut smaller, so that more SMs have one."""
    small = replace(LAYER, groups=1, n=512, k=256)
    many, few = (jitgen.select(each, "sm_90a").config for each in (LAYER, small))

    assert many.tile.m * many.tile.n > few.tile.m * few.tile.n


def test_sizes_that_the_tma_unit_does_not_move() -> None:
    assert "have K a multiple of 8 on sm_90a" in size_refusal(replace(LAYER, k=20), Arch.SM_90A)
    assert "have N a multiple of 8 on sm_90a" in size_refusal(replace(LAYER, n=7), Arch.SM_90A)
    assert not size_refusal(replace(LAYER, n=7), Arch.CPU)


def test_other_targets_have_no_kernel() -> None:
    with pytest.raises(UnsupportedConfig, match="sm_100a has no kernel for grouped_gemm_wgrad"):
        jitgen.select(LAYER, "sm_100a")


def test_problems_of_one_s_own() -> None:
    sizes = Sizes.parse("3:70:64:48", CONFIG)

    assert sum(sizes.rows) == 70
    assert str(sizes) == "rows 7 + 24 + 39, N 64, K 48, 2 SMs"
    with pytest.raises(ConfigError, match="is not G:M:N:K"):
        Sizes.parse("3:70:64", CONFIG)
