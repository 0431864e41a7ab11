# SPDX-License-Identifier: Apache-2.0
"""
Mistakes made on purpose in small kernels for what the project's own kernels do not use.

tcgen05 with scale factors in tensor memory, and pairs of CTAs. The unchanged kernels are right in
the quick modes; each edit must be found in one of them, always the same one.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import numbers
from jitgen.emulator.formats.descriptors import Descriptor, Operand
from jitgen.emulator.modes import DEFERRED, EAGER, QUICK, Mode
from jitgen.errors import MachineFault
from tests.emulator.mutation import WRONG, Mutation, assert_found, by_name, text_of
from tests.emulator.tensor_core import (
    WAIT,
    A,
    B,
    Kernel,
    at,
    bits_of,
    commit,
    instruction_bits,
    mma,
    random_raw,
)

# --- tcgen05 with scales in tensor memory --------------------------------------------------------

SCALES_A = Descriptor(start=0x1000, leading=0x800, stride=128, swizzle=0)
SCALES_B = at(SCALES_A, 0x1800)
N, BLOCKS = 32, 2
IDESC = [instruction_bits(128, N, d=block, more=1 << 23 | block << 29) for block in range(BLOCKS)]

LOADED = ", ".join(f"%r5{number}" for number in range(N))
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9+256], 512;"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;"
MMA = "@%p0 tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X"
COMMIT = commit()
SCALED = f"""
mov.u32 %r1, %warpid;
setp.ne.u32 %p3, %r1, 0;
@%p3 bra $L_allocated;
{ALLOC}
$L_allocated:
bar.sync 0;
ld.shared.b32 %r2, [%r9+256];
shl.b32 %r3, %r1, 21;
add.u32 %r3, %r3, %r2;
add.u32 %r7, %r2, 300;
add.u32 %r8, %r2, 308;
mov.b64 %rd1, {bits_of(A)};
mov.b64 %rd2, {bits_of(B)};
mov.b64 %rd3, {bits_of(at(A, A.start + 32))};
mov.b64 %rd4, {bits_of(at(B, B.start + 32))};
mov.b64 %rd5, {bits_of(SCALES_A)};
mov.b64 %rd6, {bits_of(SCALES_B)};
setp.eq.u32 %p1, 0, 0;
setp.ne.u32 %p2, 0, 0;
@%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r7], %rd5;
@%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r8], %rd6;
{MMA} [%r2], %rd1, %rd2, {IDESC[0]}, [%r7], [%r8], %p2;
{MMA} [%r2], %rd3, %rd4, {IDESC[1]}, [%r7], [%r8], %p1;
{COMMIT}
{WAIT}
@%p0 st.shared.b32 [0x2000], %r0;
tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{LOADED}}}, [%r3];
tcgen05.wait::ld.sync.aligned;
add.u32 %r50, %r50, 0;
tcgen05.fence::before_thread_sync;
bar.sync 1, 128;
@%p3 bra $L_freed;
{DEALLOC}
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
$L_freed:
"""


def run_scaled(body: str, mode: Mode) -> list[str]:
    """Return what is found in a kernel like `SCALED`."""
    kernel = Kernel(body, threads=128, columns=0, mode=mode)
    rows = [np.concatenate([random_raw(n, 1), random_raw(n, 2)], axis=1) for n in (128, N)]
    codes = np.random.default_rng(3).integers(0x7C, 0x82, (128 + 128, 4), np.uint8)
    sides = zip(rows, (A, B), (SCALES_A, SCALES_B), np.split(codes, 2), strict=True)
    values = []
    for raw, where, scales_where, scales in sides:
        kernel.put(raw, where, Operand(len(raw), 64))
        lanes = scales.copy().view(np.uint32).reshape(4, 32).T
        kernel.put(np.ascontiguousarray(lanes).view(np.uint8), scales_where, Operand(32, 16))
        factors = numbers.decode(scales, "ue8m0")[: len(raw), :BLOCKS]
        values.append(numbers.elements(raw, "e4m3") * np.repeat(factors, 32, axis=1))
    expected = values[0] @ values[1].T
    try:
        kernel.machine.run()
    except MachineFault as fault:
        return [text_of(fault)]
    near = np.allclose(kernel.registers("r5", N).view(np.float32).T, expected, rtol=1e-5, atol=1e-4)
    return kernel.findings if near else [*kernel.findings, WRONG]


def field(descriptor: Descriptor, old: int, new: int, place: int) -> tuple[str, str]:
    """Return a descriptor's bits, and those with another value in a field."""
    bits = bits_of(descriptor)
    return str(bits), str(bits + ((new - old) << place))


