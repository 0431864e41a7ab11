# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of bulk reductions.

PTX ISA, sections "cp.reduce.async.bulk" and "cp.reduce.async.bulk.tensor". Elements are reduced one
by one, in the order in which the copies are done; sums of floats are rounded to nearest even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from jitgen.emulator.arrays import DType, Numbers
from jitgen.emulator.formats.numbers import decode, encode
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported

_DTYPES: dict[str, DType] = {
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32,
    "u64": np.uint64, "s64": np.int64, "b64": np.uint64,
    "f16": np.float16, "bf16": np.uint16,
    "f32": np.float32, "f32.ftz": np.float32, "f64": np.float64,
}  # fmt: skip
"""numpy's type of each PTX type; bf16 as its bits."""


def _increment(old: Numbers, limit: Numbers) -> Numbers:
    return np.where(old >= limit, 0, old + 1)


def _decrement(old: Numbers, limit: Numbers) -> Numbers:
    return np.where((old == 0) | (old > limit), limit, old - 1)


_INTEGERS = "u32 s32 b32 u64 s64 b64"

_OPERATIONS: dict[str, tuple[Callable[[Numbers, Numbers], Numbers], str]] = {
    "add": (np.add, "u32 s32 u64 f16 bf16 f32 f32.ftz f64"),
    "min": (np.fmin, "u32 s32 u64 s64 f16 bf16"),
    "max": (np.fmax, "u32 s32 u64 s64 f16 bf16"),
    "inc": (_increment, "u32"),
    "dec": (_decrement, "u32"),
    "and": (np.bitwise_and, _INTEGERS),
    "or": (np.bitwise_or, _INTEGERS),
    "xor": (np.bitwise_xor, _INTEGERS),
}
"""The function of the old and the new value for each operation, and its types."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """
    An operation on elements of one type.

    Attributes:
        operation: Its name in PTX, "add" for example.
        type: The type's name in PTX, "bf16" for example.
        dtype: numpy's type of the elements.
    """

    operation: str
    type: str
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        """Raise ValueError if there is no such reduction."""
        if self.type not in _OPERATIONS[self.operation][1].split():
            raise ValueError(f"no bulk reduction .{self.operation} of {self.type}")
        object.__setattr__(self, "dtype", _DTYPES[self.type])

    def combine(self, old: Numbers, new: Numbers) -> Numbers:
        """Return the elements after the reduction, of `dtype` and the shape of both."""
        function = _OPERATIONS[self.operation][0]
        if self.type == "bf16":
            first, second = (decode(x.view(np.uint16), "bf16") for x in (old, new))
            result: Numbers = encode(function(first, second), "bf16")
        else:
            result = function(old, new)
        return result.astype(self.dtype, copy=False)


def reduction_of(instruction: Instruction) -> str:
    """Return the operation that an opcode names."""
    for operation in _OPERATIONS:
        if instruction.has(operation):
            return operation
    raise Unsupported("a reduction without a known operation")
