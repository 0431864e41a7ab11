# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma with operands in tensor memory and scale factors; who must wait for it."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import numbers
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.modes import Mode
from jitgen.errors import MachineFault, UnsupportedPtx
from tests.emulator.tensor_core import (
    A_COLUMN,
    MODES,
    SCALE_A,
    SCALE_B,
    WAIT,
    A,
    B,
    Case,
    Kernel,
    accumulators,
    assert_near,
    bits_of,
    commit,
    instruction_bits,
    mma,
    random_raw,
)

# --- A in tensor memory --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("rows", [64, 128])
def test_a_in_tensor_memory(rows: int, mode: Mode) -> None:
    a, b = random_raw(128, 1), random_raw(16, 2)

    def prepare(kernel: Kernel) -> None:
        kernel.fill(A_COLUMN, a.view(np.uint32))

    idesc = instruction_bits(rows, 16)
    instruction = mma("f16", idesc, a=f"[{A_COLUMN}]")
    kernel = Case(instruction, a, b, prepare=prepare, mode=mode).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    lanes = np.arange(128) if rows == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16
    assert_near(accumulators(kernel, 16)[lanes], product[lanes])
    assert not kernel.findings


def test_a_of_a_pair_with_128_rows_is_needed_twice() -> None:
    a, b = random_raw(128, 1), random_raw(64, 2)

    def prepare(kernel: Kernel) -> None:
        for rank in range(2):
            half = a[64 * rank :][:64]
            kernel.fill(A_COLUMN, np.concatenate([half, half]).view(np.uint32), rank)

    instruction = mma("f16", instruction_bits(128, 64), ctas=2, a=f"[{A_COLUMN}]")
    kernel = Case(instruction, a, b, ctas=2, prepare=prepare).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    assert_near(accumulators(kernel, 32, 1)[64:], product[64:, 32:])


def test_a_that_a_warp_stores_must_be_waited_for() -> None:
    store = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r1+{A_COLUMN}], {{{', '.join(['%r3'] * 8)}}};"
    for wait, count in (("tcgen05.wait::st.sync.aligned;", 0), ("", 1)):
        body = f"""
        mov.u32 %r1, %warpid;
        shl.b32 %r1, %r1, 21;
        mov.b64 %rd2, {bits_of(B)};
        mov.b32 %r3, 0x3c003c00;
        setp.ne.u32 %p2, 0, 0;
        {store}
        {wait}
        tcgen05.fence::before_thread_sync;
        bar.sync 0;
            tcgen05.fence::after_thread_sync;
        {mma("f16", instruction_bits(128, 16), a=f"[{A_COLUMN}]")}
        {commit()}
        {WAIT}"""
        kernel = Kernel(body, threads=128)
        b = random_raw(16, 2)
        kernel.put(b, B, Operand(16, 32))
        kernel.run()
        sums = numbers.elements(b, "f16").sum(axis=1)
        assert_near(accumulators(kernel, 16)[77], sums)
        assert len(kernel.findings) == count


# --- scale factors -------------------------------------------------------------------------------

