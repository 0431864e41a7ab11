# SPDX-License-Identifier: Apache-2.0
"""`moe_fc2_dense` before it is compiled: names, rules, choices, samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config import Arch, Config, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, Operands, Pipeline, Schedule, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.moe_fc2_dense.samples import Sizes, make
from jitgen.targets import devices
from jitgen.targets.legality import check, rules, target
from jitgen.targets.protocol import Candidate
from tests.refusals import assert_refused
from tests.targets import EACH

CONFIG = MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128))
LAYER = MoEFc2DenseProblem(groups=256, m=64, n=7168, k=256)
BLACKWELLS = (Arch("sm_100a"), Arch("sm_103a"))
MXFP8 = Operands(scale_granularity=ScaleGranularity.MX32)
MXFP4 = replace(MXFP8, a_dtype=DType.E2M1, b_dtype=DType.E2M1)
NVFP4 = replace(MXFP4, scale_granularity=ScaleGranularity.NV16)
ARCHS = [each for each in EACH if "moe_fc2_dense" in target(each.values[0]).operations]


@pytest.mark.parametrize(
    "words",
    [
        "e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_raster8",
        "e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_bias",
        "ragged_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1",
    ],
)
def test_what_is_no_name(words: str) -> None:
    """A default is never written, and there is neither a bias nor a layout."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(f"moe_fc2_dense_{words}_sm_90a")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"operands": Operands(a_dtype=DType.BF16, b_dtype=DType.BF16)}, "E_MMA"),
        ({"operands": Operands(scale_granularity=ScaleGranularity.ROW)}, "E_SCALES"),
        ({"tile": Tile(m=256, n=128, k=128)}, "E_WGMMA_M"),
        ({"tile": Tile(m=64, n=200, k=128)}, "E_WGMMA_N"),
        ({"tile": Tile(m=64, n=128, k=64)}, "E_TILE_K"),
        ({"cluster": Cluster(m=2, n=2)}, "E_CLUSTER"),
        ({"schedule": Schedule(split_k=3)}, "E_SPLIT_K"),
        ({"cluster": Cluster(n=2), "schedule": Schedule(split_k=2)}, "E_SPLIT_K"),
        ({"pipeline": Pipeline(num_acc_stage=2)}, "E_ACC_STAGE"),
        ({"pipeline": Pipeline(num_ab_stage=10)}, "E_SMEM"),
    ],
    ids=str,
)
def test_rules_of_sm_90a(change: dict[str, object], code: str) -> None:
    """Each with a legal neighbour."""
    assert_refused(replace(CONFIG, **change), "sm_90a", code)  # type: ignore[arg-type]


@pytest.mark.parametrize("arch", BLACKWELLS)
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"operands": Operands(a_dtype=DType.BF16, b_dtype=DType.BF16)}, "E_MMA"),
        ({"operands": replace(MXFP8, b_dtype=DType.E2M1)}, "E_MMA"),
        ({"operands": Operands(a_dtype=DType.E2M1, b_dtype=DType.E2M1)}, "E_SCALES"),
        ({"operands": Operands(scale_granularity=ScaleGranularity.NV16)}, "E_SCALES"),
        ({"operands": Operands(scale_granularity=ScaleGranularity.ROW)}, "E_SCALES"),
        ({"operands": NVFP4}, "E_TILE_K"),
        ({"operands": MXFP8, "pipeline": Pipeline(num_acc_stage=4)}, "E_TMEM"),
        ({"operands": MXFP8, "pipeline": Pipeline(num_ab_stage=6)}, "E_SMEM"),
        ({"tile": Tile(m=64, n=128, k=128)}, "E_MMA_M"),
        ({"tile": Tile(m=128, n=192, k=128)}, "E_MMA_N"),
        ({"tile": Tile(m=128, n=32, k=128)}, "E_MMA_N"),
        ({"tile": Tile(m=128, n=128, k=256)}, "E_TILE_K"),
        ({"tile": Tile(m=256, n=128, k=128)}, "E_TWO_CTA"),
        ({"schedule": Schedule(two_cta=True)}, "E_TWO_CTA"),
        ({"cluster": Cluster(m=2, n=2)}, "E_CLUSTER"),
        ({"schedule": Schedule(split_k=3)}, "E_SPLIT_K"),
        ({"cluster": Cluster(n=2), "schedule": Schedule(split_k=2)}, "E_SPLIT_K"),
        ({"tile": Tile(m=128, n=64, k=128), "schedule": Schedule(split_k=4)}, "E_SPLIT_K"),
        ({"pipeline": Pipeline(num_acc_stage=5)}, "E_TMEM"),
        ({"pipeline": Pipeline(num_ab_stage=10)}, "E_SMEM"),
    ],
    ids=str,
)
def test_rules_of_sm_100a(arch: Arch, change: dict[str, object], code: str) -> None:
    """Each with a legal neighbour, and a reason that says which target it is."""
    config = MoEFc2DenseConfig(tile=Tile(m=128, n=128, k=128))
    verdict = assert_refused(replace(config, **change), arch, code)  # type: ignore[arg-type]
    assert "sm_" not in verdict.reason.replace(str(arch), "")


