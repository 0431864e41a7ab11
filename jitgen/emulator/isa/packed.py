# SPDX-License-Identifier: Apache-2.0
"""
Arithmetic in f16 and bf16, and in the packed types: two numbers to a register.

An operation works on lanes: the numbers of each register along the last axis. Lanes of f16 and
bf16 are float32, whose 24 bits are enough for a sum or product to be rounded twice as if once; the
sum of ``fma`` is a float64. Not modelled: the errors of approximations, NaN payloads.

Mixed types (``fma.f32.bf16``) widen f16 and bf16, which is exact, and compute in f32.

Sources: PTX ISA, sections "Half Precision Floating Point Instructions", "Mixed Precision Floating
Point Instructions" and "Integer Arithmetic Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.formats.numbers import decode, encode
from jitgen.emulator.isa import floating
from jitgen.emulator.isa.modifiers import define, modifiers, sources, width
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported

TYPES = ("f16", "bf16", "f16x2", "bf16x2", "f32x2", "u16x2", "s16x2")
"""The types that `emit` knows."""

_CODED = ("f16", "bf16")
_LANES = {
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.float32,
    "u16": np.uint16,
    "s16": np.int16,
}
"""The numpy type of an element in its register; elements of `_CODED` types are codes."""

_SMALLEST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}

_FLOATING = ("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh")
_WHOLE = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}
"""Operations on lanes of floating-point numbers, and of integers."""


def lane_type(type_name: str) -> str:
    """Return the type of one number: that of ``"bf16x2"`` is ``"bf16"``."""
    return type_name.removesuffix("x2")


def container(type_name: str) -> str:
    """Return the untyped register type that holds a packed value: ``"b32"`` for ``"f16x2"``."""
    lanes = 2 if type_name.endswith("x2") else 1
    return f"b{lanes * width(lane_type(type_name))}"


def split(bits: Numbers, type_name: str) -> Numbers:
    """Return the lanes of registers: [n] unsigned to [n, lanes] of the lane's numbers."""
    kind = lane_type(type_name)
    lanes = np.ascontiguousarray(bits).reshape(*np.shape(bits), 1).view(_LANES[kind])
    return decode(lanes, kind) if kind in _CODED else lanes


def join(values: Numbers, type_name: str) -> Numbers:
    """Return the registers of lanes, each number rounded to its type."""
    kind = lane_type(type_name)
    lanes = encode(values, kind) if kind in _CODED else values.astype(_LANES[kind])
    unsigned = f"u{width(container(type_name)) // 8}"
    return np.ascontiguousarray(lanes).view(unsigned)[..., 0]


def emit(builder: Builder, instruction: Instruction) -> None:
    """Translate an operation in one of `TYPES`."""
    operation, kind = instruction.parts[0], instruction.parts[-1]
    found = modifiers(instruction, "rn ftz sat relu approx noftz NaN xorsign abs")
    function = lanewise(operation, kind, found)
    values = sources(builder, instruction, container(kind))
    is_plain = found == {"rn"} and instruction.guard is None
    is_promotion = is_plain and (operation, kind) == ("fma", "f32x2")
    if is_promotion and builder.define_alike(instruction.operands[0], function, values):
        return
    name = builder.constant(function, f"{operation}_{kind}")
    define(builder, instruction, f"{name}({', '.join(values)})", container(kind))


def is_mixed(instruction: Instruction) -> bool:
    """Return whether operands are narrower than the result: ``.f32.bf16``."""
    return instruction.parts[-2] == "f32" and instruction.parts[-1] in _CODED


def emit_mixed(builder: Builder, instruction: Instruction) -> None:
    """``fma.rn.sat.f32.bf16 d, a, b, c`` and ``add.f32.bf16 d, a, c``: c has 32 bits."""
    operation, kind = instruction.parts[0], instruction.parts[-1]
    found = modifiers(instruction, "rn rz rm rp sat", types=2)
    if operation not in _MIXED:
        raise Unsupported(f"{operation} of mixed types")
    *narrow, last = instruction.operands[1:]
    widened = builder.constant(_WIDENED[kind], f"widened_{kind}")
    values = [f"{widened}({builder.value(operand, 'b16')})" for operand in narrow]
    function = floating.function(operation, "f32", found - {"sat"})
    name = builder.constant(function, f"{operation}_f32")
    expression = f"{name}({', '.join([*values, builder.value(last, 'f32')])})"
    if "sat" in found:
        expression = f"{builder.constant(floating.saturate, 'saturate')}({expression})"
    define(builder, instruction, expression, "f32")


_MIXED = ("add", "sub", "fma")


def _widened_f16(bits: Numbers) -> Numbers:
    return decode(np.asarray(bits), "f16")


def _widened_bf16(bits: Numbers) -> Numbers:
    return decode(np.asarray(bits), "bf16")


_WIDENED = {"f16": _widened_f16, "bf16": _widened_bf16}


@cache
def lanewise(
    operation: str, type_name: str, found: frozenset[str] = frozenset()
) -> Callable[..., Numbers]:
    """
    Return a function of registers that does an operation on each lane.

    Args:
        operation: ``"add"``, ``"fma"``, ...
        type_name: One of `TYPES`.
        found: Modifiers: of ``ftz``, ``sat``, ``relu``, ``NaN``, ``xorsign``, ``abs``.

    Raises:
        Unsupported: There is no such operation.
    """
    kind = lane_type(type_name)
    compute = _on_lanes(operation, kind, found)
    steps = [step for name, step in _STEPS.items() if name in found]

    def on_lanes(*lanes: Numbers) -> Numbers:
        if "ftz" in found:
            lanes = tuple(floating.flush(x, _SMALLEST_NORMAL[kind]) for x in lanes)
        values = compute(*lanes)
        for step in steps:
            values = step(values)
        return floating.flush(values, _SMALLEST_NORMAL[kind]) if "ftz" in found else values

    def on_registers(*registers: Numbers) -> Numbers:
        if kind in _CODED or not all(isinstance(bits, np.ndarray) for bits in registers):
            return join(on_lanes(*(split(bits, type_name) for bits in registers)), type_name)
        # of arrays alone, which is nearly always, lanes need no axis of their own
        flat = (np.ascontiguousarray(bits).view(_LANES[kind]) for bits in registers)
        values = on_lanes(*flat).astype(_LANES[kind], copy=False)
        return values.view(registers[0].dtype)

    on_registers.__name__ = f"{operation}_{type_name}"
    return on_registers


def _on_lanes(operation: str, kind: str, found: frozenset[str]) -> Callable[..., Numbers]:
    """Return the function that computes an operation on lanes; f16 and bf16 lanes are float32."""
    if kind in _CODED and operation == "fma":
        return _fma_unrounded
    if kind in (*_CODED, "f32") and operation in _FLOATING:
        return floating.function(operation, "f32", found)
    if operation in _WHOLE and found <= {"relu"}:
        return _WHOLE[operation]
    raise Unsupported(f"{operation} of {kind}")


def _fma_unrounded(a: Numbers, b: Numbers, c: Numbers) -> Numbers:
    return a.astype(np.float64) * b + c


def _relu(values: Numbers) -> Numbers:
    """Return `values` with 0 for what is negative; NaN stays."""
    return np.where(values <= 0, values.dtype.type(0), values)


_STEPS: dict[str, Callable[[Numbers], Numbers]] = {"sat": floating.saturate, "relu": _relu}
