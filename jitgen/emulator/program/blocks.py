# SPDX-License-Identifier: Apache-2.0
"""
Basic blocks: stretches of instructions that are entered at the first and left after the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Rule, holds

TAKEN, PASSED = 1, 2
"""How threads leave a block that ends with a branch, as bits: by the branch, or past it."""


@dataclass(frozen=True, slots=True)
class Block:
    """
    A basic block.

    Attributes:
        start, end: Its instructions are those with ``start <= index < end``.
        whole_warp: Whether only whole warps enter it, because one of its instructions requires all
            lanes.
        members: The lanes without which a warp does not enter it, a bit each.
    """

    start: int
    end: int
    whole_warp: bool
    members: int

    @property
    def size(self) -> int:
        """Number of instructions of the block."""
        return self.end - self.start


def cut(code: list[Instruction], labels: dict[str, int], rules: list[Rule]) -> list[Block]:
    """
    Return the blocks of a program, in its order.

    A block starts at a jump target, after an instruction that ends a block, and at an instruction
    that may have to be executed again.

    Args:
        code: The instructions.
        labels: Index of the instruction after each label.
        rules: The rule of each instruction.
    """
    starts = {0, *(index for index in labels.values() if index < len(code))}
    for instruction, rule in zip(code, rules, strict=True):
        if holds(rule.starts_block, instruction):
            starts.add(instruction.index)
        if holds(rule.ends_block, instruction) and instruction.index + 1 < len(code):
            starts.add(instruction.index + 1)
    ordered = sorted(starts)
    return [
        Block(
            start,
            end,
            any(holds(rules[i].whole_warp, code[i]) for i in range(start, end)),
            reduce(or_, (rules[i].members(code[i]) for i in range(start, end)), 0),
        )
        for start, end in zip(ordered, [*ordered[1:], len(code)], strict=True)
    ]


def successors(
    code: list[Instruction], blocks: list[Block], block_of: Callable[[str], int]
) -> list[list[int]]:
    """
    Return for each block the numbers of the blocks that may follow it.

    Args:
        code: The instructions.
        blocks: The basic blocks.
        block_of: Returns the number of the block at a label.
    """
    follow = []
    for number, block in enumerate(blocks):
        last, found = code[block.end - 1], []
        if last.parts[0] == "bra":
            found.append(block_of(last.operands[0]))
        if last.parts[0] not in {"bra", "ret", "exit"} or last.guard is not None:
            found.append(number + 1)
        follow.append([other for other in found if 0 <= other < len(blocks)])
    return follow
