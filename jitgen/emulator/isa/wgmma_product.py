# SPDX-License-Identifier: Apache-2.0
"""
The arithmetic of one wgmma.mma_async, with its shapes and types.

Products of elements are exact in float32, and sums are float32 in the order of the host's matrix
product. Hardware may keep fewer bits between the sums of FP8: results differ from it by rounding.

PTX ISA, section "wgmma.mma_async".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Numbers
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.machine.accumulators import Accumulators, accumulators
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported

ROWS = 64
"""Rows of A and of the accumulators."""

ROW_BYTES = 32
"""Bytes of K in one instruction, for every type."""

_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}

_MAY_TRANSPOSE = frozenset({"f16", "bf16"})

_ACCUMULATORS = {
    "f32": frozenset({"f16", "bf16", "tf32", "e4m3", "e5m2"}),
    "f16": frozenset({"f16", "e4m3", "e5m2"}),
    "s32": frozenset({"s8", "u8"}),
}
"""Types of elements that each type of accumulators takes."""

_MIXED = ({"e4m3", "e5m2"}, {"s8", "u8"})
"""Types of A and B that may differ."""

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_MODIFIERS = frozenset({"wgmma", "mma_async", "sync", "aligned", "satfinite"})
_MAX_COLUMNS = 256
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """
    A decoded wgmma.mma_async.

    Attributes:
        target: The accumulators.
        a_type, b_type: Of the elements.
        a, b: Shapes in shared memory, B's columns being its rows.
        is_negated: Exactly one of A and B is negated.
        is_saturating: Whether integer sums saturate to int32; otherwise they wrap around.
    """

    target: Accumulators
    a_type: str
    b_type: str
    a: Operand
    b: Operand
    is_negated: bool = False
    is_saturating: bool = False

    def add(self, values: Numbers, product: NDArray[np.float32], is_added: bool) -> None:
        """
        Add a product to accumulators, in place.

        Args:
            values: [rows, columns] float32 or int32.
            product: [rows, columns]; exact where the accumulators are int32.
            is_added: Whether the product is added to the accumulator; otherwise it replaces the
                accumulator.
        """
        if self.is_negated:
            np.negative(product, out=product)
        if self.target.type == "s32":
            values[...] = self._integer_sum(values if is_added else 0, product)
            return
        if is_added:
            np.add(values, product, out=values)
        else:
            values[...] = product
        if self.target.type == "f16":
            with np.errstate(over="ignore"):
                values[...] = values.astype(np.float16)

    def _integer_sum(
        self, values: Numbers | int, product: NDArray[np.float32]
    ) -> NDArray[np.int32]:
        total = product.astype(np.int64) + values
        if self.is_saturating:
            total = np.clip(total, _INT32.min, _INT32.max)
        return total.astype(np.int32)


def parse(instruction: Instruction, registers: Sequence[int]) -> Product:
    """
    Return what an instruction computes.

    Args:
        instruction: A ``wgmma.mma_async``.
        registers: Rows of the register file that its accumulators are.

    Raises:
        Unsupported: It is sparse or binary, or such an instruction does not exist.
    """
    shape, *types = [part for part in instruction.parts if part not in _MODIFIERS]
    found = _SHAPE.fullmatch(shape)
    if not found or len(types) != 3:
        raise Unsupported(f"shape and types {'.'.join([shape, *types])}")
    columns, depth = int(found[1]), int(found[2])
    kind, a_type, b_type = types
    _check_types(kind, a_type, b_type)
    size = _ELEMENT_BYTES[a_type]
    if depth * size != ROW_BYTES or columns % 8 or not 8 <= columns <= _MAX_COLUMNS:
        raise Unsupported(f"shape {shape} of {a_type}")
    target = accumulators(kind, tuple(registers))
    if target.columns != columns:
        raise Unsupported(f"{len(registers)} registers for {columns} columns of {kind}")
    negated, (is_a_transposed, is_b_transposed) = _immediates(instruction, a_type)
    return Product(
        target=target,
        a_type=a_type,
        b_type=b_type,
        a=Operand(ROWS, ROW_BYTES, size, is_a_transposed),
        b=Operand(columns, ROW_BYTES, size, is_b_transposed),
        is_negated=negated,
        is_saturating=instruction.has("satfinite"),
    )


def _check_types(kind: str, a_type: str, b_type: str) -> None:
    may_mix = any({a_type, b_type} <= mixed for mixed in _MIXED)
    allowed = _ACCUMULATORS.get(kind, frozenset())
    if not {a_type, b_type} <= allowed or (a_type != b_type and not may_mix):
        raise Unsupported(f"types .{kind}.{a_type}.{b_type}")


def _immediates(instruction: Instruction, kind: str) -> tuple[bool, tuple[bool, bool]]:
    """Return what follows scale-d: whether the product is negated; A's and B's transposition."""
    given = [int(text, 0) for text in instruction.operands[4:]]
    has_signs = kind not in {"s8", "u8"}
    num_transposes = 0
    if kind in _MAY_TRANSPOSE:
        num_transposes = 1 if instruction.operands[1].startswith("{") else 2
    if len(given) != 2 * has_signs + num_transposes:
        raise Unsupported(f"{len(instruction.operands)} operands")
    signs, transposes = given[: 2 * has_signs], [value == 1 for value in given[2 * has_signs :]]
    if not set(signs) <= {1, -1}:
        raise Unsupported(f"imm-scale {signs}")
    a_transposed, b_transposed = [False, False, *transposes][-2:]
    return sum(signs) == 0 and bool(signs), (a_transposed, b_transposed)
