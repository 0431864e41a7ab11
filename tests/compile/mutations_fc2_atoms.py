# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in `moe_fc2_dense` of sm_100a where the tensor core applies the scales: whose scales, what
a sum is of, and what weighs it. `mutations_fc2_sm_100a` has those of block scales.
"""

from __future__ import annotations

from jitgen.ops.moe_fc2_dense.samples import Sizes
from tests.compile.mutations_sm_100a import source

ONE = "FC2 with scales in atoms, one CTA"
PAIR = "FC2 with scales in atoms, a pair"
SPLIT = "FC2 with scales in atoms, experts of two CTAs"

PROGRAMS = {
    ONE: (
        "moe_fc2_dense_e4m3_e4m3_mx32_bf16_t128x64x128_c1x1_acc2_sm_100a",
        Sizes(tokens=133, experts=14, n=136, k=160, top_k=2, num_sms=1),
    ),
    PAIR: (
        "moe_fc2_dense_e2m1_e2m1_nv16_bf16_t256x64x256_c2x1_acc2_twocta_sm_100a",
        Sizes(tokens=257, experts=11, n=72, k=288, top_k=2, num_sms=2),
    ),
    SPLIT: (
        "moe_fc2_dense_e2m1_e2m1_mx32_bf16_t128x64x256_c1x1_acc3_splitk2_sm_100a",
        Sizes(tokens=70, experts=11, n=72, k=288, top_k=2, num_sms=2),
    ),
}
"""Kernels, and problems that wrap every pipeline and give each CTA several tiles."""

_ALPHA = "cute.copy(*k_block(alpha_copies, (0, expert), weight.index), tma_bar_ptr=full)"
_OF_BLOCK = "*k_block(copies, (k, expert), state.index)"
_SHIFT = "shift = work.tile_n * TILE_N % 128 // 32"
_START = "multiply(mmas, of_tile, sum_of_expert, load.index)"
_GO_ON = "multiply(mmas[1:], of_tile, sum_of_expert, load.index)"
_OF_ROWS = "copies_of_atoms(scales.a, first_row(work) // 128, 1)"

ATOMS = (
    source(ONE, "no weights are loaded", "deadlock", (f"                {_ALPHA}\n", "")),
    source(
        ONE,
        "more bytes of weights are expected than come",
        "deadlock",
        ("tx_count=SCALE_BOX * 4", "tx_count=2 * SCALE_BOX * 4"),
    ),
    source(
        ONE,
        "weights are those of the first expert",
        "wrong",
        (_ALPHA, _ALPHA.replace("(0, expert)", "(0, 0)")),
    ),
    source(
        ONE,
        "weights are left out of the promotion of experts",
        "wrong",
        ("promote(total, part, 0, weight)", "promote(total, part, 0, 1.0)"),
    ),
    source(
        ONE,
        "no wait for weights",
        "uninitialised",
        ("            scales.rows.consumer_wait(row_scale)\n", ""),
    ),
    source(
        ONE,
        "each k-block has the scales of its expert's first one",
        "wrong",
        (_OF_BLOCK, _OF_BLOCK.replace("(k, expert)", "(0, expert)")),
    ),
    source(
        ONE,
        "each expert has the scales of the first one",
        "wrong",
        (_OF_BLOCK, _OF_BLOCK.replace("(k, expert)", "(k, 0)")),
    ),
    source(
        ONE,
        "all tokens have the scales of the first 128",
        "wrong",
        (_OF_ROWS, _OF_ROWS.replace("first_row(work) // 128", "0")),
    ),
    source(
        ONE,
        "the bytes of scales in atoms are not expected",
        "deadlock",
        (" + CTAS * SCALE_BYTES", ""),
    ),
    source(ONE, "a tile has the scales of the columns before it", "wrong", (_SHIFT, "shift = 0")),
    source(
        ONE,
        "no scales of b are copied to tensor memory",
        "uninitialised",
        ("    cute.copy(operands.copy_b, operands.tSsSB[scales], operands.tStSB)\n", ""),
    ),
    source(ONE, "each k-block starts the sum of its expert", "wrong", (_GO_ON, _START)),
    source(ONE, "an expert goes on with the sum of another", "uninitialised", (_START, _GO_ON)),
    source(
        ONE,
        "an expert has a k-block less than is loaded",
        "deadlock",
        ("schedule.num_k_blocks - 1, unroll=1", "schedule.num_k_blocks - 2, unroll=1"),
    ),
    source(
        ONE,
        "experts are handed over again with each chunk",
        "wrong",
        ("[(sent + slot) % LISTED_EXPERTS]", "[slot % LISTED_EXPERTS]"),
    ),
    source(
        PAIR,
        "the odd CTA has the scales of the even one's tokens",
        "wrong",
        (_OF_ROWS, _OF_ROWS.replace("first_row(work)", "work.row")),
    ),
    source(
        PAIR,
        "scales of a pair arrive at the CTA that loads them",
        "deadlock",
        (
            "    load = cpasync.CopyBulkTensorTileG2SOp(cta_group())\n    return",
            "    load = cpasync.CopyBulkTensorTileG2SOp()\n    return",
        ),
    ),
    source(
        PAIR,
        "both CTAs of a pair multiply all of an expert",
        "deadlock",
        ("num_experts if rank_of_pair() == 0 else 0", "num_experts"),
    ),
    source(
        SPLIT,
        "both CTAs take the first experts, with scales in atoms",
        "wrong",
        (
            "first_expert, num_experts = part_of_k(num_experts, rank)",
            "_, num_experts = part_of_k(num_experts, rank)",
        ),
    ),
)
