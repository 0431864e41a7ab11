# SPDX-License-Identifier: Apache-2.0
"""
Which instructions of a kernel were executed, and which of the others should have been.

Code that was not executed was not tested. Arithmetic may depend on the numbers, but a wait, a copy,
a matrix instruction or a store that no problem reaches is an untested part of the kernel's
protocol. Branches are counted, too, by their outcomes: of a branch that every thread took, or none,
one outcome was not tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.program.blocks import PASSED, TAKEN
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.unreached import Excuse, reasons_of, targets

if TYPE_CHECKING:
    from jitgen.emulator.program.translate import Program

_WAITS = {("mbarrier", "try_wait"), ("mbarrier", "test_wait")}

SYNCHRONISATION, COPY, MATRIX, STORE = "synchronisation", "copy", "matrix", "store"

_PURPOSES = {
    SYNCHRONISATION: (
        *("mbarrier", "bar", "barrier", "fence", "membar", "griddepcontrol", "setmaxnreg"),
        *("cp.async.bulk.commit_group", "cp.async.bulk.wait_group", "cp.async.wait_all"),
        *("cp.async.commit_group", "cp.async.wait_group", "cp.async.mbarrier"),
        *("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group"),
        *("tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit"),
        *("tcgen05.commit", "tcgen05.fence", "tcgen05.wait", "clusterlaunchcontrol"),
    ),
    COPY: ("cp", "ldmatrix", "st.async", "tcgen05.cp", "tcgen05.shift", "multimem"),
    MATRIX: ("wgmma", "mma", "tcgen05.mma", "tcgen05.ld"),
    STORE: ("st", "stmatrix", "red", "atom", "tcgen05.st", "tensormap"),
}
"""What instructions are for, by the first parts of their opcodes; the longest match counts."""

_PURPOSE_OF = {
    tuple(prefix.split(".")): purpose
    for purpose, prefixes in _PURPOSES.items()
    for prefix in prefixes
}


def purpose_of(instruction: Instruction) -> str:
    """Return what an instruction is for, if it must be executed by a test; else empty."""
    parts = instruction.parts
    for length in range(len(parts), 0, -1):
        if purpose := _PURPOSE_OF.get(parts[:length]):
            return purpose
    return ""


@dataclass(frozen=True, slots=True)
class Missed:
    """
    An instruction that must be executed by a test, and never was.

    Attributes:
        purpose: Purpose of the instruction: synchronisation, copy, matrix or store.
        place: Place of the instruction: line of the generated source, PTX line, text.
        reason: Why nothing can reach it; empty where something should have.
    """

    purpose: str
    place: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OneWay:
    """
    A branch that some thread came to, and that had one outcome only.

    Attributes:
        place: Place of the branch in the source.
        never: The other outcome: taken, or passed.
    """

    place: str
    never: str


@dataclass(frozen=True)
class Coverage:
    """
    The executed instructions and branches of one kernel. Those of several runs add up with ``|``.

    Attributes:
        program: The kernel.
        times: For each instruction, the number of warps that came to it; for one of
            `Program.guarded` the number of runs in which its guard held for a thread
            [instructions].
        ways: How threads left each block that ends with a branch: `TAKEN`, `PASSED`, or both
            [blocks].
        excuses: Branches that are unreachable, according to the author of the kernel.
    """

    program: Program
    times: NDArray[np.int64]
    ways: NDArray[np.uint8]
    excuses: tuple[Excuse, ...] = ()

    @classmethod
    def of(
        cls,
        program: Program,
        block_counts: NDArray[np.int64],
        held: set[int],
        ways: bytes | bytearray = b"",
    ) -> Coverage:
        """
        Return the coverage of one run.

        Args:
            program: The kernel.
            block_counts: How many warps executed each block [blocks].
            held: Instructions with a guard that held for some thread.
            ways: How threads left each block [blocks]; empty where none did.
        """
        times = np.repeat(block_counts, [block.size for block in program.blocks])
        for at in program.guarded:
            times[at] = int(at in held)
        return cls(program, times, np.frombuffer(ways or bytes(len(block_counts)), np.uint8))

    def __or__(self, other: Coverage) -> Coverage:
        """Return the coverage of two sets of runs together."""
        return replace(self, times=self.times + other.times, ways=self.ways | other.ways)

    def excused(self, excuses: tuple[Excuse, ...]) -> Coverage:
        """Return this coverage with `excuses`, the reasons for what nothing reaches."""
        return replace(self, excuses=excuses)

    @cached_property
    def missed(self) -> list[Missed]:
        """What must be executed by a test and was not, in the order of the program."""
        program = self.program
        return [
            Missed(purpose, program.place(at), self._reasons.get(program.block_at(at), ""))
            for at, instruction in enumerate(program.code)
            if not self.times[at] and (purpose := purpose_of(instruction))
        ]

    @cached_property
    def _reasons(self) -> dict[int, str]:
        """The reason why each unreachable block is unreachable, by number."""
        return reasons_of(self.program, self._unreached_blocks, self.excuses)

    @cached_property
    def outcomes(self) -> list[tuple[int, int]]:
        """
        The outcomes of branches, pairs of a block and `TAKEN` or `PASSED`, that some problem should
        have: of branches that a thread came to, without those that lead to an unreachable block,
        and without blocks that wait for an mbarrier, because such a wait may succeed at once.
        """
        found: list[tuple[int, int]] = []
        for number in np.flatnonzero(self.ways).tolist():
            block = self.program.blocks[number]
            code = self.program.code[block.start : block.end]
            if not any(x.parts[:2] in _WAITS for x in code):
                taken, passed = targets(self.program, number)
                for way, target in ((TAKEN, taken), (PASSED, passed)):
                    if target not in self._reasons:
                        found.append((number, way))
        return found

    @property
    def one_way(self) -> list[OneWay]:
        """The outcomes that no problem had, in the order of the program."""
        names = {TAKEN: "taken", PASSED: "passed"}
        return [
            OneWay(self.program.place(self.program.blocks[number].end - 1), names[way])
            for number, way in self.outcomes
            if not self.ways[number] & way
        ]

    @property
    def lacking(self) -> list[Missed]:
        """What must be executed by a test, was not, and can be reached."""
        return [missed for missed in self.missed if not missed.reason]

    @property
    def purposes(self) -> dict[str, tuple[int, int]]:
        """By purpose, how many instructions were executed, and how many there are."""
        found = dict.fromkeys(_PURPOSES, (0, 0))
        for instruction, times in zip(self.program.code, self.times.tolist(), strict=True):
            if purpose := purpose_of(instruction):
                executed, total = found[purpose]
                found[purpose] = (executed + bool(times), total + 1)
        return {purpose: counts for purpose, counts in found.items() if counts[1]}

    @property
    def functions(self) -> dict[str, tuple[int, int, list[int]]]:
        """
        By function of the generated source: lines that were executed, lines there are, and which
        were not. A line counts as executed when any of its instructions was.
        """
        lines: dict[str, dict[int, bool]] = {}
        for at, instruction in enumerate(self.program.code):
            if instruction.source is not None:
                of = lines.setdefault(self.program.role(at), {})
                of[instruction.source] = of.get(instruction.source, False) or bool(self.times[at])
        return {
            name: (sum(of.values()), len(of), sorted(line for line in of if not of[line]))
            for name, of in sorted(lines.items())
        }

    @property
    def _unreached_blocks(self) -> set[int]:
        return {
            number
            for number, block in enumerate(self.program.blocks)
            if not self.times[block.start : block.end].any()
        }

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yield for each block its first and its last line of PTX, and its executions by warps."""
        code = self.program.code
        for block in self.program.blocks:
            times = int(self.times[block.start : block.end].max())
            yield code[block.start].line, code[block.end - 1].line, times

    def to_json(self) -> dict[str, object]:
        """Return the coverage as JSON values."""
        return {
            "entry": self.program.module.entry,
            "instructions": [int(np.count_nonzero(self.times)), len(self.times)],
            "purposes": {name: list(counts) for name, counts in self.purposes.items()},
            "branches": [len(self.outcomes) - len(self.one_way), len(self.outcomes)],
            "one_way": [{"place": x.place, "never": x.never} for x in self.one_way],
            "functions": {
                name: {"lines": [executed, total], "never": never}
                for name, (executed, total, never) in self.functions.items()
            },
            "blocks": [list(block) for block in self.blocks()],
            "never_executed": [
                {"purpose": x.purpose, "place": x.place, "reason": x.reason} for x in self.missed
            ],
        }
