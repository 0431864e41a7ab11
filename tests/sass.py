# SPDX-License-Identifier: Apache-2.0
"""Loops in machine code: what ptxas makes of a kernel, beyond what counting instructions shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z]\w*)(?P<rest>[^;]*);"
)
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")

ASYNCHRONOUS = ("UTCQMMA", "UTCOMMA", "UTCHMMA", "UTCCP", "UTCBAR", "UTMALDG")
"""Matrix instructions, copies to tensor memory, commits of both, and loads by TMA."""

SHORTEST = 14
"""Instructions that a loop over k-blocks has at least: a wait, a copy and a step of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """
    A loop.

    Attributes:
        names: Its instructions without what follows the first dot, those of inner loops included.
    """

    names: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of instructions."""
        return len(self.names)

    def count(self, start: str) -> int:
        """Return how many instructions have a name that begins with `start`."""
        return sum(name.startswith(start) for name in self.names)


def loops(disassembly: str) -> list[Loop]:
    """Return every backward branch of `disassembly` as a loop, the shortest first."""
    names: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in disassembly.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(names)
        elif found := _INSTRUCTION.match(line):
            if found["name"] == "BRA" and (target := _TARGET.search(found["rest"])):
                branches.append((len(names), target[1]))
            names.append(found["name"])
    spans = [(labels[target], at) for at, target in branches if labels[target] <= at]
    return sorted((Loop(names=tuple(names[a : b + 1])) for a, b in spans), key=len)


def wrapped(disassembly: str) -> list[Loop]:
    """
    Return the loops that ptxas put around single asynchronous instructions.

    It does so where it cannot see that one thread executes them: then each costs a dozen
    instructions instead of one.
    """
    short = (loop for loop in loops(disassembly) if len(loop) < SHORTEST)
    return [loop for loop in short if any(map(loop.count, ASYNCHRONOUS))]


def k_loop(disassembly: str, name: str) -> Loop:
    """Return the innermost loop with an instruction whose name begins with `name`."""
    return next(loop for loop in loops(disassembly) if len(loop) >= SHORTEST and loop.count(name))
