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
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, Vector

Namer = Callable[[object, str], str]
"""Names an object in generated code, given a hint."""

_FEWEST = 4
"""Least number of operations that become one."""

_VIEWS = {"r": (".view(F4)", ".view(U4)"), "q": ("", "")}
"""
For each register file the views of an operand and of a result. Registers of 32 bits are viewed as
f32; those of 64 bits are not, because their functions take two f32 from the bits.
"""

_OPERAND = re.compile(r"(r)(\d+)\.view\(F4\)|(q)(\d+)")


def row_of(expression: str, file: str) -> int:
    """
    Return the row of the register file `file` that holds an operand of f32 or f32x2; -1 if it is no
    such register.
    """
    found = _OPERAND.fullmatch(expression)
    if not found or file not in found.groups():
        return -1
    return int(found[2] or found[4])


@dataclass(slots=True)
class Batch:
    """
    Operations that do not depend on each other.

    Attributes:
        function: Name in generated code of the function that all call.
        file: The register file of all: "r" for f32, "q" for f32x2.
        targets: The row of the register file that each assigns, each once.
        sources: The rows that each takes, one for each argument of the function, all different.
        registers: The names of the targets.
    """

    function: str
    file: str = "r"
    targets: list[int] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    registers: list[str] = field(default_factory=list)

    def takes(self, function: str, target: int, sources: tuple[int, ...]) -> bool:
        """
        Return whether an operation can join the batch: it calls the same function, neither reads
        nor sets a register that the batch sets, and has sources that no other operation has.
        """
        is_apart = set(self.targets).isdisjoint((target, *sources))
        return function == self.function and is_apart and sources not in self.sources

    def add(self, target: int, sources: tuple[int, ...], register: str) -> None:
        """Add an operation that `takes` accepts."""
        self.targets.append(target)
        self.sources.append(sources)
        self.registers.append(register)

    def involves(self, local: str) -> bool:
        """Return whether an operation takes or assigns the register of a local."""
        rows = {*self.targets, *chain.from_iterable(self.sources)}
        return local in {f"{self.file}{row}" for row in rows}

    @property
    def is_worth_it(self) -> bool:
        """Whether the operations become one: enough of them, to adjacent rows."""
        rows = sorted(self.targets)
        return len(rows) >= _FEWEST and _are_adjacent(rows)

    def single(self, position: int) -> str:
        """Return the expression of the operation at `position`, whose result is unsigned bits."""
        seen, back = _VIEWS[self.file]
        operands = ", ".join(f"{self.file}{row}{seen}" for row in self.sources[position])
        return f"({self.function}({operands})){back}"

    def together(self, result: str, is_filed: Callable[[str], bool], name: Namer) -> list[str]:
        """
        Return the statements that compute all operations at once and write the results to the
        register file, in the order of the targets' rows.

        Args:
            result: Name of a local for the results, unsigned [operations, n].
            is_filed: Returns whether the file holds what a local holds.
            name: Returns the name of an object in generated code.
        """
        number = len(self.targets)
        order = sorted(range(number), key=lambda i: self.sources[i][::-1])  # accumulators last
        columns = zip(*(self.sources[i] for i in order), strict=True)
        file, (seen, unsigned) = self.file, _VIEWS[self.file]
        arguments = ", ".join(_argument(file, rows, is_filed, name) + seen for rows in columns)
        targets = [self.targets[i] for i in order]
        back = sorted(range(number), key=targets.__getitem__)
        moved = "" if _are_adjacent(back) else f".take({name(np.array(back), 'order')}, axis=0)"
        first = min(targets)
        return [
            f"{result} = {self.function}({arguments}){unsigned}{moved}",
            f"{file}[{first}:{first + number}, s] = {result}",
        ]


def _argument(
    file: str, rows: tuple[int, ...], is_filed: Callable[[str], bool], name: Namer
) -> str:
    """Return the expression of one argument of all operations, unsigned [operations, n] or [n]."""
    distinct = sorted(set(rows))
    if len(distinct) == 1:
        return f"{file}{rows[0]}"
    if _are_adjacent(rows) and all(is_filed(f"{file}{row}") for row in rows):
        return f"{file}[{rows[0]}:{rows[-1] + 1}, s]"
    locals_ = ", ".join(f"{file}{row}" for row in distinct)
    order = name(np.array([distinct.index(row) for row in rows]), "order")
    return f"{name(matrix, 'matrix')}(f.n, ({locals_},), {order})"


def _are_adjacent(rows: list[int] | tuple[int, ...]) -> bool:
    return all(row == rows[0] + i for i, row in enumerate(rows))


def matrix(n: int, rows: Vector, order: NDArray[np.int64]) -> Integers:
    """Return registers, each [n] or a scalar, as rows in the given order [operations, n]."""
    found = np.empty((len(rows), n), rows[0].dtype)
    for row, values in zip(found, rows, strict=True):
        row[...] = values
    return found.take(order, axis=0)