def test_rules_of_a_cpu() -> None:
    verdict = check(replace(CONFIG, cluster=Cluster(n=2)), "cpu")

    assert verdict.code == "E_CLUSTER"
    assert verdict.proposal == CONFIG


def test_alpha_takes_shared_memory() -> None:
    """What a grouped GEMM of the same parts has, less what alpha and the chunks take."""
    ours = check(CONFIG, "sm_90a").derived
    theirs = check(CONFIG.gemm, "sm_90a").derived

    assert ours is not None
    assert theirs is not None
    assert ours.num_ab_stage <= theirs.num_ab_stage  # type: ignore[attr-defined]
    stages = ours.num_ab_stage  # type: ignore[attr-defined]
    fixed = 4 * (2 * (2 * 32 + 2) + 64)
    grown: Any = check(
        replace(CONFIG.gemm, pipeline=Pipeline(num_ab_stage=stages)), "sm_90a"
    ).derived
    listed = 4 * (grown.max_entries + 1)  # tiles with rows: here every token is there
    assert listed > 4
    assert ours.smem_bytes - (grown.smem_bytes - listed) in range(  # type: ignore[attr-defined]
        fixed + stages * 256 - 1024, fixed + stages * 256 + 1024
    )


@pytest.mark.parametrize(("arch", "most"), [("sm_90a", 12), *((arch, 5) for arch in BLACKWELLS)])
@pytest.mark.parametrize("tokens", [1, 32, 64, 128, 384])
def test_few_may_be_chosen(arch: str, most: int, tokens: int) -> None:
    """And more tokens never take less time."""
    choice = jitgen.select(LAYER.with_mean(tokens), arch)
    more = jitgen.select(LAYER.with_mean(2 * tokens), arch)

    assert 1 < len(choice.candidates) <= most
    assert choice.candidates[0].cost <= more.candidates[0].cost
    assert all(check(each.config, arch) for each in choice.candidates)


def of(types: Operands, problem: MoEFc2DenseProblem = LAYER) -> MoEFc2DenseProblem:
    return replace(problem, a_dtype=types.a_dtype, scale_granularity=types.scale_granularity)


@pytest.mark.parametrize("arch", BLACKWELLS)
@pytest.mark.parametrize("types", [MXFP8, MXFP4, NVFP4], ids=lambda types: types.text)
def test_scales_of_the_tensor_core_have_the_same_tiles(arch: Arch, types: Operands) -> None:
    """A stage of each is 128 bytes deep, and three of sums leave room for scales."""
    theirs = jitgen.select(LAYER, arch).candidates
    ours = jitgen.select(of(types), arch).candidates

    def shapes(candidates: tuple[Candidate, ...]) -> set[object]:
        return {
            (each.config.tile.m, each.config.tile.n, each.config.schedule) for each in candidates
        }

    assert shapes(ours) == shapes(theirs)
    for each in ours:
        assert each.config.operands == types
        assert each.config.tile.k * types.a_dtype.bits == 8 * 128
        assert each.config.pipeline.num_acc_stage == 3
        assert check(each.config, arch).derived.tmem_columns <= 512  # type: ignore[union-attr]


