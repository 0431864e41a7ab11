# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose: the emulator finds every one, in the place where it was made."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest

from jitgen.ops.grouped_gemm.cases import Sizes
from jitgen.ops.grouped_gemm_wgrad.samples import Sizes as WgradSizes
from jitgen.ops.moe_fc2_dense.samples import Sizes as Fc2Sizes
from tests import needs
from tests.compile.kernels import often
from tests.compile.mutations import Mutation
from tests.compile.mutations_bias import BIAS
from tests.compile.mutations_early import EARLY
from tests.compile.mutations_extra import EXTRA
from tests.compile.mutations_fc2 import EXPERTS
from tests.compile.mutations_live_tiles import LIVE_TILES
from tests.compile.mutations_one_group import ONE_GROUP
from tests.compile.mutations_order import FENCES, WAITS
from tests.compile.mutations_resources import RESOURCES
from tests.compile.mutations_split_k import EXCHANGE
from tests.compile.mutations_tails import TAILS
from tests.compile.mutations_values import ADDRESSES, ROWS, TRANSACTIONS
from tests.compile.mutations_wgrad import GRADIENTS
from tests.compile.programs import HAS_TWO_PLACES, Programs, assert_found
from tests.covering import covering

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

LISTS = (
    TRANSACTIONS,
    ADDRESSES,
    WAITS,
    FENCES,
    EXCHANGE,
    BIAS,
    RESOURCES,
    EXPERTS,
    ROWS,
    GRADIENTS,
    EARLY,
    LIVE_TILES,
    TAILS,
    EXTRA,
    ONE_GROUP,
)
MUTATIONS = [mutation for mutations in LISTS for mutation in mutations]


def features(mutation: Mutation) -> Iterator[object]:
    """Yield what mistakes differ in: what they are about, where they are, and how they show."""
    yield from (number for number, mutations in enumerate(LISTS) if mutation in mutations)
    yield from (mutation.program, mutation.kind)


OFTEN = covering(sorted(MUTATIONS, key=lambda mutation: mutation.of_source), features)
"""For every push: what needs nothing compiled comes first."""

_FC2 = "moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_sm_90a"
_EARLY = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_ab4_earlyb_sm_90a"
_LISTED = "grouped_gemm_contiguous_e4m3_e4m3_row_bf16_t64x32x128_c1x1_acc1_sm_90a"
_ONE_GROUP = (
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t8x32x256_c1x1_acc1_ab4_streamb_onegroup_sm_90a"
)
_RAGGED = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"
PROGRAMS: dict[str, tuple[str, Any]] = {
    "ragged": (
        _RAGGED,
        Sizes(rows=(133, 0, 70), n=136, k=400, num_sms=2),
    ),
    "ragged, many groups": (
        _RAGGED,
        Sizes(rows=(*[0] * 33, 9), n=8, k=16, num_sms=2),
    ),
    "contiguous": (
        "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a",
        Sizes(rows=(130, 0, 70), n=136, k=400, num_sms=1),
    ),
    "masked": (
        "grouped_gemm_masked_e4m3_e4m3_row_bf16_t64x64x128_c1x2_acc1_sm_90a",
        Sizes(rows=(66, 0, 30), n=136, k=400, num_sms=2),
    ),
    "split K": (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x32x128_c1x1_acc1_splitk2_sm_90a",
        Sizes(rows=(66, 0, 30), n=72, k=400, num_sms=2),
    ),
    "bias, split K": (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_splitk2_bias_sm_90a",
        Sizes(rows=(66, 0, 30), n=72, k=400, num_sms=2),
    ),
    "early b": (
        _EARLY,
        Sizes(rows=(66, 0, 30), n=136, k=784, num_sms=2),
    ),
    "early b, few k-blocks": (
        _EARLY,
        Sizes(rows=(3, 0), n=64, k=144, num_sms=2),
    ),
    "FC2": (
        _FC2,
        Fc2Sizes(tokens=70, experts=26, n=72, k=144, top_k=2, num_sms=2),
    ),
    "FC2, few experts": (
        _FC2,
        Fc2Sizes(tokens=70, experts=3, n=72, k=16, top_k=2, num_sms=1),
    ),
    "FC2, many experts": (
        _FC2,
        Fc2Sizes(tokens=48, experts=90, n=64, k=16, top_k=8, num_sms=1),
    ),
    "live tiles": (
        _LISTED,
        Sizes(rows=(130, 0, 30, 3), n=40, k=144, num_sms=2),
    ),
    "live tiles, more than at once": (
        _LISTED,
        Sizes(rows=(*[0] * 23, 66, 3), n=8, k=16, num_sms=2),
    ),
    "live tiles, more than entries": (
        "grouped_gemm_contiguous_bf16_bf16_row_f32_t64x256x64_c1x1_acc1_sm_90a",
        Sizes(rows=(3, *[0] * 99, 66, 3), n=8, k=8, num_sms=2),
    ),
    "tails": (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_ab4_swaptail_sm_90a",
        Sizes(rows=(9, 104, 41, 3, 64, 40), n=136, k=784, num_sms=1),
    ),
    "extra rows": (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t192x128x128_c1x1_acc1_swaptail_extrarows_sm_90a",
        Sizes(rows=(9, 207, 399, 3), n=136, k=656, num_sms=1),
    ),
    "one group": (
        _ONE_GROUP,
        Sizes(rows=(11,), n=136, k=1408, num_sms=2),
    ),
    "one group, deep": (
        _ONE_GROUP,
        Sizes(rows=(3,), n=8, k=32_640, num_sms=2),
    ),
    "wgrad": (
        "grouped_gemm_wgrad_ragged_bf16_bf16_t128x128x64_c1x1_sm_90a",
        WgradSizes(rows=(70, 0, 3, 330), n=136, k=136, num_sms=1),
    ),
}
"""Kernels, and problems that wrap every pipeline and give each CTA several tiles."""


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(PROGRAMS)


def test_there_are_many() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 40
    assert {mutation.program for mutation in OFTEN} == PROGRAMS.keys()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("modes", ["eager", pytest.param("quick", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_unchanged_programs_are_clean(programs: Programs, name: str, modes: str) -> None:
    """On every push in the mode that mistakes are found in."""
    program = programs[name]
    assert program.findings(program.artifact.ptx, modes) == []


@pytest.mark.sampled(9)
@pytest.mark.parametrize("mutation", often(MUTATIONS, OFTEN, attrgetter("name")))
def test_found(programs: Programs, mutation: Mutation) -> None:
    assert_found(programs[mutation.program], mutation)


REPEATED = [
    mutation for mutation in MUTATIONS if mutation.kind in HAS_TWO_PLACES and not mutation.of_source
][::4]


@pytest.mark.nightly
@pytest.mark.parametrize("mutation", REPEATED, ids=lambda mutation: mutation.name)
def test_found_in_the_same_way_again(programs: Programs, mutation: Mutation) -> None:
    program = programs[mutation.program]
    text = mutation.edit(program.artifact.ptx)
    first, second = (program.findings(text, "quick") for _ in range(2))
    assert first == second
