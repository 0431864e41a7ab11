# SPDX-License-Identifier: Apache-2.0
"""
Reasons why blocks of a kernel are unreachable, so that tests need not execute them.

Two reasons follow from the program: no way leads there, or every way from there ends in a trap. The
third is an `Excuse` of the kernel's author, which is listed with its text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jitgen.emulator.program.translate import Program

TRAPPED = "every way from here ends in a trap: an assertion of the compiler"
CUT_OFF = "no way leads here: the compiler left it behind"


class Excuse(Protocol):
    """
    A part of the generated source that is never executed.

    Connected blocks, none of which was ever executed, are excused when one of them comes from the
    body of an ``if`` with this condition, or of the function that is called there alone.
    """

    @property
    def condition(self) -> str:
        """Part of the condition, as `ast.unparse` writes it."""

    @property
    def reason(self) -> str:
        """Why the condition never holds."""

    @property
    def function(self) -> str:
        """Name of a function that is called only under the condition; empty: there is none."""


def reasons_of(
    program: Program, unreached: set[int], excuses: Iterable[Excuse] = ()
) -> dict[int, str]:
    """Return the reason for each block that is unreachable."""
    follow = [_successors(program, number) for number in range(len(program.blocks))]
    found: dict[int, str] = {}
    for excuse in excuses:
        lines = _lines_under(program.source, excuse)
        for together in _connected(unreached, follow):
            if any(lines & _lines_of(program, number) for number in together):
                found |= dict.fromkeys(together, excuse.reason)
    found |= dict.fromkeys(_doomed(program, follow), TRAPPED)
    return found | dict.fromkeys(set(range(len(follow))) - _reachable(follow), CUT_OFF)


def _reachable(follow: list[list[int]]) -> set[int]:
    """Return the blocks that some way from the first one leads to."""
    found, waiting = {0}, [0]
    while waiting:
        more = {block for block in follow[waiting.pop()] if block >= 0} - found
        found |= more
        waiting += more
    return found


def _doomed(program: Program, follow: list[list[int]]) -> set[int]:
    """Return the blocks from which every way ends in a trap."""
    found = {
        number
        for number, block in enumerate(program.blocks)
        if any(x.op == "trap" and x.guard is None for x in program.code[block.start : block.end])
    }
    size = -1
    while size != len(found):
        size = len(found)
        found |= {number for number, after in enumerate(follow) if found.issuperset(after)}
    return found


def _connected(blocks: set[int], follow: list[list[int]]) -> list[set[int]]:
    """Return the connected sets of `blocks`: blocks that follow each other are in one set."""
    beside: dict[int, set[int]] = {block: set() for block in blocks}
    for block in blocks:
        for after in blocks.intersection(follow[block]):
            beside[block].add(after)
            beside[after].add(block)
    parts = []
    while beside:
        part, waiting = set(), [next(iter(beside))]
        while waiting:
            block = waiting.pop()
            part.add(block)
            waiting += beside.pop(block, ())
        parts.append(part)
    return parts


def _lines_under(source: str, excuse: Excuse) -> set[int]:
    """Return the lines of the bodies of each ``if`` and function that `excuse` is about."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.If) and excuse.condition in ast.unparse(node.test))
        or (isinstance(node, ast.FunctionDef) and node.name == excuse.function)
        for line in range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)
    }


def _lines_of(program: Program, number: int) -> set[int | None]:
    block = program.blocks[number]
    return {instruction.source for instruction in program.code[block.start : block.end]}


def targets(program: Program, number: int) -> tuple[int, int]:
    """
    Return the block where threads go that take the branch at the end of a block, and the block
    where the others go; -1: they exit.
    """
    taken, passed = _successors(program, number)
    return taken, passed


def _successors(program: Program, number: int) -> list[int]:
    """Return the blocks that may follow block `number`; -1 where threads exit."""
    block = program.blocks[number]
    last = program.code[block.end - 1]
    after = number + 1 if number + 1 < len(program.blocks) else -1
    if last.parts[0] == "bra":
        found = [program.block_of(last.operands[0])]
    elif last.parts[0] in {"ret", "exit"}:
        found = [-1]
    else:
        return [after]
    return found if last.guard is None else [*found, after]
