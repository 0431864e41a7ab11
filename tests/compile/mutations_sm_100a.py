# SPDX-License-Identifier: Apache-2.0
"""
Kernels of sm_100a to make mistakes in, problems that show them, and how to write one.

Most are edits of the source, which reads better than its PTX and survives another compiler.
"""

from __future__ import annotations

from jitgen.ops.grouped_gemm.cases import Sizes
from tests.compile.mutations import Edit, Mutation, rewrite

ONE = "one CTA"
PAIR = "a pair"
FEW_ROWS = "a pair, few rows"
SHARED = "a shared by two CTAs"
FULL_LAST = "a shared by two CTAs, the last matrix full"
CONTIGUOUS = "a contiguous pair"
WIDE = "a wide tile"

_PAIR = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t256x64x128_c2x1_acc2_twocta_sm_100a"
_SHARED = "grouped_gemm_masked_e4m3_e4m3_row_bf16_t128x32x128_c1x2_acc1_sm_100a"

PROGRAMS = {
    ONE: (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x64x128_c1x1_acc2_sm_100a",
        Sizes(rows=(133, 0, 70), n=72, k=1424, num_sms=1),
    ),
    PAIR: (_PAIR, Sizes(rows=(257, 0, 70), n=72, k=1424, num_sms=2)),
    FEW_ROWS: (_PAIR, Sizes(rows=(40, 2), n=64, k=400, num_sms=2)),
    SHARED: (_SHARED, Sizes(rows=(133, 0, 70), n=72, k=784, num_sms=2)),
    FULL_LAST: (_SHARED, Sizes(rows=(70, 0, 133), n=72, k=272, num_sms=2)),
    CONTIGUOUS: (
        "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t256x32x128_c2x1_acc2_twocta_sm_100a",
        Sizes(rows=(130, 0, 170), n=40, k=784, num_sms=2),
    ),
    WIDE: (
        "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t128x192x128_c1x1_acc2_sm_100a",
        Sizes(rows=(70,), n=392, k=272, num_sms=1),
    ),
}
"""Kernels, and problems that wrap every pipeline and give each CTA several tiles."""


def source(
    program: str, name: str, kind: str, *edits: tuple[str, str], names: tuple[str, ...] = ()
) -> Mutation:
    """Return a mistake in a source: texts that occur once, and what stands there instead."""
    return Mutation(
        name=name, program=program, edit=rewrite(*edits), kind=kind, names=names, of_source=True
    )


def ptx(program: str, name: str, kind: str, edit: Edit, names: tuple[str, ...] = ()) -> Mutation:
    """Return a mistake in PTX."""
    return Mutation(name=name, program=program, edit=edit, kind=kind, names=names)


JUDGED = {
    "the two commits of a k-block change places": (
        PAIR,
        (
            "            loads.consumer_release(load)\n            sums.producer_commit(total)\n",
            "            sums.producer_commit(total)\n            loads.consumer_release(load)\n",
        ),
        "both wait for the same instructions",
    ),
    "no permit to allocate is relinquished": (
        PAIR,
        ("        tensor_memory.relinquish_alloc_permit()\n", ""),
        "no other CTA on the SM allocates before this CTA exits, which relinquishes it",
    ),
    "the MMA warp leaves while sums are given back": (
        PAIR,
        ("    sums.producer_tail(total)\n", ""),
        "a CTA of a pair stays until its peer's update warps have met it, after their last read",
    ),
    "the load warp leaves while stages are given back": (
        PAIR,
        ("    loads.producer_tail(state)\n", ""),
        "the commit of the last sums, which the update warps wait for, comes after those of stages",
    ),
    "the cluster meets without the writes before": (
        PAIR,
        ("is_relaxed=False", "is_relaxed=True"),
        "the odd CTA's copies of b, which start after a barrier of the CTA, signal the even one",
    ),
    "blocks of rows without any of the group's are stored": (
        ONE,
        (
            "        if block < work.live_end:\n            store_block(",
            "        if True:\n            store_block(",
        ),
        "no row of such a block is the group's, and they are copied one by one",
    ),
}
"""
Edits that are no mistakes: by name the kernel, the text, what replaces it, and why it is right.

They stay in the templates: the reasons hold for these kernels as they are, not for each change.
"""
