# SPDX-License-Identifier: Apache-2.0
"""What sm_120a and sm_121a refuse: tuples that others ask for, and many at random."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.config import Arch, DType, Layout
from jitgen.config.config import SCALES
from jitgen.config.grouped_gemm import (
    Epilogue,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Tile,
)
from jitgen.targets.legality import check, rules
from jitgen.targets.protocol import Refusal
from jitgen.targets.sm_120a.sizes import SMEM_BYTES
from tests.refusals import assert_none_is_compiled, assert_refused, codes_of, gemm, random_refusals
from tests.strategies import legal_sweep

FEW, NUM_RANDOM = 10, 300
MIXED = {"a_dtype": "e4m3", "b_dtype": "e2m1", "scale_granularity": "mx32"}
WIDE = {
    "a_dtype": "bf16",
    "b_dtype": "e2m1",
    "scale_granularity": "mx32",
    "a_scale_granularity": "none",
}
NVFP4 = {"a_dtype": "e2m1", "b_dtype": "e2m1", "scale_granularity": "nv16"}


def config(m: int = 64, n: int = 128, k: int = 128, **fields: Any) -> GroupedGemmConfig:
    return gemm(m, n, k, **fields)


ASKED = [
    # tiles of other libraries on such GPUs
    (config(256, 128, **MIXED), "E_MMA_N", "256"),
    (config(4, 128, **MIXED), "E_MMA_N", "4"),
    (config(12, 128, **MIXED), "E_MMA_N", "12"),
    (config(128, 256, **NVFP4), "E_MMA_M", "256"),
    (config(64, 16, **NVFP4), "E_MMA_M", "16"),
    (config(64, 96, **NVFP4), "E_MMA_M", "96"),
    (config(k=64, **MIXED), "E_TILE_K", "64"),
    (config(k=1024, **NVFP4), "E_TILE_K", "1024"),
    (config(k=256), "E_TILE_K", "128"),
    # more than 99 KB
    (config(128, 128, 512, **MIXED), "E_STAGES", str(SMEM_BYTES)),
    (config(128, 128, 256, **MIXED), "E_STAGES", "51216"),
    (config(128, 128, 512, **NVFP4), "E_STAGES", "1 stages"),
    (config(8, 128, 256, num_ab_stage=6, **MIXED), "E_SMEM", str(SMEM_BYTES)),
    (config(num_ab_stage=1), "E_STAGES", "2"),
    # what these GPUs have not
    (config(cluster=(2, 1)), "E_CLUSTER", "2x1"),
    (config(cluster=(1, 2), **NVFP4), "E_CLUSTER", "1x2"),
    (config(128, 128, two_cta=True), "E_TWO_CTA", "sm_1"),
    (config(stages=2), "E_ACC_STAGES", "2"),
    (config(split_k=2, **MIXED), "E_SPLIT_K", "2"),
    # rows of two groups
    (config(24, layout="contiguous"), "E_TILE_M", "24"),
    (config(96, layout="contiguous", **NVFP4), "E_TILE_M", "96"),
    # types
    (config(a_dtype="f32", b_dtype="f32", scale_granularity="tensor"), "E_MMA", "f32"),
    (config(a_dtype="e2m1", b_dtype="e4m3", scale_granularity="mx32"), "E_MMA", "e4m3"),
    (config(out_dtype="e4m3"), "E_MMA", "-> e4m3"),
    (config(scale_granularity="row"), "E_SCALES", "row"),
    (config(scale_granularity="tensor"), "E_SCALES", "tensor"),
    (config(a_dtype="e2m1", b_dtype="e2m1"), "E_SCALES", "e2m1"),
    (config(b_dtype="e2m1"), "E_SCALES", "e2m1"),
    (config(scale_granularity="nv16"), "E_SCALES", "nv16"),
    (config(a_dtype="bf16", b_dtype="e2m1", scale_granularity="mx32"), "E_MMA", "none and b e2m1"),
    (config(**WIDE | {"b_dtype": "bf16"}), "E_SCALES", "none beside mx32"),
    (config(**WIDE | {"a_dtype": "e4m3"}), "E_SCALES", "none beside mx32"),
    (config(**WIDE | {"scale_granularity": "nv16"}), "E_SCALES", "none beside nv16"),
    (config(128, 128, 256, **WIDE), "E_STAGES", "82960"),
    (config(k=64, **WIDE), "E_TILE_K", "64"),
    (config(safe_selectors=True, **WIDE), "E_SELECTORS", "m16n8k16"),
    # selectors of scales that are all alike
    (config(safe_selectors=True), "E_SELECTORS", "128"),
]
"""A requested config, its code, and what the reason must name."""


@pytest.mark.parametrize(
    ("refused", "code", "number"),
    ASKED,
    ids=[f"{number}-{code}" for number, (_, code, _) in enumerate(ASKED)],
)
def test_what_others_ask_for(refused: GroupedGemmConfig, code: str, number: str) -> None:
    """Each rule has its code, its number in the reason, and a legal neighbour."""
    assert_refused(refused, "sm_120a", code, number)
    assert check(refused, "sm_121a").code == code


@pytest.mark.parametrize("arch", [arch for arch in Arch if not arch.startswith("sm_12")])
def test_only_these_targets_have_scale_selectors(arch: Arch) -> None:
    refused = config(128, safe_selectors=True)
    verdict = check(refused, arch)

    assert verdict.code == "E_SELECTORS"
    assert "sm_120a" in verdict.reason


def at_random(chance: random.Random) -> GroupedGemmConfig:
    """Return a legal config of which one to three fields were replaced, by anything."""
    pick = chance.choice
    fields: dict[str, object] = {
        "m": pick([8, 16, 32, 64, 128]),
        "n": pick([32, 64, 128]),
        "layout": pick([*Layout]),
        **pick([{}, MIXED, NVFP4, WIDE, {**NVFP4, "scale_granularity": "mx32"}]),
    }
    others: dict[str, list[object]] = {
        "m": [4, 12, 24, 40, 96, 136, 256],
        "n": [8, 16, 48, 96, 192, 256],
        "k": [32, 64, 384, 512, 1024],
        "stages": [2, 3, 4],
        "cluster": [(2, 1), (1, 2), (2, 2), (4, 1)],
        "two_cta": [True],
        "split_k": [2, 3, 4, 8],
        "safe_selectors": [True],
        "num_ab_stage": [1, 6, 9, 12],
        "a_dtype": [DType.BF16, DType.F32, DType.E2M1],
        "out_dtype": [DType.F32, DType.E4M3],
        "scale_granularity": [*SCALES],
    }
    for field in chance.sample([*others], pick([1, 2, 3])):
        fields[field] = pick(others[field])
    return config(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [FEW, pytest.param(NUM_RANDOM, marks=pytest.mark.nightly)])
def test_random_tuples(count: int) -> None:
    """A code, a reason with numbers, and a legal proposal of the same layout for each."""
    codes = codes_of(random_refusals(at_random, "sm_120a", count, 120), "sm_120a")

    assert count == FEW or codes >= {code for _, code, _ in ASKED} - {"E_SELECTORS"}


def test_none_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch, cache_root: Path) -> None:
    refused = (config for config, _, _ in ASKED[::4])
    at_will = random_refusals(at_random, "sm_120a", FEW, 120)
    assert_none_is_compiled((*refused, *at_will), "sm_120a", monkeypatch, cache_root)


def test_a_bias_is_legal() -> None:
    biased = replace(config(), epilogue=Epilogue(bias=True))

    assert check(biased, "sm_120a")
    assert check(replace(biased, tile=Tile(m=4, n=128, k=128)), "sm_120a").proposal == replace(
        biased, tile=Tile(m=8, n=128, k=128)
    )


@pytest.mark.nightly
def test_derived_numbers_fit_the_chip() -> None:
    """Shared memory and registers of every legal config stay within an SM's limits."""
    for legal in legal_sweep(Arch("sm_120a")):
        derived = check(legal, "sm_120a").derived
        math_warps = derived.warps_m * derived.warps_n

        assert derived.smem_bytes <= SMEM_BYTES
        assert derived.warps_m * derived.warps_n <= 8
        assert legal.tile.m % (8 * derived.warps_m) == 0
        assert legal.tile.n % (16 * derived.warps_n) == 0
        if derived.math_registers:
            assert derived.threads == 384
            registers = 2 * derived.math_registers + derived.load_registers
            assert registers <= 3 * 168, "setmaxnreg: 65536 registers / 384 threads, by eights"
        else:
            assert derived.threads == 32 * (math_warps + 1)


