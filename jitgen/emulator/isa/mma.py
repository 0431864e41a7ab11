# SPDX-License-Identifier: Apache-2.0
"""
mma.sync: products of small matrices that a warp holds in its registers.

All warps of a fragment are multiplied at once, as a stack of matrices. Products of elements are
exact in float32, and sums are float32; float64 with block scales.

PTX ISA, sections "mma" and "Block Scaling for mma.sync".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread, Vector
from jitgen.emulator.formats import fragments, numbers
from jitgen.emulator.formats import scales as block_scales
from jitgen.emulator.isa import padding
from jitgen.emulator.machine.fragment import WARP, Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Registers = NDArray[np.uint32]

_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8,
    "e4m3": 8, "e5m2": 8, "e3m2": 8, "e2m3": 8, "e2m1": 8,
}  # fmt: skip
"""Bits that an element takes in a register; e2m1 is alone in its byte where types may be mixed."""

_PACKED_KINDS = frozenset({"mxf4", "mxf4nvf4"})
"""Kinds whose e2m1 are two to a byte."""

_SCALES = {
    "mxf8f6f4": {"1X": "ue8m0"},
    "mxf4": {"2X": "ue8m0"},
    "mxf4nvf4": {"2X": "ue8m0", "4X": "ue8m0 ue4m3"},
}
"""
For each kind the numbers of scales that a row may have, the default first, and the types of each.
"""

_FLOATS = frozenset({"f32", "f16"})
_ELEMENTS = {
    "": frozenset({"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"}),
    "f8f6f4": frozenset({"e4m3", "e5m2", "e3m2", "e2m3", "e2m1"}),
    "mxf8f6f4": frozenset({"e4m3", "e5m2", "e3m2", "e2m3", "e2m1"}),
    "mxf4": frozenset({"e2m1"}),
    "mxf4nvf4": frozenset({"e2m1"}),
}
_PLAIN_PARTS = frozenset({"mma", "sync", "aligned", "row", "col", "satfinite", "block_scale"})
_SHAPE = re.compile(r"m16n8k(\d+)")
_ROW_BYTES = (16, 32)
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """
    The operation of an instruction.

    Attributes:
        depth: Length K of the sums of one instruction.
        d, a, b, c: Types; e2m1 is ``"e2m1.byte"`` where it is alone in its byte.
        num_scales: Scales of a row of A or a column of B; 0 without scales.
        scale: Type of the scales.
        is_saturating: Whether integer sums saturate to int32; otherwise they wrap around.
    """

    depth: int
    d: str
    a: str
    b: str
    c: str
    num_scales: int = 0
    scale: str = ""
    is_saturating: bool = False


# --- parsing -------------------------------------------------------------------------------------


@emits("mma", whole_warp=True)
def mma(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 d, a, b, c`` and its siblings.
    """
    if instruction.guard is not None:
        raise Unsupported("a guard")
    form = parse(instruction)
    target, *sources = instruction.operands[:4]
    vectors = [", ".join(builder.values(operand, "b32")) for operand in sources]
    arguments = [builder.constant(form, "form"), *(f"({vector},)" for vector in vectors)]
    for operand in instruction.operands[4:]:  # scale, {byte, thread}, twice
        arguments += builder.values(operand, "u16" if operand.count(",") else "b32")
    result = builder.temporary()
    builder.do(f"{result} = {builder.call(multiply, *arguments)}")
    for position, name in enumerate(builder.names(target)):
        builder.define(name, f"{result}[{position}]", "b32", instruction)


def parse(instruction: Instruction) -> Form:
    """
    Return what an instruction computes.

    Raises:
        Unsupported: It is sparse, binary, of 4-bit integers, of another shape than ``m16n8``, or
            there is no such instruction.
    """
    kind = scale_vector = ""
    rest = []
    for part in instruction.parts:
        name, _, value = part.partition("::")
        if name == "kind":
            kind = value
        elif name == "scale_vec":
            scale_vector = value
        elif part not in _PLAIN_PARTS:
            rest.append(part)
    shape, *types = rest
    num_scales, scale = _scaling(instruction, kind, scale_vector, types[4:])
    found = _SHAPE.fullmatch(shape)
    if not found or not instruction.has("sync", "row", "col") or kind not in _ELEMENTS:
        raise Unsupported(f"shape {shape} of kind {kind or 'none'}")
    d, a, b, c = (types + [""] * 4)[:4]
    _check_types(kind, d, a, b, c)
    depth = int(found[1])
    bits = 4 if kind in _PACKED_KINDS else _BITS[a]
    if depth * bits // 8 not in _ROW_BYTES or (kind and depth * bits // 8 != _ROW_BYTES[-1]):
        raise Unsupported(f"shape {shape} of {a}")
    if kind not in _PACKED_KINDS:
        a, b = (f"{name}.byte" if name == "e2m1" else name for name in (a, b))
    return Form(depth, d, a, b, c, num_scales, scale, instruction.has("satfinite"))


