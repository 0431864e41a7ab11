# SPDX-License-Identifier: Apache-2.0
"""What sm_100a and sm_103a refuse: tuples that others ask for, and many at random."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jitgen.config import Arch, DType, Layout
from jitgen.config.config import SCALES
from jitgen.config.grouped_gemm import (
    GroupedGemmConfig,
)
from jitgen.targets.legality import check
from jitgen.targets.sm_100a.sizes import SMEM_BYTES, TMEM_COLUMNS
from tests.refusals import assert_none_is_compiled, assert_refused, codes_of, random_refusals
from tests.refusals import gemm as config
from tests.strategies import legal_sweep

FEW, NUM_RANDOM = 10, 200
TYPES_AND_TILES = ("E_MMA", "E_SCALES", "E_MMA_M", "E_MMA_N", "E_TILE_K", "E_TWO_CTA", "E_CLUSTER")


ASKED = [
    # tiles of other libraries on such GPUs, of one CTA
    (config(64, 32), "E_MMA_M", "64"),
    (config(64, 64), "E_MMA_M", "64"),
    (config(64, 128), "E_MMA_M", "64"),
    (config(64, 256), "E_MMA_M", "64"),
    (config(128, 16), "E_MMA_N", "16"),
    # for decoding: few columns, or rows where a and b change places; deep stages
    (config(128, 8, 512), "E_MMA_N", "8"),
    (config(256, 8, 512, cluster=(2, 1), two_cta=True), "E_MMA_N", "8"),
    (config(128, 32, 256), "E_TILE_K", "256"),
    (config(128, 128, 256), "E_TILE_K", "256"),
    (config(128, 128, 512), "E_TILE_K", "512"),
    (config(256, 8, cluster=(2, 1), two_cta=True), "E_MMA_N", "8"),
    # pairs without a pair
    (config(256, 128), "E_TWO_CTA", "256"),
    (config(256, 128, two_cta=True), "E_TWO_CTA", "1x1"),
    (config(256, 128, cluster=(1, 2), two_cta=True), "E_TWO_CTA", "1x2"),
    (config(256, 128, cluster=(2, 2), two_cta=True), "E_TWO_CTA", "2x2"),
    (config(128, 128, cluster=(2, 1), two_cta=True), "E_TWO_CTA", "128"),
    # more sums than tensor memory has columns
    (config(128, 256, stages=3), "E_TMEM", "768"),
    (config(256, 256, stages=3, cluster=(2, 1), two_cta=True), "E_TMEM", "768"),
    (config(128, 192, stages=3), "E_TMEM", "576"),
    (config(128, 128, stages=5), "E_TMEM", "640"),
    # clusters
    (config(cluster=(2, 2)), "E_CLUSTER", "2x2"),
    (config(cluster=(4, 1)), "E_CLUSTER", "4x1"),
    (config(cluster=(4, 4)), "E_CLUSTER", "4x4"),
    # parts of K
    (config(split_k=3), "E_SPLIT_K", "3"),
    (config(split_k=2, cluster=(2, 1)), "E_SPLIT_K", "2x1"),
    (config(256, split_k=2, cluster=(2, 1), two_cta=True), "E_SPLIT_K", "2x1"),
    (config(n=192, split_k=2), "E_SPLIT_K", "192"),
    (config(split_k=2, scale_granularity="row"), "E_SPLIT_K", "2"),
    # operand stages
    (config(num_ab_stage=9), "E_SMEM", str(SMEM_BYTES)),
    (config(num_ab_stage=2), "E_STAGES", "3"),
    (config(n=256, out_dtype="f32"), "E_STAGES", "256"),
    # types
    (config(a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor"), "E_MMA", "bf16"),
    (config(a_dtype="e4m3", b_dtype="e2m1"), "E_SCALES", "e2m1"),
    (config(a_dtype="e2m1", b_dtype="e4m3", scale_granularity="mx32"), "E_MMA", "e2m1 x e4m3"),
    (config(out_dtype="e4m3"), "E_MMA", "-> e4m3"),
    (config(scale_granularity="nv16"), "E_SCALES", "nv16"),
]
"""A requested config, its code, and what the reason must name."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("refused", "code", "number"),
    ASKED,
    ids=[f"{number}-{code}" for number, (_, code, _) in enumerate(ASKED)],
)
def test_what_others_ask_for(refused: GroupedGemmConfig, code: str, number: str) -> None:
    """Each rule has its code, its number in the reason, and a legal neighbour."""
    assert_refused(refused, "sm_100a", code, number)
    assert check(refused, "sm_103a").code == code


