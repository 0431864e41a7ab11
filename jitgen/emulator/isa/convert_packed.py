# SPDX-License-Identifier: Apache-2.0
"""
Conversions that make a pair: of two float32, or of another pair.

Source: PTX ISA, section "cvt".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.formats.numbers import FORMATS, decode, encode
from jitgen.emulator.isa.modifiers import define, modifiers, one_of, sources
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported

Array = NDArray[np.integer]

_REGISTERS = {
    **{f"{name}x2": "b16" for name in ("e4m3", "e5m2", "e2m3", "e3m2", "ue8m0")},
    "e2m1x2": "b8",
    "f16x2": "b32",
    "bf16x2": "b32",
}
"""The register that holds a pair."""

TYPES = frozenset(_REGISTERS)
"""The pairs that `emit` makes."""


def emit(builder: Builder, instruction: Instruction) -> None:
    """Translate a conversion whose target is one of `TYPES`."""
    target, source = instruction.parts[-2:]
    found = modifiers(instruction, "rn rz rp satfinite relu", types=2)
    rounding = one_of(instruction, "rz rp", "rn")
    store = _store(target, rounding, "satfinite" in found, "relu" in found)
    if source == "f32":
        upper, lower = sources(builder, instruction, "f32", "f32")
        lanes = f"{builder.constant(stack, 'stack')}({lower}, {upper})"
    elif source in TYPES:
        (pair,) = sources(builder, instruction, _REGISTERS[source])
        lanes = f"{builder.constant(split_pair, 'split_pair')}({pair}, {source!r})"
    else:
        raise Unsupported(f"conversion of {source} to {target}")
    name = builder.constant(store, f"to_{target}")
    define(builder, instruction, f"{name}({lanes})", _REGISTERS[target])


@cache
def _store(target: str, rounding: str, is_saturating: bool, is_relu: bool) -> Callable[..., Array]:
    return partial(
        join_pair, name=target, rounding=rounding, is_saturating=is_saturating, is_relu=is_relu
    )


def stack(lower: Array, upper: Array) -> NDArray[np.float32]:
    """Return two arrays [n], or scalars, as [n, 2]."""
    lanes = np.empty((*np.broadcast(lower, upper).shape, 2), np.float32)
    lanes[..., 0], lanes[..., 1] = lower, upper
    return lanes


def split_pair(bits: Array, name: str) -> NDArray[np.float32]:
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
) -> Array:
    """Return registers of pairs: [n, 2], the lower one first, to [n] unsigned."""
    kind = name.removesuffix("x2")
    codes = encode(values, kind, rounding=rounding, is_saturating=is_saturating, is_relu=is_relu)
    if kind == "e2m1":
        joined: Array = codes[..., 0] | codes[..., 1] << np.uint8(4)
        return joined
    whole: Array = np.ascontiguousarray(codes).view(_OF_TWO[codes.itemsize])[..., 0]
    return whole


def _dtype(kind: str) -> type[np.unsignedinteger]:
    return np.uint8 if kind == "ue8m0" else FORMATS[kind].dtype