SCALED = [
    ("mxf8f6f4", "scale_vec::1X", 1, 0, 1, 3, 32),
    ("mxf8f6f4", "block32", 1, 0, 1, 0, 32),
    ("mxf4", "scale_vec::2X", 2, 1, 1, 2, 64),
    ("mxf4nvf4", "block32", 2, 1, 1, 0, 64),
    ("mxf4nvf4", "block16", 4, 1, 0, 0, 64),
]
"""Kind, scale vector, scales of a row, code of the type, code of the scales' type, id, K."""


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("kind", "vector", "count", "code", "is_ue8m0", "first", "k"), SCALED, ids=str
)
def test_scale_factors(
    kind: str, vector: str, count: int, code: int, is_ue8m0: int, first: int, k: int, mode: Mode
) -> None:
    a, b = random_raw(128, 1), random_raw(40, 2)
    codes = np.random.default_rng(3).integers(0x70, 0x7E, (128 + 64, 4), np.uint8)

    def prepare(kernel: Kernel) -> None:
        for column, rows in ((SCALE_A, codes[:128]), (SCALE_B, codes[128:])):
            words = rows.copy().view(np.uint32).reshape(-1, 32).T
            kernel.fill(column, np.tile(words, (4, 1)))

    more = is_ue8m0 << 23 | first << 29
    idesc = instruction_bits(128, 40, code, code, first, more)
    instruction = mma(kind, idesc, tail=f"[{SCALE_A}], [{SCALE_B}], %p2")
    instruction = instruction.replace(f"kind::{kind}", f"kind::{kind}.block_scale.{vector}")
    kernel = Case(instruction, a, b, prepare=prepare, mode=mode).run()
    name, scale_type = "e2m1" if k == 64 else "e4m3", "ue8m0" if is_ue8m0 else "ue4m3"
    scales = np.repeat(numbers.decode(codes, scale_type)[:, first : first + count], k // count, 1)
    left = numbers.elements(a, name) * scales[:128]
    right = numbers.elements(b, name) * scales[128 : 128 + 40]
    assert_near(accumulators(kernel, 40), left @ right.T)
    assert not kernel.findings


def scaled(scale_a: int, first: int, codes: tuple[int, int] = (127, 127)) -> Kernel:
    """Multiply 448s with scale factors of which byte `first` counts, at an address `scale_a`."""

    def prepare(kernel: Kernel) -> None:
        for column, code in zip((SCALE_A, SCALE_B), codes, strict=True):
            word = np.uint32(0x01010101 * code)
            kernel.fill(column, np.full((128, 4), word, np.uint32))

    idesc = instruction_bits(128, 16, d=0, more=1 << 23 | first << 29)
    instruction = mma("mxf8f6f4.block_scale", idesc, tail=f"[{scale_a}], [{SCALE_B}], %p2")
    rows = (np.full((128, 32), 0x7E, np.uint8), np.full((16, 32), 0x7E, np.uint8))
    return Case(instruction, *rows, prepare=prepare).run()


def test_scale_factors_multiply_the_dot_product() -> None:
    kernel = scaled(SCALE_A, 0, (127 + 122, 127 - 122))
    assert (accumulators(kernel, 16) == 6422528).all()
    assert not kernel.findings


@pytest.mark.parametrize("first", [0, 1, 3])
def test_the_byte_that_an_address_names(first: int) -> None:
    assert not scaled(SCALE_A | first << 30, first).findings
    (finding,) = scaled(SCALE_A | 2 << 30, first).findings
    assert f"says byte 2, the instruction descriptor byte {first}" in finding


def test_scale_factors_that_begin_in_another_lane() -> None:
    with pytest.raises(MachineFault, match=r"scale factors of A at .* begin in a lane"):
        scaled(SCALE_A | 32 << 16, 0)


def test_missing_scale_factors_are_found() -> None:
    idesc = instruction_bits(128, 16, d=0, more=1 << 23)
    instruction = mma("mxf8f6f4.block_scale", idesc, tail=f"[{SCALE_A}], [{SCALE_B}], %p2")
    kernel = Case(instruction, random_raw(128, 1), random_raw(16, 2)).run()
    assert "lane 0, column 300" in kernel.findings[0]


# --- what goes wrong -----------------------------------------------------------------------------


def test_the_accumulator_is_read_without_a_commit() -> None:
    """In every mode, also where the product is there by chance."""
    body = f"""mov.b64 %rd1, {bits_of(A)};
    mov.b64 %rd2, {bits_of(B)};
    setp.ne.u32 %p2, 0, 0;
    {mma("f16", instruction_bits(128, 16))}
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r100}}, [0];
    {commit()}"""
    for mode in MODES:
        kernel = Kernel(body, mode=mode)
        kernel.put(random_raw(128, 1), A, Operand(128, 32))
        kernel.put(random_raw(16, 2), B, Operand(16, 32))
        found = [text for text in kernel.run().findings if text.startswith("race")]
        assert len(found) == 1
        assert "read of tensor memory of CTA (0, 0, 0), column 0" in found[0]
        assert "tcgen05.mma" in found[0]


def test_an_operand_is_overwritten_before_it_is_read() -> None:
    store = "st.shared.b32 [0x2000], %r0;"
    for early, count in ((store, 1), ("", 0)):
        late = "" if early else store
        body = f"""mov.b64 %rd1, {bits_of(A)};
        mov.b64 %rd2, {bits_of(B)};
        setp.ne.u32 %p2, 0, 0;
        {mma("f16", instruction_bits(128, 16))}
        {commit()}
        @%p0 {early or "mov.u32 %r5, 0;"}
        {WAIT}
        @%p0 {late or "mov.u32 %r5, 0;"}"""
        kernel = Kernel(body)
        kernel.put(random_raw(128, 1), A, Operand(128, 32))
        kernel.put(random_raw(16, 2), B, Operand(16, 32))
        assert len(kernel.run().findings) == count


@pytest.mark.parametrize(
    ("idesc", "a", "message"),
    [
        (instruction_bits(128, 16) | 4, "%rd1", "sparsity"),
        (instruction_bits(128, 16) | 1 << 15, "[256]", "A in tensor memory is K-major"),
        (instruction_bits(128, 16) | 1 << 29, "%rd1", "reserved bits"),
        (instruction_bits(128, 16, 1, 1, 0), "%rd1", "no f16 result of bf16"),
        (instruction_bits(128, 16), "[0x100100]", "does not begin in the accumulator's lane"),
        (instruction_bits(128, 16), "0x4000404000003f00", "out of bounds"),
    ],
)
def test_invalid_operands(idesc: int, a: str, message: str) -> None:
    case = Case(mma("f16", idesc, a=a), random_raw(128, 1), random_raw(16, 2))
    with pytest.raises(MachineFault, match=message):
        case.run()


@pytest.mark.parametrize(
    ("vector", "more", "is_right"),
    [
        ("scale_vec::2X", 0, False),
        ("block32", 0, False),
        ("scale_vec::2X", 1 << 23, True),
        ("scale_vec::4X", 0, True),
        ("block16", 1 << 23, True),
    ],
)
def test_types_of_scale_factors(vector: str, more: int, is_right: bool) -> None:
    def prepare(kernel: Kernel) -> None:
        for column in (SCALE_A, SCALE_B):
            kernel.fill(column, np.full((128, 4), 0x70707070, np.uint32))

    idesc = instruction_bits(128, 16, 1, 1, 0, more)
    tail = f"[{SCALE_A}], [{SCALE_B}], %p2"
    instruction = mma(f"mxf4nvf4.block_scale.{vector}", idesc, tail=tail)
    case = Case(instruction, random_raw(128, 1), random_raw(16, 2), prepare=prepare)
    if is_right:
        assert not case.run().findings
    else:
        with pytest.raises(MachineFault, match="2 scale factors of a row are ue8m0"):
            case.run()


@pytest.mark.parametrize(
    ("kind", "shift", "is_right"),
    [("f16", 15, True), ("f16", 16, False), ("f8f6f4", 1, False), ("i8", 1, False)],
)
def test_the_old_accumulator_is_scaled_by_some_kinds(kind: str, shift: int, is_right: bool) -> None:
    text = mma(kind, instruction_bits(128, 16, d=2 if kind == "i8" else 1), tail=f"%p2, {shift}")
    case = Case(text, random_raw(128, 1), random_raw(16, 2))
    if is_right:
        assert not case.run().findings
    else:
        with pytest.raises(UnsupportedPtx, match=f"scale-input-d {shift} of kind::{kind}"):
            case.run()
