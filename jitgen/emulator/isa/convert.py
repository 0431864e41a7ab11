# SPDX-License-Identifier: Apache-2.0
"""
Conversions between numbers of one register each, and those that make a pair: of two float32, or of
another pair.

Not modelled: stochastic rounding (``.rs``) and the scaled conversions, which are refused.

Source: PTX ISA, sections "cvt" and "cvt.pack".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, Numbers
from jitgen.emulator.formats.numbers import FORMATS, ROUNDINGS, decode, encode
from jitgen.emulator.isa.floating import flush, round_to_float32, saturate
from jitgen.emulator.isa.modifiers import apply, define, modifiers, one_of, sources, width
from jitgen.emulator.program.builder import DTYPES, Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

_CODED = ("f16", "bf16", "tf32")
_FLOATS = (*_CODED, "f32", "f64")
_KNOWN = "rn rz rm rp rna rni rzi rmi rpi ftz sat satfinite relu"


@dataclass(frozen=True, slots=True)
class Limits:
    """
    An integer type as the target of a conversion.

    Attributes:
        low, high: Its smallest and its largest number.
        nan: The result for NaN.
    """

    low: np.integer
    high: np.integer
    nan: np.integer


@emits("cvt")
def _cvt(builder: Builder, instruction: Instruction) -> None:
    target, source = instruction.parts[-2:]
    if target in PAIRS:
        emit_pair(builder, instruction)
        return
    found = modifiers(instruction, _KNOWN, types=2)
    if source not in _FLOATS and target not in _FLOATS:
        _between_integers(builder, instruction, "sat" in found)
        return
    value = _number(builder, instruction.operands[1], source)
    if "ftz" in found and source == "f32":
        value = apply(builder, flush, value)
    if target in _FLOATS:
        _to_float(builder, instruction, value, found)
    else:
        rounding = one_of(instruction, "rni rzi rmi rpi", "")
        limits = builder.constant(_limits(target, is_wide=source == "f64"), f"limits_{target}")
        value = apply(builder, to_integers, value, repr(rounding.removesuffix("i")), limits)
        define(builder, instruction, value, target)


def _number(builder: Builder, operand: str, kind: str) -> str:
    """Return the expression of an operand as numbers that numpy has a type for."""
    if kind in _CODED:
        return apply(builder, decode, builder.value(operand, f"b{width(kind)}"), repr(kind))
    return builder.value(operand, kind)


def _between_integers(builder: Builder, instruction: Instruction, is_saturating: bool) -> None:
    target, source = instruction.parts[-2:]
    (value,) = sources(builder, instruction, source)
    if is_saturating:
        low, high = _range(source)
        smallest, largest = _range(target)
        value = f"np.clip({value}, {max(low, smallest)}, {min(high, largest)})"
    define(builder, instruction, f"({value}).astype({DTYPES[target]})", target)


def _range(kind: str) -> tuple[int, int]:
    """Return the smallest and the largest number of an integer type."""
    if kind[0] == "s":
        return -(1 << width(kind) - 1), (1 << width(kind) - 1) - 1
    return 0, (1 << width(kind)) - 1


@cache
def _limits(target: str, *, is_wide: bool) -> Limits:
    """Return the limits of conversions to an integer type, from f64 if `is_wide`."""
    low, high = _range(target)
    dtype = np.dtype(f"{'i' if target[0] == 's' else 'u'}{width(target) // 8}").type
    is_odd = is_wide or width(target) == 64
    nan = low if target[0] == "s" else 1 << width(target) - 1
    return Limits(dtype(low), dtype(high), dtype(nan if is_odd else 0))


def to_integers(values: Numbers, rounding: str, limits: Limits) -> Numbers:
    """
    Return integers of the type of `limits`; what is out of range becomes the nearest in range.

    Args:
        values: float32 or float64.
        rounding: A key of `ROUNDINGS`; ``""`` rounds toward zero.
        limits: Smallest and largest integer, and the result for NaN.
    """
    whole = np.asarray(ROUNDINGS[rounding or "rz"](values), np.float64)
    is_low, is_high = whole <= float(limits.low), whole >= float(limits.high)
    is_nan = np.isnan(whole)
    inside = np.where(is_low | is_high | is_nan, 0.0, whole).astype(limits.low.dtype)
    clipped = np.where(is_low, limits.low, np.where(is_high, limits.high, inside))
    return np.where(is_nan, limits.nan, clipped)


def _to_float(
    builder: Builder, instruction: Instruction, value: str, found: frozenset[str]
) -> None:
    target, source = instruction.parts[-2:]
    integral = one_of(instruction, "rni rzi rmi rpi", "")
    rounding = one_of(instruction, "rz rm rp rna", "rn")
    if integral:
        value = apply(builder, ROUNDINGS[integral.removesuffix("i")], value)
    if source not in _FLOATS and (target in _CODED or rounding != "rn"):
        if width(source) == 64 and rounding != "rn":
            raise Unsupported(f"rounding .{rounding} of {source}")
        value = f"({value}).astype(F8)"
    if "sat" in found:
        value = apply(builder, saturate, value)
    if target in _CODED:
        encoder = _encoder(target, rounding, "satfinite" in found, "relu" in found)
        value = f"{builder.constant(encoder, f'to_{target}')}({value})"
        define(builder, instruction, value, f"b{width(target)}")
        return
    if target == "f32" and rounding != "rn":
        value = apply(builder, round_to_float32, f"({value}).astype(F8)", "F8(0)", repr(rounding))
    value = f"({value}).astype({DTYPES[target]})"
    if "ftz" in found and target == "f32":
        value = apply(builder, flush, value)
    define(builder, instruction, value, target)


@cache
def _encoder(
    target: str,
    rounding: str,
    is_saturating: bool,
    is_relu: bool,
) -> Callable[[Numbers], Numbers]:
    return partial(
        encode, name=target, rounding=rounding, is_saturating=is_saturating, is_relu=is_relu
    )


@emits("cvt.pack")
def _pack(builder: Builder, instruction: Instruction) -> None:
    """Saturate two integers and join them; a third operand keeps its low bits above them."""
    has_third = len(instruction.operands) == 4
    modifiers(instruction, "pack sat", types=2 + has_third)
    target, source = instruction.parts[3:5]
    types = [source, source, "b32"]
    high, low, *third = sources(builder, instruction, *types[: 2 + has_third])
    bits = width(target)
    fields = [_field(low, target, 0), _field(high, target, bits)]
    if third:
        fields.append(f"({third[0]} << U4({2 * bits}))")
    define(builder, instruction, " | ".join(fields), "b32")


def _field(value: str, target: str, place: int) -> str:
    """Return the expression of `value` clipped to an integer type and shifted to its place."""
    low, high = _range(target)
    clipped = f"np.clip({value}, {low}, {high}).astype(U4)"
    return f"(({clipped} & U4({(1 << width(target)) - 1})) << U4({place}))"


_REGISTERS = {
    **{f"{name}x2": "b16" for name in ("e4m3", "e5m2", "e2m3", "e3m2", "ue8m0")},
    "e2m1x2": "b8",
    "f16x2": "b32",
    "bf16x2": "b32",
}
"""The register that holds a pair."""

PAIRS = frozenset(_REGISTERS)
"""The pairs that `emit_pair` makes."""


def emit_pair(builder: Builder, instruction: Instruction) -> None:
    """Translate a conversion whose target is one of `PAIRS`."""
    target, source = instruction.parts[-2:]
    found = modifiers(instruction, "rn rz rp satfinite relu", types=2)
    rounding = one_of(instruction, "rz rp", "rn")
    store = _store(target, rounding, "satfinite" in found, "relu" in found)
    if source == "f32":
        upper, lower = sources(builder, instruction, "f32", "f32")
        lanes = f"{builder.constant(stack, 'stack')}({lower}, {upper})"
    elif source in PAIRS:
        (pair,) = sources(builder, instruction, _REGISTERS[source])
        lanes = f"{builder.constant(split_pair, 'split_pair')}({pair}, {source!r})"
    else:
        raise Unsupported(f"conversion of {source} to {target}")
    name = builder.constant(store, f"to_{target}")
    define(builder, instruction, f"{name}({lanes})", _REGISTERS[target])


@cache
def _store(
    target: str, rounding: str, is_saturating: bool, is_relu: bool
) -> Callable[..., Integers]:
    return partial(
        join_pair, name=target, rounding=rounding, is_saturating=is_saturating, is_relu=is_relu
    )


def stack(lower: Integers, upper: Integers) -> NDArray[np.float32]:
    """Return two arrays [n], or scalars, as [n, 2]."""
    lanes = np.empty((*np.broadcast(lower, upper).shape, 2), np.float32)
    lanes[..., 0], lanes[..., 1] = lower, upper
    return lanes


def split_pair(bits: Integers, name: str) -> NDArray[np.float32]:
    """Return the numbers of pairs, the lower one first: [n] unsigned to [n, 2]."""
    kind = name.removesuffix("x2")
    if kind == "e2m1":
        return decode(np.stack((bits, bits >> np.uint8(4)), axis=-1), kind)
    columns = np.ascontiguousarray(bits).reshape(*np.shape(bits), 1)
    return decode(columns.view(_dtype(kind)), kind)


_OF_TWO = {1: np.uint16, 2: np.uint32}
"""The type of a pair, by the bytes of each."""


def join_pair(
    values: Numbers, name: str, *, rounding: str, is_saturating: bool, is_relu: bool
) -> Integers:
    """Return registers of pairs: [n, 2], the lower one first, to [n] unsigned."""
    kind = name.removesuffix("x2")
    codes = encode(values, kind, rounding=rounding, is_saturating=is_saturating, is_relu=is_relu)
    if kind == "e2m1":
        return codes[..., 0] | codes[..., 1] << np.uint8(4)
    return np.ascontiguousarray(codes).view(_OF_TWO[codes.itemsize])[..., 0]


def _dtype(kind: str) -> type[np.unsignedinteger]:
    return np.uint8 if kind == "ue8m0" else FORMATS[kind].dtype
