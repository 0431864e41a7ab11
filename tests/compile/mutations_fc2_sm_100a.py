# SPDX-License-Identifier: Apache-2.0
"""Mistakes in `moe_fc2_dense` of sm_100a: who plans, who is handed what, and what weighs sums."""

from __future__ import annotations

from jitgen.ops.moe_fc2_dense.samples import Sizes
from tests.compile.mutations_sm_100a import source

ONE = "FC2, one CTA"
PAIR = "FC2, a pair"
SPLIT = "FC2, experts of two CTAs"

PROGRAMS = {
    ONE: (
        "moe_fc2_dense_e4m3_e4m3_block128_bf16_t128x64x128_c1x1_acc2_sm_100a",
        Sizes(tokens=133, experts=11, n=72, k=144, top_k=2, num_sms=1),
    ),
    PAIR: (
        "moe_fc2_dense_e4m3_e4m3_block128_bf16_t256x64x128_c2x1_acc2_twocta_sm_100a",
        Sizes(tokens=257, experts=11, n=72, k=144, top_k=2, num_sms=2),
    ),
    SPLIT: (
        "moe_fc2_dense_e4m3_e4m3_block128_bf16_t128x64x128_c1x1_acc2_splitk2_sm_100a",
        Sizes(tokens=70, experts=11, n=72, k=144, top_k=2, num_sms=2),
    ),
}
"""Kernels, and problems that wrap every pipeline and give each CTA several tiles."""

_ALPHA = "cute.copy(*k_block(alpha_copies, (0, expert), scale.index), tma_bar_ptr=full)"

EXPERTS = (
    source(ONE, "no alpha is loaded", "deadlock", (f"                {_ALPHA}\n", "")),
    source(
        ONE,
        "the bytes of alpha are not expected",
        "deadlock",
        ("tx_count=2 * SCALE_BOX * 4", "tx_count=SCALE_BOX * 4"),
    ),
    source(
        ONE,
        "alpha is that of the first expert",
        "wrong",
        (_ALPHA, _ALPHA.replace("(0, expert)", "(0, 0)")),
    ),
    source(
        ONE,
        "each k-block has the activation scales of its expert's first one",
        "wrong",
        ("k_block(scale_copies, (k, expert)", "k_block(scale_copies, (0, expert)"),
    ),
    source(
        ONE,
        "alpha is left out of the promotion",
        "wrong",
        ("            a_scale *= scales.alpha.smem[row, 0, row_scale.index]\n", ""),
    ),
    source(
        ONE,
        "sums go on from the tile before",
        "wrong",
        ("    total.fill(0.0)\n    part", "    part"),
    ),
    source(
        ONE,
        "no wait for a chunk",
        "uninitialised",
        ("    scales.pipeline.consumer_wait(state)\n", ""),
    ),
    source(
        ONE,
        "the MMA warp gives no chunk back",
        "deadlock",
        (
            "give_back(scales.pipeline, chunk)\n            chunk.advance()\n            for",
            "chunk.advance()\n            for",
        ),
    ),
    source(
        ONE,
        "a chunk is free when the update warps have read it",
        "fault",
        ("        UPDATE_WARPS + 2,\n", "        UPDATE_WARPS,\n"),
    ),
    source(
        ONE,
        "the load warp takes a place for an expert",
        "wrong",
        ("scales.sPlaces[j, i, chunk.index]", "scales.sPlaces[1 - j, i, chunk.index]"),
    ),
    source(
        ONE,
        "out is stored a block of rows further down",
        "wrong",
        ("from_row(store.boxes, row)", "from_row(store.boxes, row + 32)"),
    ),
    source(
        PAIR,
        "each CTA of a pair plans for tokens of its own",
        "deadlock",
        (
            "first_row = work.row - schedule.rank_m * TILE_M",
            "first_row = work.row + rank_of_pair() * TILE_M",
        ),
    ),
    source(
        PAIR,
        "both CTAs of a pair multiply an expert",
        "deadlock",
        ("num_blocks if rank_of_pair() == 0 else 0", "num_blocks"),
    ),
    source(
        PAIR,
        "the odd CTA has the weights of the even one's tokens",
        "wrong",
        ("from_row(source.gmem, first_row(work))", "from_row(source.gmem, work.row)"),
    ),
    source(
        SPLIT,
        "both CTAs take the first experts",
        "wrong",
        (
            "first_expert, num_experts = part_of_k(num_experts, rank)",
            "_, num_experts = part_of_k(num_experts, rank)",
        ),
    ),
)
