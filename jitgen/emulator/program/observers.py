# SPDX-License-Identifier: Apache-2.0
"""
Which instructions may observe the schedule: whose result may depend on which thread was first.

These are loads that synchronise, atomics, waits for mbarriers that may fail, clocks and similar
instructions. The use of the result decides. A result that nothing uses is ignored. A loop that only
repeats the instruction until it gives a fixed value hides the schedule. Any other use reveals it.

The registers that depend on a result are found without regard to order, so that a use may be found
where there is none, and never the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from jitgen.emulator.program.blocks import Block
from jitgen.emulator.program.definitions import Accesses
from jitgen.emulator.program.instruction import Instruction

_NUMBER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")

_SYNCHRONISES = frozenset({"relaxed", "acquire", "volatile", "mmio"})
_UNITS = ("%smid", "%clock", "%globaltimer")
_FLOATS = frozenset({"f16", "bf16", "f16x2", "bf16x2", "f32", "f64"})
_MOST_BLOCKS = 4
_MOST_STEPS = 8

_HARMLESS = frozenset(
    {
        *("add", "and", "bra", "cvt", "cvta", "fence", "mad", "mapa", "membar", "mov", "mul"),
        *("nanosleep", "not", "or", "selp", "setp", "shl", "shr", "sub", "xor"),
    }
)
"""Instructions that a loop may hold which only asks: they change registers at most."""


class Kind(StrEnum):
    """What an instruction may observe of the schedule; the value says it in messages."""

    ATOMIC = "value that an atomic returns"
    FLAG = "value of a load that synchronises"
    PEEK = "answer of a wait that may fail"
    PENDING = "arrivals that are pending"
    LAUNCH = "cluster that is cancelled"
    UNIT = "clock or multiprocessor"
    ACTIVE = "lanes that are active"
    ROUNDING = "order in which floats are added"
    WRITE = "order of relaxed writes"
    ASYNCHRONOUS = "asynchronous update of memory that is asked for"


_MEMORY = frozenset({Kind.ATOMIC, Kind.FLAG, Kind.ROUNDING, Kind.WRITE})


class Use(StrEnum):
    """How a program uses the result of an instruction."""

    IGNORED = "ignored"
    SPUN = "spun"
    USED = "used"


@dataclass(frozen=True, slots=True)
class Until:
    """
    The end condition of a loop that polls a word of memory.

    Attributes:
        comparison: "eq", "ne", "lt", ... of the word and `number`.
        number: The number; None: a register with the same value in all rounds of all loops.
    """

    comparison: str
    number: int | None

    def holds(self, value: int) -> bool:
        """Return whether the loop ends at `value`; needs a `number`."""
        assert self.number is not None
        return {
            "eq": value == self.number,
            "ne": value != self.number,
            "lt": value < self.number,
            "le": value <= self.number,
            "gt": value > self.number,
            "ge": value >= self.number,
        }[self.comparison]


STORE, FLOATS = "store", "sum of floats"

COMMUTING = frozenset({"add", "and", "max", "min", "or", "xor"})
"""Operations that leave the same whichever of them is first."""

_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


@dataclass(frozen=True, slots=True)
class Observer:
    """
    An instruction that may observe the schedule.

    Attributes:
        kind: Kind of observation that it may make.
        use: Use that the program makes of the result.
        until: When the loop ends, of loads that are spun; None for others.
        order: The operation, of relaxed writes; empty for others.
    """

    kind: Kind
    use: Use
    until: Until | None = None
    order: str = ""

    @property
    def asks_memory(self) -> bool:
        """
        Whether the program uses a result that depends on what others write to a word of memory.
        """
        return self.kind in _MEMORY and self.use is not Use.IGNORED

    @property
    def touches_memory(self) -> bool:
        """Whether the observation is recorded with each access to a word of memory."""
        return self.kind in _MEMORY


def find_observers(
    code: list[Instruction],
    blocks: list[Block],
    accesses: list[Accesses],
    follow: list[list[int]],
) -> dict[int, Observer]:
    """
    Return the instructions that may observe the schedule, by index.

    Args:
        code: The instructions.
        blocks: The basic blocks.
        accesses: The accesses of each instruction.
        follow: For each block, the blocks that may follow it.
    """
    kinds = {x.index: kind for x in code if (kind := _kind_of(x)) is not None}
    if not kinds:
        return {}
    uses = _Uses(code, blocks, accesses, follow)
    return {at: uses.observer(at, kind) for at, kind in kinds.items()}


def _kind_of(instruction: Instruction) -> Kind | None:
    """Return what an instruction may observe; None if it observes nothing."""
    first, rest = instruction.parts[0], frozenset(instruction.parts[1:])
    if _order_of(instruction) == FLOATS:
        return Kind.ROUNDING
    if "reduce" in rest or (first == "red" and "async" in rest):
        return Kind.ROUNDING if "add" in rest and _FLOATS & rest else Kind.ASYNCHRONOUS
    if first == "ld" and _SYNCHRONISES & rest:
        return Kind.FLAG
    if any(operand.startswith(_UNITS) for operand in instruction.operands):
        return Kind.UNIT
    if first != "atom" and _order_of(instruction):
        return Kind.WRITE
    return next((kind for parts, kind in _KINDS if set(parts) <= {first, *rest}), None)


def _order_of(instruction: Instruction) -> str:
    """Return the operation of a relaxed write; empty for other instructions."""
    first, rest = instruction.parts[0], frozenset(instruction.parts[1:])
    if first == "st":
        return STORE if (_SYNCHRONISES | {"release"}) & rest else ""
    if first not in {"red", "atom"} or "async" in rest:
        return ""
    if "add" in rest and _FLOATS & rest:
        return FLOATS
    return next((name for name in sorted(COMMUTING) if name in rest), STORE)


_KINDS = (
    (("atom",), Kind.ATOMIC),
    (("mbarrier", "try_wait"), Kind.PEEK),
    (("mbarrier", "test_wait"), Kind.PEEK),
    (("mbarrier", "pending_count"), Kind.PENDING),
    (("clusterlaunchcontrol", "try_cancel"), Kind.LAUNCH),
    (("activemask",), Kind.ACTIVE),
)
"""The kind of observation of instructions whose opcodes have these parts."""


class _Uses:
    """The uses of the registers that instructions write."""

    def __init__(
        self,
        code: list[Instruction],
        blocks: list[Block],
        accesses: list[Accesses],
        follow: list[list[int]],
    ) -> None:
        self._code, self._blocks, self._accesses, self._follow = code, blocks, accesses, follow
        self._block_of = {
            at: number
            for number, block in enumerate(blocks)
            for at in range(block.start, block.end)
        }

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at in range(len(self._code)):
            for register in self._reads(at):
                found.setdefault(register, []).append(at)
        return found

    @cached_property
    def _writers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, one in enumerate(self._accesses):
            for register in one.writes:
                found.setdefault(register, []).append(at)
        return found

    def _reads(self, at: int) -> set[str]:
        guard = self._code[at].guard
        return self._accesses[at].everything_read | ({guard} if guard else set())

    def observer(self, at: int, kind: Kind) -> Observer:
        """Return the observer at an instruction."""
        if kind is Kind.LAUNCH:
            return Observer(kind, Use.USED)
        results, order = self._accesses[at].writes, _order_of(self._code[at])
        registers, uses = self._depending(results)
        if not any(self._decides(use, registers) for use in uses):
            return Observer(kind, Use.IGNORED, order=order)
        loop = self._loop(at) if kind in {Kind.PEEK, Kind.FLAG} else []
        if not loop or not self._only_asks(at, loop, uses):
            return Observer(kind, Use.USED, order=order)
        if kind is Kind.PEEK:
            return Observer(kind, Use.SPUN)
        until = self._until(results, registers, uses, loop)
        return Observer(kind, Use.USED if until is None else Use.SPUN, until)

    def _depending(self, results: Iterable[str]) -> tuple[set[str], set[int]]:
        """
        Return the registers that depend on `results`, these included, and the instructions that
        read them.
        """
        registers, uses, waiting = set(results), set[int](), list(results)
        while waiting:
            for at in self._readers.get(waiting.pop(), ()):
                uses.add(at)
                new = self._accesses[at].writes - registers
                registers |= new
                waiting += new
        return registers, uses

    def _decides(self, at: int, registers: set[str]) -> bool:
        """Return whether an instruction does more with its operands than to compute."""
        instruction = self._code[at]
        return (
            instruction.guard in registers
            or not self._accesses[at].writes
            or any("[" in operand for operand in instruction.operands)
        )

    # --- loops ------------------------------------------------------------------------------------

    def _loop(self, at: int) -> list[int]:
        """
        Return the blocks of the shortest way from the block of an instruction back to it; empty if
        there is none of at most `_MOST_BLOCKS` blocks.
        """
        home = self._block_of[at]
        ways = [[home]]
        for _ in range(_MOST_BLOCKS):
            longer = []
            for way in ways:
                for other in self._follow[way[-1]]:
                    if other == home:
                        return way
                    if other not in way:
                        longer.append([*way, other])
            ways = longer
        return []

    def _only_asks(self, at: int, loop: list[int], uses: set[int]) -> bool:
        """Return whether a loop only polls, and nothing else uses the result."""
        inside = [x for n in loop for x in range(self._blocks[n].start, self._blocks[n].end)]
        if not uses <= set(inside):
            return False
        if any(self._code[x].parts[0] not in _HARMLESS for x in inside if x != at):
            return False
        return not self._counts(inside)

    def _counts(self, inside: list[int]) -> bool:
        """Return whether a round of a loop depends on registers that the one before wrote."""
        written = {register for x in inside for register in self._accesses[x].writes}
        here: set[str] = set()
        for x in inside:
            if self._reads(x) & written - here:
                return True
            here |= self._accesses[x].writes
        return False

    def _until(
        self, results: set[str], registers: set[str], uses: set[int], loop: list[int]
    ) -> Until | None:
        """Return when a loop ends; None where that is no comparison with a fixed number."""
        compares = [x for x in uses if self._code[x].parts[0] == "setp"]
        branches = [x for x in uses if self._code[x].parts[0] == "bra"]
        if len(uses) != len(compares) + len(branches) or len(compares) != 1 or len(branches) != 1:
            return None
        compare, branch = self._code[compares[0]], self._code[branches[0]]
        comparison = compare.parts[1]
        if len(compare.operands) != 3 or comparison not in _OPPOSITE or len(results) != 1:
            return None
        left, right = compare.operands[1:]
        if left not in results or right in registers or not self._is_fixed(right):
            return None
        number = int(right.rstrip("U"), 0) if _NUMBER.fullmatch(right) else None
        if number is None and comparison not in {"eq", "ne"}:
            return None
        block = self._block_of[branch.index]
        if len(self._follow[block]) != 2:  # it ends the kernel
            return None
        behind = loop[loop.index(block) + 1] if block != loop[-1] else loop[0]
        jumps_back = self._follow[block][0] == behind
        ends_if_true = jumps_back == branch.is_negated
        found = Until(comparison if ends_if_true else _OPPOSITE[comparison], number)
        return None if number is None and found.comparison != "eq" else found

    def _is_fixed(self, operand: str, steps: int = _MOST_STEPS) -> bool:
        """Return whether an operand has one value in the whole launch."""
        if _NUMBER.fullmatch(operand) or operand.startswith(("%nctaid", "%ntid", "%nclusterid")):
            return True
        writers = self._writers.get(operand, [])
        if len(writers) != 1 or not steps:
            return False
        writer = self._code[writers[0]]
        if writer.guard is not None:
            return False
        if writer.parts[:2] == ("ld", "param"):
            return not self._accesses[writer.index].everything_read
        if writer.parts[0] not in {"add", "cvt", "mad", "mov", "mul", "shl", "shr", "sub"}:
            return False
        return all(self._is_fixed(other, steps - 1) for other in writer.operands[1:])
