# SPDX-License-Identifier: Apache-2.0
"""
PTX types, and how generated code holds them in numpy.

A register has a width, not a type: its file stores unsigned integers (booleans for predicates), and
each instruction takes the bits for what it says they are. PTX ISA, sections "Types", "Operand Size
Exceeding Instruction-Type Size" and "Constants".
"""

from __future__ import annotations

import re

import numpy as np

from jitgen.emulator.program.table import Unsupported

DTYPES = {
    "b8": "U1", "u8": "U1", "s8": "I1",
    "b16": "U2", "u16": "U2", "s16": "I2", "f16": "F2", "bf16": "U2",
    "b32": "U4", "u32": "U4", "s32": "I4", "f32": "F4", "f16x2": "U4", "bf16x2": "U4", "tf32": "U4",
    "b64": "U8", "u64": "U8", "s64": "I8", "f64": "F8", "f32x2": "U8",
    "pred": "bool",
}  # fmt: skip
"""What numpy's type for each PTX type is called in generated code; packed types are their bits."""

_TYPES: dict[str, type[np.integer] | type[np.floating]] = {
    "U1": np.uint8, "U2": np.uint16, "U4": np.uint32, "U8": np.uint64,
    "I1": np.int8, "I2": np.int16, "I4": np.int32, "I8": np.int64,
    "F2": np.float16, "F4": np.float32, "F8": np.float64,
}  # fmt: skip

NAMESPACE: dict[str, object] = {"np": np, **_TYPES}
"""The names that every block function may use."""

FILE_DTYPES = {"r": "U4", "q": "U8", "h": "U2", "p": "bool"}
"""What the register files hold: registers of 32, 64 and 16 bits, and predicates."""

_INTEGER = re.compile(r"(-?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0([0-7]+)|(0|[1-9]\d*))U?")
_BASES = (16, 2, 8, 10)
_FLOAT_BITS = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
_DECIMAL = re.compile(r"-?\d*(?:\.\d*|\d(?=[eE]))(?:[eE][+-]?\d+)?")
_WARP_SIZE = "WARP_SZ"


def dtype_of(type: str) -> str:
    """
    Return what numpy's type for a PTX type is called in generated code.

    Raises:
        Unsupported: The emulator does not support the type.
    """
    if type not in DTYPES:
        raise Unsupported(f"type .{type}")
    return DTYPES[type]


def converted(expression: str, have: str, want: str) -> str:
    """
    Return the expression with its bits as another numpy type.

    What is too wide keeps its low bits. What is too narrow is extended, signed types with their
    sign and others with zeros.
    """
    if have == want:
        return expression
    whole = expression if expression.isidentifier() else f"({expression})"
    if "bool" in (have, want):
        return f"{whole}.astype({want})"
    if have[0] == "F" and have[1] < want[1]:
        have = f"U{have[1]}"
        whole = f"{whole}.view({have})"
    if have[1] != want[1]:
        have = f"{'I' if have[0] == 'I' and have[1] < want[1] else 'U'}{want[1]}"
        whole = f"{whole}.astype({have})"
    return whole if have == want else f"{whole}.view({want})"


def scalar(number: float, type: str) -> np.generic:
    """Return a number as numpy scalar of a PTX type; integers keep their low bits."""
    name = dtype_of(type)
    if name == "bool":
        return np.bool_(number != 0)
    if name[0] == "F":
        return _TYPES[name](number)
    unsigned = _TYPES[f"U{name[1]}"]
    value: np.generic = unsigned(int(number) & ((1 << 8 * int(name[1])) - 1)).view(_TYPES[name])
    return value


def is_number(operand: str) -> bool:
    """Return whether an operand is a constant."""
    return operand.startswith(("-", ".")) or operand[:1].isdigit() or operand == _WARP_SIZE


def immediate(operand: str, type: str) -> np.generic:
    """
    Return the value of a constant, read as a PTX type, as numpy scalar.

    ``0f`` and ``0d`` spell the bits of a float: integer types take them as they are.

    Raises:
        Unsupported: It is not a valid spelling in PTX.
    """
    if operand == _WARP_SIZE:
        return scalar(32, type)
    if spelled := _FLOAT_BITS.fullmatch(operand):
        bits = spelled[1] or spelled[2]
        name = dtype_of(type)
        if name[0] != "F":
            return scalar(int(bits, 16), type)
        return _TYPES[name](
            np.array(int(bits, 16), f"u{len(bits) // 2}").view(f"f{len(bits) // 2}")
        )
    if digits := _INTEGER.fullmatch(operand):
        parts = zip(digits.groups()[1:], _BASES, strict=True)
        size = next(int(text, base) for text, base in parts if text)
        return scalar(-size if digits[1] else size, type)
    if _DECIMAL.fullmatch(operand) and operand not in {"-", ".", "-."}:
        return scalar(float(operand), type)
    raise Unsupported(f"operand {operand}")
