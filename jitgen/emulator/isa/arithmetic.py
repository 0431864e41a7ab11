# SPDX-License-Identifier: Apache-2.0
"""
Integer arithmetic, and which module computes an operation that other types have too.

Source: PTX ISA, section "Integer Arithmetic Instructions".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.isa import floating, packed
from jitgen.emulator.isa.modifiers import (
    apply,
    define,
    is_float,
    modifiers,
    one_of,
    sources,
    width,
)
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Integers = NDArray[np.integer]

_32 = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)

_TEMPLATES = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "min": "np.minimum({0}, {1})",
    "max": "np.maximum({0}, {1})",
    "neg": "-{0}",
    "abs": "np.abs({0})",
    "sad": "np.maximum({0}, {1}) - np.minimum({0}, {1}) + {2}",
}


@emits("add", "sub", "min", "max", "neg", "abs", "sad")
def _simple(builder: Builder, instruction: Instruction) -> None:
    if _is_elsewhere(builder, instruction):
        return
    operation, kind = instruction.parts[0], instruction.parts[-1]
    found = modifiers(instruction, "sat relu")
    values = sources(builder, instruction, kind)
    if "sat" in found:
        values = [f"({value}).astype({DTYPES[_wide(kind)]})" for value in values]
    expression = _TEMPLATES[operation].format(*values)
    if "sat" in found:
        expression = _clipped(f"({expression})", kind)
    if "relu" in found:
        expression = f"np.maximum({expression}, {DTYPES[kind]}(0))"
    define(builder, instruction, expression, kind)


@emits("fma", "sqrt", "rcp", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _float_only(builder: Builder, instruction: Instruction) -> None:
    if not _is_elsewhere(builder, instruction):
        raise Unsupported(f"type .{instruction.parts[-1]}")


def _is_elsewhere(builder: Builder, instruction: Instruction) -> bool:
    """Translate an instruction of floating-point or packed types; return whether it was one."""
    kind = instruction.parts[-1]
    if packed.is_mixed(instruction):
        packed.emit_mixed(builder, instruction)
    elif kind in packed.TYPES:
        packed.emit(builder, instruction)
    elif is_float(kind):
        floating.emit(builder, instruction)
    return kind in packed.TYPES or is_float(kind)


def _wide(kind: str) -> str:
    """Return the integer type of twice the width of `kind`."""
    if width(kind) == 64:
        raise Unsupported(f"a result wider than {kind}")
    return f"{kind[0]}{2 * width(kind)}"


def _clipped(expression: str, kind: str) -> str:
    limits = np.iinfo(f"{'i' if kind[0] == 's' else 'u'}{width(kind) // 8}")
    return f"np.clip({expression}, {limits.min}, {limits.max}).astype({DTYPES[kind]})"


@emits("mul", "mad")
def _multiply(builder: Builder, instruction: Instruction) -> None:
    if _is_elsewhere(builder, instruction):
        return
    found = modifiers(instruction, "lo hi wide sat")
    kind = instruction.parts[-1]
    result = _wide(kind) if "wide" in found else kind
    if len(found & {"lo", "hi", "wide"}) != 1:
        raise Unsupported("which half of the product")
    types = [kind, kind, result]
    a, b, *addend = sources(builder, instruction, *types[: len(instruction.operands) - 1])
    product = product_of(builder, a, b, kind, one_of(instruction, "lo hi wide", ""))
    if "sat" in found:
        wide = DTYPES[_wide(kind)]
        expression = _clipped(f"({product}.astype({wide}) + {addend[0]}.astype({wide}))", kind)
    else:
        expression = " + ".join([product, *addend])
    define(builder, instruction, expression, result)


def product_of(builder: Builder, a: str, b: str, kind: str, part: str) -> str:
    """Return the expression of a product of type `kind`: ``lo``, ``hi`` or ``wide``."""
    if part == "lo":
        return f"({a} * {b})"
    if width(kind) == 64 and part == "hi":
        return apply(builder, upper_half, a, b)
    wide = DTYPES[_wide(kind)]
    product = f"(({a}).astype({wide}) * ({b}).astype({wide}))"
    if part == "wide":
        return product
    return f"({product} >> {wide}({width(kind)})).astype({DTYPES[kind]})"


def upper_half(a: Integers, b: Integers) -> Integers:
    """Return the upper 64 bits of the products of 64-bit integers, both signed or both not."""
    x, y = a.view(np.uint64), b.view(np.uint64)
    a_low, a_high, b_low, b_high = x & _LOW_HALF, x >> _32, y & _LOW_HALF, y >> _32
    low, cross = a_low * b_low, a_high * b_low
    middle = (low >> _32) + (cross & _LOW_HALF) + a_low * b_high
    upper = a_high * b_high + (cross >> _32) + (middle >> _32)
    if a.dtype.kind == "i":  # a negative factor was taken as larger by 2^64
        zero = np.uint64(0)
        upper = upper - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    signed: Integers = upper.view(a.dtype)
    return signed


@emits("mul24", "mad24")
def _multiply_24(builder: Builder, instruction: Instruction) -> None:
    """Multiply 24-bit integers: 48 bits, of which ``hi`` are the upper 32."""
    found = modifiers(instruction, "lo hi")
    kind = instruction.parts[-1]
    a, b, *addend = sources(builder, instruction, kind)
    wide = DTYPES[_wide(kind)]
    factors = [f"(({x} << {DTYPES[kind]}(8)) >> {DTYPES[kind]}(8)).astype({wide})" for x in (a, b)]
    product = f"{factors[0]} * {factors[1]}"
    if "hi" in found:
        product = f"({product}) >> {wide}(16)"
    expression = " + ".join([f"({product}).astype({DTYPES[kind]})", *addend])
    define(builder, instruction, expression, kind)


@emits("div", "rem")
def _divide(builder: Builder, instruction: Instruction) -> None:
    if _is_elsewhere(builder, instruction):
        return
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    operands = sources(builder, instruction, kind)
    function = quotient if instruction.parts[0] == "div" else remainder
    define(builder, instruction, apply(builder, function, *operands), kind)


def quotient(a: Integers, b: Integers) -> Integers:
    """
    Return ``a / b`` rounded toward zero; all bits set where `b` is 0.

    PTX leaves the result of a division by 0 open, and such a division is no mistake: compilers
    divide before they know that they must.
    """
    is_zero = b == 0
    divisor = np.where(is_zero, b.dtype.type(1), b)
    floor = a // divisor
    if a.dtype.kind == "i":
        floor = floor + ((floor * divisor != a) & ((a < 0) != (divisor < 0)))
    return np.where(is_zero, ~b, floor)


def remainder(a: Integers, b: Integers) -> Integers:
    """Return ``a - quotient(a, b) * b``, which has the sign of `a`; `a` where `b` is 0."""
    return np.where(b == 0, a, a - quotient(a, b) * b)