def test_sums_of_experts_are_promoted_less_often() -> None:
    """With one stage nothing hides a promotion: of long sums it takes little."""
    config = MoEFc2DenseConfig(
        tile=Tile(m=256, n=128, k=128), cluster=Cluster(m=2), schedule=Schedule(two_cta=True)
    )
    rules_of, device = rules("sm_100a", config.op), devices.find("sm_100a", None)

    def cost(types: Operands, k: int) -> float:
        problem = of(types, replace(LAYER, m=256, k=k))
        chosen = replace(config, operands=types)
        return rules_of.predict(problem, chosen, device, device.num_sms).cost

    blocks, atoms = ([cost(types, k) for k in (128, 2048)] for types in (Operands(), MXFP8))
    assert atoms[0] == blocks[0]
    assert atoms[1] < 0.95 * blocks[1]


def test_other_scales_are_refused_elsewhere() -> None:
    with pytest.raises(UnsupportedConfig, match="no kernel for e4m3 x e4m3"):
        jitgen.select(of(MXFP8), "sm_90a")
    verdict = check(replace(CONFIG, operands=MXFP8), "sm_90a")

    assert verdict.code == "E_SCALES"
    assert "mx32 scales have no sm_90a kernel with experts along K" in verdict.reason


def test_a_b200_takes_more_ctas_for_few_tokens() -> None:
    """On paper: 56 tiles of 128 columns are split, for there are 148 SMs; a pair is for many."""
    few, many = (jitgen.select(LAYER.with_mean(tokens), "sm_100a") for tokens in (32, 256))

    assert few.config.schedule.split_k == 2
    assert few.candidates[0].limiter == "stream"
    assert many.config.schedule.two_cta
    assert many.candidates[0].limiter == "multiply"


@pytest.mark.parametrize("tokens", [8, 64, 256])
def test_no_kernel_of_a_b200_is_faster_than_its_memory(tokens: int) -> None:
    """The weights of the experts that are needed cross it once, at most at the published rate."""
    problem = LAYER.with_mean(tokens)
    for candidate in jitgen.select(problem, "sm_100a").candidates:
        assert candidate.traffic_bytes == problem.traffic_bytes
        assert candidate.cost > problem.traffic_bytes / 8e6


def test_routing_decides_what_is_read() -> None:
    """Few tokens need few experts, and a token with all of them needs all."""
    one, many = LAYER.with_mean(1), LAYER.with_mean(10_000)

    assert one.live_experts(1) == pytest.approx(8)
    assert many.live_experts(10_000) == pytest.approx(256)
    assert one.traffic_bytes < LAYER.traffic_bytes / 10
    assert replace(one, top_k=999).live_experts(1) == 256


def test_sizes_that_no_vector_covers_are_refused() -> None:
    with pytest.raises(UnsupportedConfig, match="K a multiple of 16"):
        jitgen.select(replace(LAYER, k=264), "sm_90a")
    assert jitgen.select(replace(LAYER, k=264), "cpu").config


@pytest.mark.parametrize("arch", ARCHS)
def test_samples_tell_right_from_wrong(arch: Arch) -> None:
    """The answer itself is right; a unit in the last place, a NaN and what is missing are not."""
    config = jitgen.select(replace(LAYER, n=128), arch).config
    for number, sizes in enumerate(Sizes.of(config, arch)):
        for is_exact in ((True,), (True, False), (False,))[number]:  # the first is large
            case = make(config, sizes, is_exact=is_exact)
            assert case.wrong() == case.out.numel()
            case.out.copy_(case.expected)
            assert case.wrong() == 0
            case.out[-1, -1] = case.out[-1, -1] * 1.02 + 1
            assert case.wrong() == 1
            assert case.results()[0].is_wrong.sum() == 1


def test_samples_have_experts_without_tokens() -> None:
    """Whose weights are NaN, and between the columns of alpha there is NaN, too."""
    case = make(CONFIG, Sizes(tokens=5, experts=12, n=16, k=16, top_k=2), is_exact=True)
    alpha = case.arguments["router_weights"]
    idle = ~(alpha != 0).any(0)

    assert 2 <= int(idle.sum()) < 12
    assert bool(case.arguments["b"][idle].float().isnan().all())
    assert bool(torch.as_strided(alpha, (12, 3), (8, 1), 5).isnan().all())
    assert bool(((alpha != 0).sum(1) == 2).all())


def test_problems_of_the_command_line() -> None:
    sizes = Sizes.parse("8:33:128:256", CONFIG)

    assert (sizes.experts, sizes.tokens, sizes.n, sizes.k) == (8, 33, 128, 256)
    with pytest.raises(ConfigError, match="E:T:N:I"):
        Sizes.parse("8:33:128", CONFIG)