def at_random(chance: random.Random) -> GroupedGemmConfig:
    """Return a legal config of which one to three fields were replaced, by anything."""
    pick = chance.choice
    m = pick([128, 256])
    fields = {
        "m": m,
        "n": pick([64, 128, 192, 256]),
        "stages": pick([1, 2]),
        "cluster": (m // 128, 1),
        "two_cta": m == 256,
        "layout": pick([*Layout]),
    }
    others: dict[str, list[object]] = {
        "m": [16, 64, 96, 128, 192, 256, 512],
        "n": [8, 16, 48, 96, 160, 224, 256, 320],
        "k": [32, 64, 256, 512],
        "stages": [3, 4, 5, 8],
        "cluster": [(1, 1), (2, 1), (2, 2), (4, 1), (1, 4), (4, 4)],
        "two_cta": [False, True],
        "split_k": [2, 3, 4, 8],
        "num_ab_stage": [2, 6, 9, 12],
        "a_dtype": [DType.BF16, DType.E2M1, DType.F32],
        "out_dtype": [DType.F32, DType.E4M3],
        "scale_granularity": [scales for scales in SCALES if scales != "block128"],
    }
    for field in chance.sample([*others], pick([1, 2, 3])):
        fields[field] = pick(others[field])
    return config(**fields)


@pytest.mark.parametrize("count", [FEW, pytest.param(NUM_RANDOM, marks=pytest.mark.nightly)])
def test_random_tuples(count: int) -> None:
    """A code, a reason with numbers, and a legal proposal of the same layout for each."""
    codes = codes_of(random_refusals(at_random, "sm_100a", count, 100), "sm_100a")

    more = {"E_SPLIT_K", "E_TMEM", "E_SMEM", "E_STAGES"}
    assert count == FEW or codes >= {*TYPES_AND_TILES, *more}


def test_none_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch, cache_root: Path) -> None:
    refused = (config for config, _, _ in ASKED[::4])
    at_will = random_refusals(at_random, "sm_100a", FEW, 100)
    assert_none_is_compiled((*refused, *at_will), "sm_100a", monkeypatch, cache_root)


@pytest.mark.nightly
def test_derived_numbers_fit_the_chip() -> None:
    """Shared memory, registers and columns of every legal config stay within an SM's limits."""
    for legal in legal_sweep(Arch("sm_100a")):
        derived = check(legal, "sm_100a").derived

        assert derived.smem_bytes <= SMEM_BYTES
        columns = derived.tmem_columns
        assert legal.pipeline.num_acc_stage * legal.tile.n <= columns <= TMEM_COLUMNS
        assert columns & (columns - 1) == 0
        assert columns >= 32
        assert derived.ctas == 1 + legal.schedule.two_cta
        assert derived.ctas * 128 == legal.tile.m
        registers = 2 * derived.update_registers + derived.other_registers
        assert registers <= 512, "setmaxnreg: 65536 registers / 128 threads"
        assert derived.update_registers % 8 == derived.other_registers % 8 == 0


@pytest.mark.parametrize(
    ("m", "n", "stages"),
    [
        *[(128, 64, 8), (128, 128, 5), (128, 192, 4), (128, 256, 3)],
        *[(256, 64, 10), (256, 128, 7), (256, 192, 6), (256, 256, 4)],
    ],
)
def test_stages_of_known_tiles(m: int, n: int, stages: int) -> None:
    """As many operand stages as fit beside a tile of results."""
    pair = {"cluster": (2, 1), "two_cta": True} if m == 256 else {}
    derived = check(config(m, n, **pair), "sm_100a").derived

    assert derived.num_ab_stage == stages
