# SPDX-License-Identifier: Apache-2.0
"""
Mistakes made on purpose in a kernel of ldmatrix and mma.sync with scales.

The unchanged kernel is right; each edit must be found in the eager mode, in every repetition.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.errors import MachineFault
from tests.emulator.mutation import WRONG, Mutation, assert_found, by_name, text_of
from tests.emulator.program import run_ptx

ONE, TWO = 0x38383838, 0x40404040
MMA_SYNC = f"""
mov.u32 %r0, %tid.x;
shl.b32 %r1, %r0, 4;
add.u32 %r1, %r1, 0x800;
and.b32 %r2, %r0, 2;
setp.eq.u32 %p0, %r2, 0;
selp.b32 %r3, {ONE}, {TWO}, %p0;
setp.lt.u32 %p1, %r0, 48;
@%p1 st.shared.v4.b32 [%r1], {{%r3, %r3, %r3, %r3}};
bar.sync 0;
and.b32 %r4, %r0, 31;
and.b32 %r5, %r4, 15;
shl.b32 %r5, %r5, 5;
and.b32 %r6, %r4, 16;
add.u32 %r5, %r5, %r6;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r5+0x800];
and.b32 %r7, %r4, 7;
shl.b32 %r7, %r7, 5;
and.b32 %r8, %r4, 8;
shl.b32 %r8, %r8, 1;
add.u32 %r7, %r7, %r8;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r14, %r15}}, [%r7+0xa00];
mov.b32 %r16, 0x827f8180;
setp.eq.u32 %p2, %r2, 0;
selp.b32 %r17, %r16, 0x86838584, %p2;
mov.b32 %r18, 0;
mov.b16 %rs0, 0;
mov.b16 %rs1, 1;
mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0
    {{%r20, %r21, %r22, %r23}}, {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}},
    {{%r18, %r18, %r18, %r18}}, %r17, {{%rs0, %rs0}}, %r16, {{%rs1, %rs0}};
"""

MMA_SYNCS = [
    Mutation("no barrier", "bar.sync 0;", "", ("race", "st.shared", "ldmatrix")),
    Mutation("another byte of scales of a", "{%rs0, %rs0}", "{%rs1, %rs0}", (WRONG,)),
    Mutation("another thread's scales of a", "{%rs0, %rs0}", "{%rs0, %rs1}", (WRONG,)),
    Mutation("another byte of scales of b", "{%rs1, %rs0}", "{%rs0, %rs0}", (WRONG,)),
    Mutation(
        "a byte that differs",
        "mov.b16 %rs1, 1;",
        "cvt.u16.u32 %rs1, %r4;",
        ("fault", "differs between threads"),
    ),
    Mutation("another type", "f32.e4m3.e4m3", "f32.e5m2.e4m3", (WRONG,)),
    Mutation("unwritten operands", "%r0, 48;", "%r0, 40;", ("uninitialised", "0xa80", "ldmatrix")),
    Mutation(
        "a misaligned row",
        "[%r7+0xa00]",
        "[%r7+0xa08]",
        ("fault", "not a multiple of 16", "ldmatrix"),
    ),
    Mutation(
        "an address out of bounds",
        "[%r7+0xa00]",
        "[%r7+0x1400]",
        ("fault", "out of bounds", "ldmatrix"),
    ),
    Mutation("another accumulator", "mov.b32 %r18, 0;", "mov.b32 %r18, 0f3f800000;", (WRONG,)),
    Mutation(
        "a barrier for one warp",
        "bar.sync 0;",
        "bar.sync 0, 32;",
        ("fault", "64 threads arrive of 32"),
    ),
]


def run_mma_sync(text: str) -> list[str]:
    """Return what is found in a kernel like `MMA_SYNC`."""
    try:
        done = run_ptx(text, threads=64)
    except MachineFault as fault:
        return [text_of(fault)]
    thread = np.arange(64) % 32
    messages = [str(finding) for finding in done.machine.findings.values()]
    for place in range(4):
        row, column = thread // 4 + place // 2 * 8, thread % 4 * 2 + place % 2
        expected: NDArray[np.int64] = 32 * 2 * 4 * (1 + row % 2) * (1 + column % 2)
        if (done.register(f"%r2{place}").view(np.float32) != expected).any():
            return [*messages, WRONG]
    return messages


def test_the_unchanged_mma_kernel() -> None:
    assert run_mma_sync(MMA_SYNC) == []


@pytest.mark.parametrize("mutation", MMA_SYNCS, ids=by_name)
def test_mma_sync(mutation: Mutation) -> None:
    found = run_mma_sync(mutation.edit(MMA_SYNC))
    assert_found(found, mutation.found)
    assert run_mma_sync(mutation.edit(MMA_SYNC)) == found
