# SPDX-License-Identifier: Apache-2.0
"""Mistakes in kernels for one group of few rows: stages, factors, blocks, rounds and the store."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite


def _one_group(name: str, old: str, new: str, kind: str, program: str = "one group") -> Mutation:
    edit = rewrite((old, new))
    return Mutation(name=name, program=program, edit=edit, kind=kind, of_source=True)


_WAIT = "            cute.arch.mbarrier_wait(ring.empty + state.index, state.phase)\n"
_FULL = "        cute.arch.mbarrier_wait(ring.full + state.index, state.phase)\n"
_SYNC = "    sync_math()  # all sums are there, and all factors were read\n"

ONE_GROUP = (
    _one_group("no stage is waited for until it is free", _WAIT, "", "deadlock"),
    _one_group("a stage is multiplied before it is full", _FULL, "", "race"),
    _one_group(
        "a stage is free while it is multiplied",
        "        warpgroup.wait_group(0)\n",
        "",
        "register",
    ),
    _one_group(
        "the bytes of a are not announced",
        "STAGE_BYTES = (UNIT + TOKENS) * BLOCK * BLOCKS",
        "STAGE_BYTES = UNIT * BLOCK * BLOCKS",
        "deadlock",
    ),
    _one_group(
        "one warp frees a stage",
        "mbarrier_init(ring.empty + thread, MATH_WARPS)",
        "mbarrier_init(ring.empty + thread, 1)",
        "fault",
    ),
    _one_group(
        "products of stages add up twice",
        "cute.gemm(mmas[min(k, 1)], acc",
        "cute.gemm(mmas[1], acc",
        "undefined",
    ),
    _one_group(
        "products of unequal blocks count",
        "acc[v + 2 * i + 4 * block] if own == block",
        "acc[v + 2 * i + 4 * block] if own != block",
        "wrong",
    ),
    _one_group(
        "both blocks have the factors of the first",
        "step * BLOCKS + own] for v",
        "step * BLOCKS] for v",
        "wrong",
    ),
    _one_group(
        "both tokens of a thread have the factor of the first",
        "factors[token + v, step",
        "factors[token, step",
        "wrong",
    ),
    _one_group(
        "later rounds have the factors of the first rows",
        "row = cutlass.min(first_row + item % TOKENS, num_rows - 1)",
        "row = cutlass.min(item % TOKENS, num_rows - 1)",
        "wrong",
    ),
    _one_group(
        "later factors are those of the first blocks",
        "block = cutlass.min(first + item // TOKENS, num_blocks - 1)",
        "block = cutlass.min(item // TOKENS, num_blocks - 1)",
        "wrong",
        "one group, deep",
    ),
    _one_group(
        "factors are written while others are read",
        "                sync_math()  # all have read the factors before\n",
        "                pass\n",
        "race",
        "one group, deep",
    ),
    _one_group(
        "all columns have the scales of the first 128",
        "b_scale[0, cta * UNIT // BLOCK, block]",
        "b_scale[0, 0, block]",
        "wrong",
    ),
    _one_group(
        "every round multiplies the first rows",
        "a.boxes[None, turn, step]",
        "a.boxes[None, 0, step]",
        "wrong",
    ),
    _one_group(
        "rows beyond the first round are left out",
        "rounds = cutlass.max(cute.ceil_div(live, TOKENS), 1)",
        "rounds = Int32(1)",
        "wrong",
    ),
    _one_group(
        "a round goes on from the sums of the one before",
        "        total.fill(0.0)\n        for first",
        "        if turn == 0:\n            total.fill(0.0)\n        for first",
        "wrong",
    ),
    _one_group("sums are read before all are there", _SYNC, "", "race"),
    _one_group(
        "the sums of odd blocks are left out",
        "            value += sums[column, token, block]\n",
        "            value += 0.0 * sums[column, token, block]\n",
        "wrong",
    ),
    _one_group(
        "rows beyond the group are stored",
        "rows = cutlass.min(live, cute.size(out, mode=[0])) - first_row",
        "rows = cute.size(out, mode=[0]) - first_row",
        "wrong",
    ),
    _one_group(
        "columns beyond those of the matrix are stored",
        "if cta * UNIT + column < cute.size(out, mode=[1]):",
        "if column < UNIT:",
        "wrong",
    ),
    _one_group(
        "what an earlier kernel writes is read before it has ended",
        "    cute.arch.griddepcontrol_wait()  # before",
        "    # before",
        "race",
    ),
)
"""
In a kernel with four stages, so that few blocks of K go through them twice; where factors are
concerned that shared memory has no room for at once, in one with many blocks of K.
"""
