# SPDX-License-Identifier: Apache-2.0
"""
Instructions on bits: shifts, fields, counts.

Sources: PTX ISA, sections "shl", "shr", "shf", "popc", "clz", "brev", "bfind", "bfe", "bfi",
"bmsk" and "szext".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.isa.modifiers import apply, define, modifiers, one_of, sources, width
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import emits

Bits = NDArray[np.integer]

_ONE, _32 = np.uint64(1), np.uint64(32)


@emits("shl", "shr")
def _shift(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    value, amount = sources(builder, instruction, kind, "u32")
    if width(kind) == 16:  # an amount of 65536 must not become 0
        amount = f"np.minimum({amount}, U4(16))"
    if DTYPES[kind] != "U4":
        amount = f"{amount}.astype({DTYPES[kind]})"
    # numpy shifts everything out, as PTX does, where the amount is the width or more; so it does
    # where it is negative, as a large amount is in a signed type
    function = "np.left_shift" if instruction.parts[0] == "shl" else "np.right_shift"
    define(builder, instruction, f"{function}({value}, {amount})", kind)


@emits("shf")
def _funnel(builder: Builder, instruction: Instruction) -> None:
    found = modifiers(instruction, "l r wrap clamp")
    function = shift_left if "l" in found else shift_right
    low, high, amount = sources(builder, instruction, "u32")
    amount = f"({amount} & U4(31))" if "wrap" in found else f"np.minimum({amount}, U4(32))"
    define(builder, instruction, apply(builder, function, low, high, amount), "u32")


def shift_left(low: Bits, high: Bits, amount: Bits) -> Bits:
    """Return the upper half of 64 bits shifted left by 0 to 32."""
    return ((joined(low, high) << amount.astype(np.uint64)) >> _32).astype(np.uint32)


def shift_right(low: Bits, high: Bits, amount: Bits) -> Bits:
    """Return the lower half of 64 bits shifted right by 0 to 32."""
    return (joined(low, high) >> amount.astype(np.uint64)).astype(np.uint32)


def joined(low: Bits, high: Bits) -> Bits:
    """Return uint64 of two uint32."""
    return low.astype(np.uint64) | high.astype(np.uint64) << _32


@emits("popc", "clz", "brev", "bfind")
def _count(builder: Builder, instruction: Instruction) -> None:
    found = modifiers(instruction, "shiftamt")
    operation, kind = instruction.parts[0], instruction.parts[-1]
    (value,) = sources(builder, instruction, kind)
    if operation == "brev":
        define(builder, instruction, apply(builder, reverse, value), f"u{width(kind)}")
        return
    functions = {"popc": population, "clz": leading_zeros, "bfind": leading_bit}
    expression = apply(builder, functions[operation], value)
    if "shiftamt" in found:  # how far left to shift for the bit to become the topmost one
        none = "U4(0xFFFFFFFF)"
        count = builder.temporary()
        builder.do(f"{count} = {expression}")
        expression = f"np.where({count} == {none}, {none}, U4({width(kind) - 1}) - {count})"
    define(builder, instruction, expression, "u32")


def population(value: Bits) -> Bits:
    """Return how many bits are set, uint32."""
    return np.bitwise_count(value).astype(np.uint32)


def leading_zeros(value: Bits) -> Bits:
    """Return how many bits above the topmost set bit are 0, uint32; all of them for 0."""
    halves = [value] if value.itemsize == 4 else [value >> _32, value & np.uint64(0xFFFFFFFF)]
    # the exponent of a float64 counts the bits below and with the topmost one; 0 for 0
    upper, *lower = (32 - np.frexp(half.astype(np.float64))[1] for half in halves)
    zeros = np.where(upper == 32, upper + lower[0], upper) if lower else upper
    return zeros.astype(np.uint32)


def leading_bit(value: Bits) -> Bits:
    """Return the place of the topmost bit that differs from the sign, uint32; all ones for none."""
    unsigned = value.view(f"u{value.itemsize}")
    if value.dtype.kind == "i":
        unsigned = np.where(value < 0, ~unsigned, unsigned)
    place = np.uint32(8 * value.itemsize - 1) - leading_zeros(unsigned)
    return np.where(unsigned == 0, np.uint32(0xFFFFFFFF), place)


def reverse(value: Bits) -> Bits:
    """Return the bits in opposite order."""
    value = np.asarray(value)
    bits = np.unpackbits(value[..., None].view(np.uint8), axis=-1)
    reversed_bytes = np.packbits(bits[..., ::-1], axis=-1)
    return reversed_bytes.view(value.dtype)[..., 0]


@emits("bfe")
def _bfe(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    operands = sources(builder, instruction, kind, "u32", "u32")
    define(builder, instruction, apply(builder, extract_field, *operands), kind)


@emits("bfi")
def _bfi(builder: Builder, instruction: Instruction) -> None:
    modifiers(instruction, "")
    kind = instruction.parts[-1]
    operands = sources(builder, instruction, kind, kind, "u32", "u32")
    define(builder, instruction, apply(builder, insert_field, *operands), kind)


def extract_field(value: Bits, start: Bits, length: Bits) -> Bits:
    """Return `length` bits of `value` from bit `start`, its sign repeated above if it has one."""
    top = 8 * value.itemsize - 1
    first, count = _counts(start, length)
    unsigned = value.view(f"u{value.itemsize}").astype(np.uint64)
    inside = _ones(np.minimum(count, np.maximum(top + 1 - first, 0)))
    field = unsigned >> first.astype(np.uint64) & inside
    if value.dtype.kind == "i":
        last = np.minimum(np.maximum(first + count - 1, 0), top).astype(np.uint64)
        is_negative = (unsigned >> last & _ONE).astype(bool) & (count > 0)
        field = np.where(is_negative, field | ~inside, field)
    return field.astype(value.dtype)


def insert_field(field: Bits, value: Bits, start: Bits, length: Bits) -> Bits:
    """Return `value` with `length` bits from bit `start` replaced by the low bits of `field`."""
    first, count = _counts(start, length)
    place = first.astype(np.uint64)
    inside = _ones(count) << place
    merged = value.astype(np.uint64) & ~inside | field.astype(np.uint64) << place & inside
    return merged.astype(value.dtype)


def _counts(*amounts: Bits) -> list[NDArray[np.int64]]:
    """Return the low bytes: bit positions and lengths are 0 to 255."""
    return [(amount & np.uint32(0xFF)).astype(np.int64) for amount in amounts]


def _ones(count: Bits) -> NDArray[np.uint64]:
    """Return a number with `count` low bits set, at most 64."""
    return (_ONE << count.astype(np.uint64)) - _ONE


@emits("bmsk")
def _bmsk(builder: Builder, instruction: Instruction) -> None:
    mode = one_of(instruction, "wrap", "clamp")
    modifiers(instruction, "wrap clamp")
    start, length = (_limited(x, mode) for x in sources(builder, instruction, "u32"))
    define(builder, instruction, apply(builder, bit_mask, start, length), "u32")


def bit_mask(start: Bits, length: Bits) -> Bits:
    """Return `length` bits set from bit `start`; what lies beyond 32 bits is lost."""
    return (_ones(length) << start.astype(np.uint64)).astype(np.uint32)


@emits("szext")
def _szext(builder: Builder, instruction: Instruction) -> None:
    mode = one_of(instruction, "wrap", "clamp")
    modifiers(instruction, "wrap clamp")
    kind = instruction.parts[-1]
    value, length = sources(builder, instruction, kind, "u32")
    expression = apply(builder, extract_field, value, "U4(0)", _limited(length, mode))
    define(builder, instruction, expression, kind)


def _limited(amount: str, mode: str) -> str:
    return f"({amount} & U4(31))" if mode == "wrap" else f"np.minimum({amount}, U4(32))"
