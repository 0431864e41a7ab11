# SPDX-License-Identifier: Apache-2.0
"""Tensor memory, matrix instructions and pairs of CTAs of sm_100a."""

from __future__ import annotations

from tests.compile.mutations import WAIT, drop, plus, swap
from tests.compile.mutations_sm_100a import (
    CONTIGUOUS,
    ONE,
    PAIR,
    SHARED,
    ptx,
    source,
)

ALL_HAVE_READ = (
    "        cute.arch.barrier(barrier_id=2, number_of_threads=32 * UPDATE_WARPS)"
    "  # all have read\n"
)

TENSOR_MEMORY = (
    source(
        ONE,
        "too few columns of tensor memory",
        "fault",
        ("TMEM_COLUMNS = 128", "TMEM_COLUMNS = 64"),
        names=("multiply",),
    ),
    source(
        PAIR,
        "products go to the next stage of sums",
        "race",
        ("acc[None, None, None, total.index]", "acc[None, None, None, 1 - total.index]"),
        names=("multiply",),
    ),
    source(
        ONE,
        "sums are read from the next stage",
        "race",
        ("0, column, stage]", "0, column, 1 - stage]"),
        names=("multiply",),
    ),
    source(
        PAIR,
        "the halves of the columns are exchanged",
        "wrong",
        ("column = half * (HALF_N // READ_N)", "column = (1 - half) * (HALF_N // READ_N)"),
    ),
    source(
        ONE,
        "a warp reads the lanes of the next one",
        "fault",
        ("reader_of(acc, block_row)", "reader_of(acc, (block_row + 32) % 128)"),
        names=("read_sums",),
    ),
    source(
        ONE,
        "a warp stores the rows of the next one",
        "wrong",
        ("first_row(work) + block_row", "first_row(work) + (block_row + 32) % 128"),
    ),
    source(
        ONE,
        "tensor memory is freed before the last read",
        "fault",
        (
            (
                "        update_tiles(schedule, plans, scales, sums, sums_in(address), store)\n"
                "        tensor_memory.relinquish_alloc_permit()\n"
                f"{ALL_HAVE_READ}        tensor_memory.free(address)\n"
            ),
            (
                "        tensor_memory.relinquish_alloc_permit()\n"
                f"{ALL_HAVE_READ}        tensor_memory.free(address)\n"
                "        update_tiles(schedule, plans, scales, sums, sums_in(address), store)\n"
            ),
        ),
        names=("multiply",),
    ),
    source(
        ONE, "tensor memory is never freed", "exit", ("        tensor_memory.free(address)\n", "")
    ),
    source(
        ONE,
        "no barrier before tensor memory is freed",
        "race",
        (ALL_HAVE_READ, ""),
        names=("read_sums",),
    ),
    ptx(
        PAIR,
        "a pair frees without its peer",
        "race",
        drop(f"({WAIT})\nDONE:\n}}\nmov.b32 %r#, #;\ntcgen05.dealloc"),
    ),
    ptx(
        PAIR,
        "half of the tensor memory is freed",
        "fault",
        swap("mov.b32 %r#, (#);\ntcgen05.dealloc", "64"),
        names=("grouped_gemm_kernel",),
    ),
    source(
        ONE,
        "the MMA warp does not wait for the address",
        "deadlock",
        ("            tensor_memory.wait_for_alloc()\n            address", "            address"),
    ),
    ptx(
        PAIR,
        "tensor memory is taken by one CTA of a pair for itself",
        "fault",
        swap("tcgen05.alloc.cta_group::(2)", "1"),
        names=("grouped_gemm_kernel",),
    ),
    ptx(
        ONE,
        "the address of tensor memory is read before it is written",
        "race",
        drop("(bar.sync 1, 288;)"),
        names=("grouped_gemm_kernel",),
    ),
    ptx(
        PAIR,
        "the instruction takes half of the columns",
        "uninitialised",
        swap("mov.b32 %r#, (269484048);", lambda t: str(int(t) - (4 << 17))),
        names=("read_sums",),
    ),
    ptx(
        PAIR,
        "the instruction takes twice the columns",
        "fault",
        swap("mov.b32 %r#, (269484048);", lambda t: str(int(t) + (8 << 17))),
        names=("multiply",),
    ),
    ptx(
        PAIR,
        "the instruction takes the rows of one CTA",
        "uninitialised",
        swap("mov.b32 %r#, (269484048);", lambda t: str(int(t) - (8 << 24))),
        names=("read_sums",),
    ),
    ptx(
        ONE,
        "the instruction takes a for e5m2",
        "wrong",
        swap("mov.b32 %r#, (#);\ntcgen05.mma", plus(1 << 7)),
    ),
    ptx(
        ONE,
        "the instruction negates a",
        "wrong",
        swap("mov.b32 %r#, (#);\ntcgen05.mma", plus(1 << 13)),
    ),
    ptx(
        ONE,
        "a descriptor of b is one instruction behind",
        "wrong",
        swap("add.s32 %r#, %r#, (4);\nmov.b64", "2"),
    ),
    source(
        ONE,
        "the first product of a block is added to what was there",
        "uninitialised",
        ("start.set(tcgen05.Field.ACCUMULATE, False)", "start.set(tcgen05.Field.ACCUMULATE, True)"),
        names=("multiply",),
    ),
    source(
        ONE,
        "products of a block replace one another",
        "wrong",
        ("go_on.set(tcgen05.Field.ACCUMULATE, True)", "go_on.set(tcgen05.Field.ACCUMULATE, False)"),
    ),
    source(
        PAIR,
        "both CTAs of a pair start instructions",
        "deadlock",
        ("    num_blocks = num_blocks if rank_of_pair() == 0 else 0\n", ""),
    ),
    source(
        PAIR,
        "the odd CTA of a pair starts instructions",
        "deadlock",
        ("if rank_of_pair() == 0", "if rank_of_pair() == 1"),
    ),
    source(
        PAIR,
        "the odd CTA loads the rows of the even one",
        "deadlock",
        ("    row = first_row(work)\n    num_parts", "    row = work.row\n    num_parts"),
    ),
    source(
        PAIR,
        "both CTAs load the same half of b",
        "wrong",
        ("half = work.b_tile * 2 + rank_of_pair()", "half = work.b_tile * 2"),
    ),
    source(
        PAIR,
        "the CTAs exchange their halves of b",
        "wrong",
        ("half = work.b_tile * 2 + rank_of_pair()", "half = work.b_tile * 2 + 1 - rank_of_pair()"),
    ),
    source(
        PAIR,
        "the odd CTA takes the scales of the even one's rows",
        "wrong",
        ("row = first_row(work) // 4 * 4", "row = work.row // 4 * 4"),
    ),
    source(
        PAIR,
        "the odd CTA stores to the even one's rows",
        "race",
        ("first_row(work) + block_row", "work.row + block_row"),
        names=("store_block",),
    ),
    source(
        PAIR,
        "sums are free when the warps of one CTA gave them back",
        "deadlock",
        ("UPDATE_WARPS * CTAS,", "UPDATE_WARPS,"),
    ),
    ptx(
        PAIR,
        "stages are given back to the even CTA only",
        "deadlock",
        swap("mov.b16 %rs#, (3);\ntcgen05.commit", "1"),
    ),
    ptx(
        PAIR,
        "operands of the odd CTA arrive at its own barrier",
        "fault",
        swap("complete_tx::bytes.L2::cache_hint(.cta_group::2)", ""),
        names=("copy_b",),
    ),
    source(
        CONTIGUOUS,
        "the odd CTA's rows of a contiguous tile are the even one's",
        "wrong",
        ("from_row(a.gmem, first_row(work))", "from_row(a.gmem, work.row)"),
    ),
    source(
        SHARED,
        "a multicast reaches one CTA",
        "deadlock",
        ("Int16((1 << CLUSTER_SIZE) - 1)", "Int16(1)"),
    ),
    source(
        SHARED,
        "a stage is free when one CTA's products are done",
        "deadlock",
        ("CLUSTER_M + CLUSTER_N - 1", "1"),
    ),
    source(
        SHARED,
        "both CTAs load the first half of a",
        "race",
        ("schedule.rank_n, CLUSTER_N", "0, CLUSTER_N")
        if False
        else (
            "(TILE_M, TILE_K), 0, schedule.rank_n, CLUSTER_N",
            "(TILE_M, TILE_K), 0, 0, CLUSTER_N",
        ),
        names=("copy_a",),
    ),
)
