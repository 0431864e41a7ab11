# SPDX-License-Identifier: Apache-2.0
"""
Instructions on the bytes of a register: picking four out of eight, dot products.

Sources: PTX ISA, sections "prmt", "dp4a" and "dp2a".
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.isa.bits import joined
from jitgen.emulator.isa.modifiers import apply, define, modifiers, one_of, sources
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Bits = NDArray[np.integer]

_NTH = np.arange(4)

_SELECTOR = _NTH[:, None]

_PERMUTATIONS = {
    "f4e": _SELECTOR + _NTH,  # four bytes forward
    "b4e": (_SELECTOR - _NTH) % 8,  # four bytes backward
    "rc8": _SELECTOR + 0 * _NTH,  # one byte everywhere
    "ecl": np.maximum(_SELECTOR, _NTH),  # in order, no byte before the one selected
    "ecr": np.minimum(_SELECTOR, _NTH),  # in order, no byte after it
    "rc16": 2 * (_SELECTOR % 2) + _NTH % 2,  # one half twice
}
"""For each mode and selector of prmt: where the bytes of the result, lowest first, are from."""

_NIBBLES = np.array([0, 4, 8, 12], np.uint32)
_LITERAL = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")


@emits("prmt")
def _prmt(builder: Builder, instruction: Instruction) -> None:
    mode = one_of(instruction, " ".join(_PERMUTATIONS), "")
    modifiers(instruction, mode, types=1 + bool(mode))
    low, high, selector = sources(builder, instruction, "b32")
    literal = instruction.operands[3]
    if mode:
        table = builder.constant(_PERMUTATIONS[mode], mode)
        places = f"{table}[{selector} & U4(3)]"
    elif _LITERAL.fullmatch(literal):
        places = builder.constant(_fixed(int(literal.rstrip("U"), 0) & 0xFFFF), "places")
    else:
        places = apply(builder, nibbles, selector)
    define(builder, instruction, apply(builder, permute, low, high, places), "b32")


@cache
def _fixed(selector: int) -> Bits:
    """Return the byte places that a literal selector of prmt names."""
    return nibbles(np.asarray(selector, np.uint32))


def nibbles(selector: Bits) -> Bits:
    """Return the four low half bytes of each selector, lowest first: [..., 4] uint32."""
    return np.asarray(selector)[..., None] >> _NIBBLES & np.uint32(15)


def permute(low: Bits, high: Bits, places: Bits) -> Bits:
    """
    Return four bytes picked from eight.

    Args:
        low: The lower four of the eight bytes, uint32.
        high: The upper four.
        places: For each byte of the result, the lowest first, which of the eight, in bits 0 to 2;
            bit 3 takes the sign of that byte, eight times, instead. [n, 4], or [4] for all threads.
    """
    eight = np.asarray(joined(low, high))[..., None].view(np.uint8)
    if places.ndim == 1:
        picked = eight[..., places & 7]
    else:
        eight = np.broadcast_to(eight, (*places.shape[:-1], 8))
        picked = np.take_along_axis(eight, places & 7, axis=-1)
    is_sign = places & 8
    if is_sign.any():
        picked = np.where(is_sign, (picked >> np.uint8(7)) * np.uint8(0xFF), picked)
    return np.ascontiguousarray(picked).view(np.uint32)[..., 0]


@emits("dp4a", "dp2a")
def _dot(builder: Builder, instruction: Instruction) -> None:
    half = one_of(instruction, "lo hi", "")
    modifiers(instruction, half, types=2)
    kinds = instruction.parts[-2:]
    if not set(kinds) <= {"u32", "s32"} or bool(half) != (instruction.parts[0] == "dp2a"):
        raise Unsupported("operands of this dot product")
    total = "s32" if "s32" in kinds else "u32"
    a, b, c = sources(builder, instruction, *kinds, total)
    if half == "hi":
        b = f"({b} >> 16)"
    function = dot_2 if half else dot_4
    define(builder, instruction, apply(builder, function, a, b, c), total)


def dot_4(a: Bits, b: Bits, c: Bits) -> Bits:
    """Return `c` plus the summed products of the bytes of `a` and `b`, signed as arrays are."""
    parts = [_part(a, 8 * i, 8) * _part(b, 8 * i, 8) for i in range(4)]
    products: NDArray[np.int64] = np.add.reduce(parts)
    return c + products.astype(c.dtype)


def dot_2(a: Bits, b: Bits, c: Bits) -> Bits:
    """Return `c` plus the summed products of the halves of `a` and the two low bytes of `b`."""
    parts = [_part(a, 16 * i, 16) * _part(b, 8 * i, 8) for i in range(2)]
    products: NDArray[np.int64] = np.add.reduce(parts)
    return c + products.astype(c.dtype)


def _part(value: Bits, start: int, bits: int) -> NDArray[np.int64]:
    """Return some bits of each element as int64, with the sign of the array's type."""
    wide = value.astype(np.int64) >> start & (1 << bits) - 1
    return wide - ((wide >> bits - 1 & 1) << bits) if value.dtype.kind == "i" else wide