def _scaling(instruction: Instruction, kind: str, vector: str, types: list[str]) -> tuple[int, str]:
    """Return number and type of a row's scales; (0, "") without."""
    if not instruction.has("block_scale"):
        if kind in _SCALES or vector or types:
            raise Unsupported(f"kind {kind} with {types or 'no scales'}")
        return 0, ""
    allowed = _SCALES.get(kind, {})
    vector = vector or next(iter(allowed), "")
    if len(types) != 1 or types[0] not in allowed.get(vector, "").split():
        raise Unsupported(f"scales {vector} {types} of kind {kind}")
    return int(vector[0]), types[0]


def _check_types(kind: str, d: str, a: str, b: str, c: str) -> None:
    known = _ELEMENTS[kind]
    is_integer = a in {"s8", "u8"}
    sums = frozenset({"s32"}) if is_integer else _FLOATS
    may_mix = bool(kind) or _BITS.get(a) == _BITS.get(b) == 8
    fits = {a, b} <= known and {c, d} <= sums and is_integer == (b in {"s8", "u8"})
    if not fits or (a != b and not may_mix):
        raise Unsupported(f"types {d}.{a}.{b}.{c}")


# --- computing -----------------------------------------------------------------------------------


def multiply(
    f: Fragment,
    at: int,
    form: Form,
    a: Vector,
    b: Vector,
    c: Vector,
    *scales: PerThread,
) -> Registers:
    """
    Return the registers of D, uint32 [registers, n].

    Args:
        f: Whole warps.
        at: Index of the instruction.
        form: Shape and types of the instruction.
        a: Registers of A, each uint32 [n].
        b: The registers of B.
        c: The registers of C.
        scales: With block scaling: a register of A's scales, the byte and the thread of a quad that
            count in it; the same of B.

    Raises:
        MachineFault: The threads disagree about which bytes and threads count.
    """
    f.machine.counts["matrix_instructions"] += f.n // WARP
    f.cluster.clocks.representatives.meet(f.agents)
    raw = fragments.rows_of_a(_registers(f, a)), fragments.columns_of_b(_registers(f, b))
    for name, operand in zip((form.a, form.b), raw, strict=True):
        if name != "e2m1":
            padding.check(f, at, operand, name)
    left, right = _stack(form.a, raw[0], fragments.ROWS), _stack(form.b, raw[1], fragments.COLUMNS)
    if form.num_scales:
        of_rows = _factors(f, at, form, scales[:3], _LANES_A)
        product: NDArray[np.floating] = block_scales.product(
            left, right, of_rows, _factors(f, at, form, scales[3:], _LANES_B)
        )
    else:
        product = numbers.product(left, right)
    sums = fragments.accumulators_of(product.reshape(-1, fragments.COLUMNS))
    return _add(form, sums, _registers(f, c))


_LANES_A = 4 * (np.arange(16) % 8) + np.arange(16) // 8
"""Lane that has the scales of each row of A, if the first two threads of the quads count."""

_LANES_B = 4 * np.arange(8)
"""Lane that has the scales of each column of B, if the first threads of the quads count."""


def _registers(f: Fragment, registers: Vector) -> Registers:
    """Return registers as an array [registers, n]."""
    return np.stack([f.spread(register) for register in registers])


def _stack(name: str, raw: NDArray[np.uint8], rows: int) -> NDArray[np.float32]:
    """Return the elements of a matrix for each warp, [warps, rows, K]."""
    values = numbers.elements(raw, name)
    return values.reshape(-1, rows, values.shape[-1])


def _factors(
    f: Fragment, at: int, form: Form, scales: Vector, lanes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """
    Return the scales of the rows of A or columns of B, [warps, rows, scales].

    Args:
        f: Whole warps.
        at: Index of the instruction.
        form: The instruction's form, which tells the number and the type of the scales.
        scales: The register that holds them, the byte and the thread of a quad to begin with.
        lanes: `_LANES_A` or `_LANES_B`. For A, thread 1 names the other two threads of a quad.
    """
    words, first, thread = (f.spread(operand) for operand in scales)
    if (first != first[0]).any() or (thread != thread[0]).any():
        f.fault(at, "byte or thread of the scales differs between threads")
    byte, step = int(first[0]), (2 if lanes is _LANES_A else 1) * int(thread[0])
    if byte % form.num_scales or byte >= 4 or step > 3:
        f.fault(at, f"no {form.num_scales} scales at byte {byte} of thread {int(thread[0])}")
    codes = np.ascontiguousarray(words).view(np.uint8).reshape(-1, WARP, 4)
    return numbers.decode(codes[:, lanes + step, byte : byte + form.num_scales], form.scale)


def _add(form: Form, sums: NDArray[np.floating], c: Registers) -> Registers:
    """Return the registers of D from sums of products [4, n] and the registers of C."""
    if form.d == "s32":
        whole = sums.astype(np.int64) + c.view(np.int32)
        if form.is_saturating:
            whole = np.clip(whole, _INT32.min, _INT32.max)
        return whole.astype(np.int32).view(np.uint32)
    old = c.view(np.float32) if form.c == "f32" else fragments.unpack(c).view(np.float16)
    total = sums + old.astype(np.float32)
    if form.d == "f32":
        return total.astype(np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        return fragments.pack(total.astype(np.float16).view(np.uint16))
