# SPDX-License-Identifier: Apache-2.0
"""
Registers and predicates that may be read before anything was written to them.

PTX gives a register no value at the start, and hardware hands out what the last warp left there. A
compiler may read one all the same where the value does not matter, as of a load that a predicate
turned off. So two sorts of reads count: those that no write precedes the first time, on any way
through the program; and, if a write precedes them on some ways only, those that decide what is
executed or what memory is accessed: guards, addresses, and the operands of barriers, copies and
matrix instructions. For these the machine keeps for each thread whether the register was written,
and looks when it is read; compilers emit none, so that nothing is lost. A ``mov`` that packs or
unpacks halves is no read of the first sort: compilers fill a half at a time, beside one that has no
value yet.

PTX ISA, section "State Spaces: Register State Space".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from jitgen.emulator.program.blocks import Block
from jitgen.emulator.program.instruction import Instruction

_REGISTER = re.compile(r"%[\w@$]+")
_IMPLICIT = re.compile(r"//\s*implicit-def:\s*[%$]+(\w+)")
"""Comments by which LLVM says that it reads a register on purpose."""

_FAMILIES = frozenset({"tcgen05", "wgmma", "mbarrier", "bar", "barrier", "cp"})
"""Instructions of which every operand counts, but for the data of tcgen05.st."""


@dataclass(slots=True)
class Accesses:
    """
    What one instruction does with registers.

    Attributes:
        guard: The predicate that guards it; empty if there is none.
        reads: Registers that it reads, besides the guard and `sums`.
        writes: Registers that it writes.
        sums: Accumulators that it reads if the product is added to them.
    """

    guard: str = ""
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    sums: set[str] = field(default_factory=set)

    @property
    def everything_read(self) -> set[str]:
        """All registers that the instruction reads: `reads`, `sums` and the guard."""
        everything = self.reads | self.sums
        return everything | {self.guard} if self.guard else everything


@dataclass(frozen=True, slots=True)
class Doubts:
    """
    Reads that may come too early.

    Attributes:
        rows: A number for each register in doubt.
        reads: By index of the instruction, the registers in doubt that it reads.
        sums: By index of the instruction, the accumulators in doubt to which its product may be
            added.
        firsts: By index of the instruction, the registers in doubt that it may write and that
            nothing surely wrote before.
    """

    rows: dict[str, int] = field(default_factory=dict)
    reads: dict[int, list[str]] = field(default_factory=dict)
    sums: dict[int, list[str]] = field(default_factory=dict)
    firsts: dict[int, list[str]] = field(default_factory=dict)

    def concern(self, at: int) -> bool:
        """Return whether registers of instruction `at` are to be checked."""
        return at in self.reads or at in self.sums or at in self.firsts


def find_doubts(
    code: list[Instruction],
    blocks: list[Block],
    accesses: list[Accesses],
    follow: list[list[int]],
    text: str,
) -> Doubts:
    """
    Return the reads that count and that no write precedes on some path.

    Args:
        code: The instructions.
        blocks: The basic blocks.
        accesses: The accesses of each instruction.
        follow: The blocks that may come next, of each block.
        text: The PTX, with its comments.
    """
    numbers = _numbers(accesses)
    written = [_bits(set() if one.guard else one.writes, numbers) for one in accesses]
    perhaps = [_bits(one.writes, numbers) for one in accesses]
    maybe, never = _at_starts(_gains(blocks, written), _gains(blocks, perhaps), follow)
    ways = _Ways(_gains(blocks, perhaps), follow)
    exempt = {f"%{name}" for name in _IMPLICIT.findall(text)}
    reads: dict[int, list[str]] = {}
    gains: dict[int, int] = {}
    for number, block in enumerate(blocks):
        lacks_some, lacks_all, here = maybe[number], never[number], 0
        for at in range(block.start, block.end):
            one = accesses[at]
            if lacks_some and _bits(one.everything_read, numbers) & lacks_some:
                certain = lacks_all | (lacks_some & ~(ways.writes_around(number) | here))
                if _packs(code[at]):
                    certain = 0
                counting = _deciding(code[at], one)
                reads[at] = [
                    name
                    for name in sorted(one.everything_read - exempt)
                    if (lacks_some if name in counting else certain) >> numbers[name] & 1
                ]
            gains[at] = perhaps[at] & lacks_some
            lacks_some, lacks_all = lacks_some & ~written[at], lacks_all & ~perhaps[at]
            here |= perhaps[at]
    reads = {at: names for at, names in reads.items() if names}
    tracked = sorted({name for names in reads.values() for name in names})
    sums = {
        at: [name for name in names if name in accesses[at].sums] for at, names in reads.items()
    }
    others = {
        at: [name for name in names if name not in accesses[at].sums] for at, names in reads.items()
    }
    doubtful = _bits(tracked, numbers)
    return Doubts(
        {name: row for row, name in enumerate(tracked)},
        {at: names for at, names in others.items() if names},
        {at: names for at, names in sums.items() if names},
        {
            at: [name for name in tracked if bits >> numbers[name] & 1]
            for at, bits in gains.items()
            if bits & doubtful
        },
    )


def _numbers(accesses: Iterable[Accesses]) -> dict[str, int]:
    names: dict[str, int] = {}
    for one in accesses:
        for name in (*one.everything_read, *one.writes):
            names.setdefault(name, len(names))
    return names


def _bits(names: Iterable[str], numbers: dict[str, int]) -> int:
    bits = 0
    for name in names:
        bits |= 1 << numbers[name]
    return bits


def _packs(instruction: Instruction) -> bool:
    """Return whether an instruction packs a register from halves, or unpacks one."""
    return instruction.parts[0] == "mov" and any(x.startswith("{") for x in instruction.operands)


def _deciding(instruction: Instruction, accesses: Accesses) -> set[str]:
    """Return the registers whose values decide what is executed or what memory is touched."""
    found = {accesses.guard}
    if instruction.parts[0] == "mov":
        return found
    if instruction.parts[0] in _FAMILIES and instruction.parts[:2] != ("tcgen05", "st"):
        return found | accesses.reads | accesses.sums
    for operand in instruction.operands:
        if operand.startswith("["):
            found.update(_REGISTER.findall(operand))
    return found


def _gains(blocks: list[Block], written: list[int]) -> list[int]:
    """
    Return the registers that each block writes, a bit each, from those that each instruction
    writes.
    """
    gains = []
    for block in blocks:
        gain = 0
        for bits in written[block.start : block.end]:
            gain |= bits
        gains.append(gain)
    return gains


def _at_starts(
    surely: list[int], perhaps: list[int], follow: list[list[int]]
) -> tuple[list[int], list[int]]:
    """
    Return for each block the registers, a bit each, that lack a write at its start.

    Args:
        surely: Registers that each block writes whatever guards say, a bit each.
        perhaps: Registers that each block may write, a bit each.
        follow: The blocks that may come next.

    Returns:
        Those that lack it on some way, and those that lack it on every way.
    """
    everything = -1
    some, every = [0] * len(follow), [everything] * len(follow)
    if follow:
        some[0] = everything
    waiting, seen = [0] if follow else [], {0}
    while waiting:
        number = waiting.pop()
        left, lost = some[number] & ~surely[number], every[number] & ~perhaps[number]
        for other in follow[number]:
            if other not in seen or left & ~some[other] or every[other] & ~lost:
                seen.add(other)
                some[other] |= left
                every[other] &= lost
                waiting.append(other)
    return some, every


@dataclass(slots=True)
class _Ways:
    """
    Registers that may be written before a block is entered for the first time.

    Attributes:
        perhaps: Registers that each block may write, a bit each.
        follow: The blocks that may come next.
    """

    perhaps: list[int]
    follow: list[list[int]]
    _known: dict[int, int] = field(default_factory=dict)

    def writes_around(self, number: int) -> int:
        """
        Return what may be written on ways from the start that do not go through block `number`.
        """
        if number not in self._known:
            found, waiting, seen = 0, [0], {0, number}
            while waiting and number:
                block = waiting.pop()
                found |= self.perhaps[block]
                new = [other for other in self.follow[block] if other not in seen]
                seen.update(new)
                waiting += new
            self._known[number] = found
        return self._known[number]
