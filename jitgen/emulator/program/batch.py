# SPDX-License-Identifier: Apache-2.0
"""
Runs of one operation on many registers, executed as one operation on a matrix.

An epilogue or a promotion of accumulators is some sixty ``fma`` in a row that need nothing of each
other. Each alone costs numpy more in calls than in arithmetic; together they are a few calls on
arrays [operations, n]. Operands that are adjacent rows of a register file, as they mostly are when
sorted, are not even copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Vector

Namer = Callable[[object, str], str]
"""Names an object in generated code, given a hint."""

_FEWEST = 4
"""Operations that are worth it."""

_OPERAND = re.compile(r"r(\d+)\.view\(F4\)")


def row_of(expression: str) -> int:
    """Return the row of the file of 32-bit registers that an operand of f32 is in; -1: none."""
    found = _OPERAND.fullmatch(expression)
    return int(found[1]) if found else -1


@dataclass(slots=True)
class Batch:
    """
    Operations of f32 that do not depend on each other.

    Attributes:
        function: Its name in generated code.
        targets: The row of the register file that each assigns, each once.
        sources: The rows that each takes, one for each argument of the function, all different.
        registers: The names of the targets.
    """

    function: str
    targets: list[int] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    registers: list[str] = field(default_factory=list)

    def takes(self, function: str, target: int, sources: tuple[int, ...]) -> bool:
        """Return whether an operation may be done together with these."""
        is_apart = set(self.targets).isdisjoint((target, *sources))
        return function == self.function and is_apart and sources not in self.sources

    def add(self, target: int, sources: tuple[int, ...], register: str) -> None:
        """Add an operation, which `takes` takes."""
        self.targets.append(target)
        self.sources.append(sources)
        self.registers.append(register)

    @property
    def is_worth_it(self) -> bool:
        """Whether the operations become one: enough of them, to adjacent rows."""
        rows = sorted(self.targets)
        return len(rows) >= _FEWEST and _are_adjacent(rows)

    def single(self, position: int) -> str:
        """Return the expression of one operation, uint32."""
        operands = ", ".join(f"r{row}.view(F4)" for row in self.sources[position])
        return f"({self.function}({operands})).view(U4)"

    def together(self, result: str, is_filed: Callable[[int], bool], name: Namer) -> list[str]:
        """
        Return what computes all, in the order of the targets' rows, and puts them into the file.

        Args:
            result: Name of a local for the results, uint32 [operations, n].
            is_filed: Returns whether the file holds what the local of a row holds.
            name: Returns the name of an object in generated code.
        """
        number = len(self.targets)
        order = sorted(range(number), key=lambda i: self.sources[i][::-1])  # accumulators last
        columns = zip(*(self.sources[i] for i in order), strict=True)
        arguments = ", ".join(_argument(rows, is_filed, name) for rows in columns)
        targets = [self.targets[i] for i in order]
        back = sorted(range(number), key=targets.__getitem__)
        moved = "" if _are_adjacent(back) else f".take({name(np.array(back), 'order')}, axis=0)"
        first = min(targets)
        return [
            f"{result} = {self.function}({arguments}).view(U4){moved}",
            f"r[{first}:{first + number}, s] = {result}",
        ]


def _argument(rows: tuple[int, ...], is_filed: Callable[[int], bool], name: Namer) -> str:
    """Return the expression of one argument of all operations, float32 [operations, n] or [n]."""
    distinct = sorted(set(rows))
    if len(distinct) == 1:
        return f"r{rows[0]}.view(F4)"
    if _are_adjacent(rows) and all(is_filed(row) for row in rows):
        return f"r[{rows[0]}:{rows[-1] + 1}, s].view(F4)"
    locals_ = ", ".join(f"r{row}" for row in distinct)
    order = name(np.array([distinct.index(row) for row in rows]), "order")
    return f"{name(matrix, 'matrix')}(f.n, ({locals_},), {order}).view(F4)"


def _are_adjacent(rows: list[int] | tuple[int, ...]) -> bool:
    return all(row == rows[0] + i for i, row in enumerate(rows))


def matrix(n: int, rows: Vector, order: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return registers, each [n] or a scalar, as rows in the given order [operations, n]."""
    found = np.empty((len(rows), n), np.uint32)
    for row, values in zip(found, rows, strict=True):
        row[...] = values
    return found.take(order, axis=0)
