# SPDX-License-Identifier: Apache-2.0
"""
Which emitter translates which opcode.

Each module of `jitgen.emulator.isa` registers its own. The longest dotted prefix wins, so that a
family has one emitter and an odd member another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitgen.emulator.program.instruction import Instruction

if TYPE_CHECKING:
    from jitgen.emulator.program.builder import Builder

Emitter = Callable[["Builder", Instruction], None]
Flag = bool | Callable[[Instruction], bool]
Members = Callable[[Instruction], int]


class Unsupported(Exception):
    """The error of an emitter for an unknown modifier, type or operand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    How instructions with a prefix are translated.

    Attributes:
        emit: Writes the Python of one instruction.
        whole_warp: Its block is entered by whole warps only.
        members: Returns the lanes without which a warp does not enter its block, a bit each.
        starts_block: It starts its block, which can then be executed again.
        ends_block: Whether the instruction is the last of its block.
        is_wait: Whether the instruction may stop the threads.
    """

    emit: Emitter
    whole_warp: Flag
    members: Members
    starts_block: Flag
    ends_block: Flag
    is_wait: Flag


_rules: dict[tuple[str, ...], Rule] = {}


def emits(
    *prefixes: str,
    whole_warp: Flag = False,
    members: Members = lambda _: 0,
    starts_block: Flag = False,
    ends_block: Flag = False,
    is_wait: Flag = False,
) -> Callable[[Emitter], Emitter]:
    """Return a decorator that registers an emitter for opcodes with one of `prefixes`."""

    def register(emit: Emitter) -> Emitter:
        rule = Rule(
            emit=emit,
            whole_warp=whole_warp,
            members=members,
            starts_block=starts_block,
            ends_block=ends_block,
            is_wait=is_wait,
        )
        for prefix in prefixes:
            parts = tuple(prefix.split("."))
            if parts in _rules:
                raise ValueError(f"two emitters for {prefix}")
            _rules[parts] = rule
        return emit

    return register


def rule_of(instruction: Instruction) -> Rule | None:
    """Return the rule of the longest registered prefix; None where there is none."""
    parts = instruction.parts
    for length in range(len(parts), 0, -1):
        if rule := _rules.get(parts[:length]):
            return rule
    return None


def holds(flag: Flag, instruction: Instruction) -> bool:
    """Return whether a flag of a rule holds for `instruction`."""
    return flag if isinstance(flag, bool) else flag(instruction)