@pytest.mark.parametrize(
    ("tile", "types", "stages"),
    [
        ((8, 128, 128), MIXED, 8),
        ((8, 128, 256), MIXED, 4),
        ((8, 128, 512), MIXED, 2),
        ((16, 128, 256), MIXED, 4),
        ((32, 128, 256), MIXED, 3),
        ((64, 128, 256), MIXED, 2),
        ((128, 128, 128), MIXED, 3),
        ((8, 64, 512), WIDE, 3),
        ((32, 128, 128), WIDE, 5),
        ((128, 128, 128), WIDE, 2),
        ((64, 128, 256), NVFP4, 3),
        ((128, 128, 256), NVFP4, 2),
        ((8, 128, 128), {}, 5),
        ((128, 128, 128), {}, 2),
    ],
)
def test_stages_of_known_tiles(
    tile: tuple[int, int, int], types: dict[str, object], stages: int
) -> None:
    """As many operand stages as fit in 99 KiB: packed weights take half a byte each there."""
    derived = check(config(*tile, **types), "sm_120a").derived

    assert derived.num_ab_stage == stages


def test_sizes() -> None:
    """K is a multiple of 32 where something is packed, of 16 else; N ends with 16 bytes."""
    sizes = {"layout": "ragged", "groups": 2, "m": 4}
    gemm = rules("sm_120a", "grouped_gemm")
    gemm.check_sizes(GroupedGemmProblem(**sizes, n=2880, k=2880, **MIXED))
    gemm.check_sizes(GroupedGemmProblem(**sizes, n=8, k=32, **WIDE))
    gemm.check_sizes(GroupedGemmProblem(**sizes, n=8, k=16))
    for n, k, types in ((8, 48, MIXED), (8, 48, WIDE), (8, 16, NVFP4), (4, 32, MIXED), (8, 8, {})):
        with pytest.raises(Refusal, match="multiple of"):
            gemm.check_sizes(GroupedGemmProblem(**sizes, n=n, k=k, **types))
