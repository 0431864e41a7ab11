# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of atomic operations: old value and operands to new value.

Values are arrays of the unsigned integers that lie in memory, an element for each update.

PTX ISA, sections "atom" and "red".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jitgen.emulator.arrays import Integers, Numbers
from jitgen.emulator.formats.numbers import decode, encode
from jitgen.emulator.isa.modifiers import width
from jitgen.emulator.program.table import Unsupported

Update = Callable[[Integers, Integers, Integers], Integers]
"""Old value, first and second operand to the new value; all unsigned, of the width of the type."""

_NUMPY = {"u": "u", "s": "i", "b": "u", "f": "f"}
_HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})


def _exact(function: Callable[[Numbers, Numbers], Numbers]) -> Callable[[str], Update]:
    """
    Return a function that makes an update from the name of a type.

    The update is `function` of the old value and the operand, both in numpy's type.
    """

    def make(kind: str) -> Update:
        dtype = f"{_NUMPY[kind[0]]}{width(kind) // 8}"

        def update(old: Integers, first: Integers, second: Integers) -> Integers:
            del second
            return np.asarray(function(old.view(dtype), first.view(dtype))).view(old.dtype)

        return update

    return make


def _in_halves(function: Callable[[Numbers, Numbers], Numbers]) -> Callable[[str], Update]:
    """
    Return a function that makes an update of f16 or bf16, also packed, from the name of a type.

    The update is `function` of the old value and the operand, both as float32.
    """

    def make(kind: str) -> Update:
        name = kind.removesuffix("x2")

        def update(old: Integers, first: Integers, second: Integers) -> Integers:
            del second
            old_lanes, lanes = (np.ascontiguousarray(x).view(np.uint16) for x in (old, first))
            sums = function(decode(old_lanes, name), decode(lanes, name))
            return encode(np.asarray(sums, np.float32), name).view(old.dtype)

        return update

    return make


def _bits(function: Callable[[Integers, Integers, Integers], Integers]) -> Callable[[str], Update]:
    """
    Return a function that makes an update, the same for every type.

    The update is `function` of the old value and both operands, all of them unsigned.
    """

    def make(kind: str) -> Update:
        del kind

        def update(old: Integers, first: Integers, second: Integers) -> Integers:
            return np.asarray(function(old, first, second)).astype(old.dtype)

        return update

    return make


_INTEGERS = {"u32", "s32", "u64", "s64"}
_BITS = {"b32", "b64"}

OPERATIONS: dict[str, tuple[Callable[[str], Update], set[str]]] = {
    "add": (_exact(np.add), _INTEGERS | {"f32", "f64"}),
    "min": (_exact(np.minimum), _INTEGERS),
    "max": (_exact(np.maximum), _INTEGERS),
    "and": (_exact(np.bitwise_and), _BITS),
    "or": (_exact(np.bitwise_or), _BITS),
    "xor": (_exact(np.bitwise_xor), _BITS),
    "exch": (_bits(lambda old, new, _: new + old * 0), _BITS),
    "cas": (_bits(lambda old, seen, new: np.where(old == seen, new, old)), _BITS | {"b16"}),
    "inc": (_bits(lambda old, top, _: np.where(old >= top, 0, old + 1)), {"u32"}),
    "dec": (
        _bits(lambda old, top, _: np.where((old == 0) | (old > top), top, old - 1)),
        {"u32"},
    ),
}
"""For each operation the function that makes its update, and the types that it exists for."""

_HALF_OPERATIONS = {
    "add": _in_halves(np.add),
    "min": _in_halves(np.fmin),
    "max": _in_halves(np.fmax),
}


def update_of(operation: str, kind: str) -> Update:
    """
    Return the function that computes an operation's update of a number of type `kind`.

    Raises:
        Unsupported: The operation does not exist for this type.
    """
    if kind in _HALVES and operation in _HALF_OPERATIONS:
        return _HALF_OPERATIONS[operation](kind)
    make, types = OPERATIONS[operation]
    if kind not in types:
        raise Unsupported(f".{operation} of type .{kind}")
    return make(kind)