TCGEN05 = [
    Mutation("no wait for the commit", WAIT, "", ("race: read of tensor", ".mma", "tcgen05.ld")),
    Mutation(
        "a wait that goes on",
        "@!%p9 bra $L_wait;",
        "",
        ("race: read of tensor", ".mma", "tcgen05.ld"),
        is_late=True,
    ),
    Mutation(
        "a wait for the other parity",
        "%p9, [%r9], 0;",
        "%p9, [%r9], 1;",
        ("deadlock", "parity 1 of mbarrier"),
    ),
    Mutation("no commit", COMMIT, "", ("deadlock", "0 of 1 arrived", "try_wait")),
    Mutation("two commits", COMMIT, COMMIT * 2, ("arriv",)),
    Mutation("no barrier after the allocation", "bar.sync 0;", "", ("shared memory", "ld.shared")),
    Mutation(
        "no barrier before it is freed", "bar.sync 1, 128;", "", ("race", "tcgen05.ld", "dealloc")
    ),
    Mutation("not freed", DEALLOC, "", ("exit", "512 columns", "not freed")),
    Mutation(
        "half is freed", "%r2, 512;", "%r2, 256;", ("fault", "256 columns from column 0", "dealloc")
    ),
    Mutation(
        "an allocation of 48", "[%r9+256], 512", "[%r9+256], 48", ("fault", "48 columns", "alloc")
    ),
    Mutation(
        "too small an allocation", "512;", "256;", ("fault", "column", "allocated", "tcgen05")
    ),
    Mutation(
        "lanes of another warp",
        "shl.b32 %r3, %r1, 21;",
        "mov.u32 %r3, 0;",
        ("fault", "its own begin at 32", "tcgen05.ld"),
    ),
    Mutation(
        "a load of other columns",
        "}, [%r3];",
        "}, [%r3+16];",
        ("uninitialised", "column 32", "tcgen05.ld"),
    ),
    Mutation(
        "adds to nothing", "[%r8], %p2;", "[%r8], %p1;", ("uninitialised", "never written", ".mma")
    ),
    Mutation("does not add", "[%r8], %p1;", "[%r8], %p2;", (WRONG,)),
    Mutation("scale id of a", str(IDESC[1]), str(IDESC[1] ^ 3 << 29), (WRONG,)),
    Mutation("scale id of b", str(IDESC[1]), str(IDESC[1] ^ 3 << 4), (WRONG,)),
    Mutation("the scales of a for b", "[%r7], [%r8], %p2;", "[%r7], [%r7], %p2;", (WRONG,)),
    Mutation(
        "scales are not copied",
        "@%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r8], %rd6;",
        "",
        ("uninitialised", "column 308", ".mma"),
    ),
    Mutation("stride between rows", *field(A, 64, 32, 32), (WRONG,)),
    Mutation("stride of scales", *field(SCALES_A, 8, 16, 32), ("uninitialised", "tcgen05.cp")),
    Mutation("swizzle", *field(B, 2, 4, 61), (WRONG,)),
    Mutation("start of the second block", *field(at(B, B.start + 32), 0, -1, 0), (WRONG,)),
    Mutation(
        "start beyond shared memory", *field(B, 0, 0x1800, 0), ("fault", "out of bounds", ".mma")
    ),
    Mutation(
        "fewer rows", str(IDESC[0]), str(IDESC[0] ^ (8 ^ 4) << 24), ("fault", "shape 64x32", ".mma")
    ),
    Mutation(
        "fewer columns",
        str(IDESC[0]),
        str(IDESC[0] - (2 << 17)),
        ("uninitialised", "column 16", ".mma"),
    ),
    Mutation("type of a", str(IDESC[0]), str(IDESC[0] | 1 << 7), (WRONG,)),
]


@pytest.mark.parametrize("mode", QUICK, ids=lambda mode: mode.name)
def test_the_unchanged_tcgen05_kernel(mode: Mode) -> None:
    assert run_scaled(SCALED, mode) == []


@pytest.mark.parametrize("mutation", TCGEN05, ids=by_name)
def test_tcgen05(mutation: Mutation) -> None:
    body, mode = mutation.edit(SCALED), DEFERRED if mutation.is_late else EAGER
    found = run_scaled(body, mode)
    assert_found(found, mutation.found)
    assert run_scaled(body, mode) == found


# --- a pair of CTAs ------------------------------------------------------------------------------

PAIR_IDESC = instruction_bits(256, 64)
PAIR = f"""
mov.u32 %r1, %cluster_ctarank;
setp.eq.and.u32 %p0, %r1, 0, %p0;
mov.b64 %rd1, {bits_of(A)};
mov.b64 %rd2, {bits_of(B)};
setp.ne.u32 %p2, 0, 0;
{mma("f16", PAIR_IDESC, ctas=2)}
{commit(2)}
{WAIT}
mov.u32 %r3, %warpid;
shl.b32 %r3, %r3, 21;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r50}}, [%r3+63];
tcgen05.wait::ld.sync.aligned;
"""
PAIRS = [
    Mutation("a commit that reaches one CTA", "], 3;", "], 1;", ("deadlock", "CTA (1, 0, 0)")),
    Mutation("half of the rows", str(PAIR_IDESC), str(instruction_bits(128, 64)), (WRONG,)),
]


def run_pair(text: str) -> list[str]:
    """Return what is found in a kernel like `PAIR`."""
    a, b = random_raw(256, 1), random_raw(64, 2)
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    kernel = Kernel(text, threads=128, cluster=2)
    for rank in range(2):
        kernel.put(np.split(a, 2)[rank], A, Operand(128, 32), rank)
        kernel.put(np.split(b, 2)[rank], B, Operand(32, 32), rank)
    try:
        kernel.run()
    except MachineFault as fault:
        return [text_of(fault)]
    found = [kernel.words(rank)[:, :64].copy().view(np.float32) for rank in range(2)]
    near = np.allclose(np.concatenate(found), product, rtol=1e-4, atol=1e-3)
    return kernel.findings if near else [*kernel.findings, WRONG]


def test_the_unchanged_pair() -> None:
    assert run_pair(PAIR) == []


@pytest.mark.parametrize("mutation", PAIRS, ids=by_name)
def test_pair(mutation: Mutation) -> None:
    assert_found(run_pair(mutation.edit(PAIR)), mutation.found)
