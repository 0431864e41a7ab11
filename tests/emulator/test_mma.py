# SPDX-License-Identifier: Apache-2.0
"""mma.sync: each shape, type and way of scaling against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.emulator.formats import fragments, numbers
from jitgen.emulator.isa import mma
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported
from jitgen.errors import MachineFault
from tests.emulator.program import fragment

WARPS = 2
BITS = {"e2m1": 4}


def instruction(op: str) -> Instruction:
    return Instruction(
        index=0,
        op=op,
        parts=tuple(op.split(".")),
        operands=(),
        guard=None,
        is_negated=False,
        line=1,
        source=None,
        text=op,
    )


def registers_of(rows: NDArray[np.uint8], height: int) -> tuple[NDArray[np.uint32], ...]:
    """Return the registers that hold the rows of each warp, found by asking where each went."""
    count = rows.shape[1] // (8 if height == fragments.ROWS else 16)
    numbered = np.arange(count * 32 * WARPS, dtype=np.uint32).reshape(count, -1)
    read = fragments.rows_of_a if height == fragments.ROWS else fragments.columns_of_b
    places = read(numbered).view(np.uint32)
    found = np.empty(numbered.size, np.uint32)
    found[places] = np.ascontiguousarray(rows).view(np.uint32)
    return tuple(found.reshape(count, -1))


def random_rows(kind: str, height: int, row_bytes: int, seed: int) -> NDArray[np.uint8]:
    """Return codes of small numbers of WARPS matrices, [rows, bytes]."""
    chance = np.random.default_rng(seed)
    shape = (WARPS * height, row_bytes)
    if kind in {"s8", "u8", "e2m1"}:
        return chance.integers(0, 256, shape, np.uint8)
    if kind == "e2m1.byte":
        return chance.integers(0, 16, shape, np.uint8) << np.uint8(2)
    size = numbers.FORMATS[kind].dtype().itemsize
    small = chance.integers(-3, 4, (shape[0], row_bytes // size)).astype(np.float32)
    return numbers.encode(small, kind).view(np.uint8)


def stack(kind: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    values = numbers.elements(raw, kind)
    return values.reshape(WARPS, -1, values.shape[-1])


class Case:
    """Random operands for a form, and the product that is expected."""

    def __init__(self, op: str, row_bytes: int = 32) -> None:
        self.form = form = mma.parse(instruction(op))
        rows_a = random_rows(form.a, 16, row_bytes, 1)
        rows_b = random_rows(form.b, 8, row_bytes, 2)
        self.a, self.b = registers_of(rows_a, 16), registers_of(rows_b, 8)
        self.left, self.right = stack(form.a, rows_a), stack(form.b, rows_b)

    def run(self, c: tuple[Any, ...], *scales: Any, f: Fragment | None = None) -> Any:
        f = f or fragment(32 * WARPS)
        return mma.multiply(f, 0, self.form, self.a, self.b, c, *scales)

    @property
    def product(self) -> NDArray[np.float32]:
        return (self.left @ self.right.transpose(0, 2, 1)).reshape(-1, 8)


ZERO = (np.uint32(0),) * 4


@pytest.mark.parametrize(
    ("shape", "types", "row_bytes"),
    [
        ("k8", "f32.f16.f16.f32", 16),
        ("k16", "f32.f16.f16.f32", 32),
        ("k8", "f32.bf16.bf16.f32", 16),
        ("k16", "f32.bf16.bf16.f32", 32),
        ("k4", "f32.tf32.tf32.f32", 16),
        ("k8", "f32.tf32.tf32.f32", 32),
        ("k16", "f32.e4m3.e4m3.f32", 16),
        ("k32", "f32.e4m3.e4m3.f32", 32),
        ("k32", "f32.e5m2.e4m3.f32", 32),
    ],
)
def test_floats(shape: str, types: str, row_bytes: int) -> None:
    case = Case(f"mma.sync.aligned.m16n8{shape}.row.col.{types}", row_bytes)
    two = np.float32(2).view(np.uint32)
    found = fragments.matrix_of(case.run((two,) * 4).view(np.float32))
    assert (found == case.product + 2).all()


@pytest.mark.parametrize("b", ["e2m1", "e2m3", "e3m2", "e5m2"])
@pytest.mark.parametrize("a", ["e2m1", "e4m3"])
def test_mixed_types_have_a_byte_each(a: str, b: str) -> None:
    case = Case(f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32")
    assert (fragments.matrix_of(case.run(ZERO).view(np.float32)) == case.product).all()


def test_sums_of_16_bits() -> None:
    case = Case("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
    two = np.uint32(0x4000_4000)
    halves = fragments.unpack(case.run((two, two))).view(np.float16)
    assert (fragments.matrix_of(halves) == case.product + 2).all()


@pytest.mark.parametrize(("depth", "row_bytes"), [(16, 16), (32, 32)])
@pytest.mark.parametrize("satfinite", ["", "satfinite."])
def test_integers(depth: int, row_bytes: int, satfinite: str) -> None:
    case = Case(f"mma.sync.aligned.m16n8k{depth}.row.col.{satfinite}s32.u8.s8.s32", row_bytes)
    c = np.uint32(2**31 - 100)
    exact = case.product.astype(np.int64) + int(c)
    expected = np.clip(exact, -(2**31), 2**31 - 1) if satfinite else (exact + 2**31) % 2**32 - 2**31
    assert (fragments.matrix_of(case.run((c,) * 4).view(np.int32)) == expected).all()


# --- scales --------------------------------------------------------------------------------------

MXF8 = "mma.sync.aligned.kind::mxf8f6f4.block_scale{}.m16n8k32.row.col.f32.{}.{}.f32.ue8m0"
FOUR_BITS = (
    "mma.sync.aligned.kind::{}.block_scale.scale_vec::{}.m16n8k64.row.col.f32.e2m1.e2m1.f32.{}"
)
MXF4 = FOUR_BITS.format("mxf4", "2X", "ue8m0")

SCALED = [
    (MXF8.format("", "e4m3", "e5m2"), 1),
    (MXF8.format(".scale_vec::1X", "e2m1", "e4m3"), 1),
    (MXF4, 2),
    (FOUR_BITS.format("mxf4nvf4", "2X", "ue8m0"), 2),
    (FOUR_BITS.format("mxf4nvf4", "4X", "ue4m3"), 4),
    (FOUR_BITS.format("mxf4nvf4", "4X", "ue8m0"), 4),
]


def lane_of_a(row: int, thread: int) -> int:
    """Lanes 4 r and 4 r + 1 (or + 2 and + 3) have the scales of rows r and r + 8."""
    return 4 * (row % 8) + row // 8 + 2 * thread


@pytest.mark.parametrize(("op", "number"), SCALED)
@pytest.mark.parametrize(("thread_a", "thread_b"), [(0, 0), (1, 3)])
def test_scales(op: str, number: int, thread_a: int, thread_b: int) -> None:
    """Each scale is where the table of PTX has it; all other lanes and bytes hold NaN."""
    case = Case(op)
    chance = np.random.default_rng(3)
    low, high = (124, 131) if case.form.scale == "ue8m0" else (0x28, 0x50)
    first = 4 - number
    words = np.full((2, WARPS, 32, 4), 0xFF if case.form.scale == "ue8m0" else 0x7F, np.uint8)
    factors = []
    for side, rows in enumerate((16, 8)):
        codes = chance.integers(low, high, (WARPS, rows, number), np.uint8)
        for row in range(rows):
            lane = lane_of_a(row, thread_a) if side == 0 else 4 * row + thread_b
            words[side, :, lane, first:] = codes[:, row]
        each = np.repeat(numbers.decode(codes, case.form.scale), case.form.depth // number, axis=-1)
        factors.append(each)
    case.left, case.right = case.left * factors[0], case.right * factors[1]
    sfa, sfb = words.reshape(2, -1, 4).view(np.uint32)[..., 0]
    scales = (
        sfa,
        np.uint16(first),
        np.uint16(thread_a),
        sfb,
        np.uint16(first),
        np.uint16(thread_b),
    )
    found = fragments.matrix_of(case.run(ZERO, *scales).view(np.float32))
    assert np.allclose(found, case.product, rtol=1e-6)
    assert np.isfinite(found).all()


def test_scales_multiply_dot_products() -> None:
    """448 x 2^122 is beyond float32; 32 x 448 x 448 x 2^122 x 2^-122 is not."""
    case = Case(MXF8.format("", "e4m3", "e4m3"))
    most = np.uint32(0x7E7E7E7E)
    case.a, case.b, zero = (most,) * 4, (most,) * 2, np.uint16(0)
    large, small = (np.uint32(0x01010101 * (127 + power)) for power in (122, -122))
    found = case.run(ZERO, large, zero, zero, small, zero, zero).view(np.float32)
    assert (found == 6422528).all()


@pytest.mark.parametrize("a", ["e2m1", "e2m3", "e3m2"])
def test_padding_that_is_not_zero(a: str) -> None:
    case = Case(f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.e4m3.f32")
    f = fragment(32 * WARPS)
    clean = case.run(ZERO, f=f)
    assert not f.machine.findings
    case.a = (case.a[0] | np.uint32(0x80), *case.a[1:])
    assert (case.run(ZERO, f=f) == clean).all()
    assert [finding.kind for finding in f.machine.findings.values()] == ["padding"]


def test_bytes_of_scales_that_do_not_exist() -> None:
    one, zero = np.uint32(0x7F7F7F7F), np.uint16(0)
    with pytest.raises(MachineFault, match="no 2 scales at byte 1"):
        Case(MXF4).run(ZERO, one, np.uint16(1), zero, one, zero, zero)
    with pytest.raises(MachineFault, match="differs between threads"):
        Case(MXF4).run(ZERO, one, np.arange(64, dtype=np.uint16), zero, one, zero, zero)


@pytest.mark.parametrize(
    "op",
    [
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.s8.s8.f32",
        "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.f32.e4m3.e4m3.f32",
        MXF8.format(".scale_vec::2X", "e4m3", "e4m3"),
        FOUR_BITS.format("mxf4nvf4", "2X", "ue4m3"),
    ],
)
def test_instructions_that_do_not_exist(op: str) -> None:
    with pytest.raises(Unsupported):
        mma.parse(instruction(op))
