# SPDX-License-Identifier: Apache-2.0
"""
Which instructions may access registers of a wgmma in flight, and which lack its fence.

A product owns its accumulators, and the registers of A that it reads, until a wait_group that waits
for its group: any other access to one of them is a mistake. And after an access to a register a
wgmma.fence must stand before the next product that uses it. Both are looked for on every way
through the program. The machine then looks only at the instructions that are found here: whether
products of the warp are in flight, and whether a thread executed the access. Programs without such
instructions lose no time.

PTX ISA, sections "wgmma.fence" and "wgmma.wait_group".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from jitgen.emulator.program.blocks import Block
from jitgen.emulator.program.instruction import Instruction, split_operands

_REGISTER = re.compile(r"%[\w@$]+")

_AGES = 9
"""Groups of a warp that are told apart; those before them count as the oldest of these."""

_State = list[int]
"""Sets of registers, a bit each."""


@dataclass(frozen=True, slots=True)
class Flights:
    """
    The registers of matrix products that the machine has to check, by index of the instruction.

    Attributes:
        accesses: By instruction, registers that may be in flight when it, which is no wgmma,
            accesses them.
        products: By instruction, registers that it, a wgmma, uses and that may have been accessed
            since the last fence.
        touches: By instruction that is no wgmma, those registers of `products` that it accesses.
        rows: A number for each register of `products`.
    """

    accesses: dict[int, list[str]] = field(default_factory=dict)
    products: dict[int, list[str]] = field(default_factory=dict)
    touches: dict[int, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def concern(self, at: int) -> bool:
        """Return whether registers of instruction `at` are to be checked."""
        return at in self.accesses or at in self.products or at in self.touches


def find_flights(code: list[Instruction], blocks: list[Block], follow: list[list[int]]) -> Flights:
    """
    Return what may be wrong with the registers of matrix products.

    Args:
        code: The instructions.
        blocks: The basic blocks.
        follow: The blocks that may come next, of each block.
    """
    owned = {x.index: _bits_of_product(x) for x in code if is_product(x)}
    if not owned:
        return Flights()
    numbers = {name: i for i, name in enumerate(sorted(set().union(*owned.values())))}
    products = {at: _bits(names, numbers) for at, names in owned.items()}
    others = {x.index: _bits(_named(x), numbers) for x in code if x.index not in products}
    others = {at: bits for at, bits in others.items() if bits}
    steps = [
        [x for x in code[block.start : block.end] if x.parts[0] == "wgmma" or x.index in others]
        for block in blocks
    ]

    def fly(state: _State, instruction: Instruction) -> None:
        _fly(state, instruction, products.get(instruction.index, 0))

    def touch(state: _State, instruction: Instruction) -> None:
        if instruction.parts[:2] == ("wgmma", "fence"):
            state[0] = 0
        state[0] |= others.get(instruction.index, 0)

    in_flight = _states(steps, follow, fly, _AGES)
    touched = _states(steps, follow, touch, 1)
    names = list(numbers)
    accesses = {at: others[at] & _any(in_flight[at]) for at in in_flight if at in others}
    late = {at: products[at] & touched[at][0] for at in touched if at in products}
    doubtful = _any(list(late.values()))
    return Flights(
        accesses=_named_bits(accesses, names),
        products=_named_bits(late, names),
        touches=_named_bits({at: bits & doubtful for at, bits in others.items()}, names),
        rows={name: row for row, name in enumerate(_names(doubtful, names))},
    )


def is_product(instruction: Instruction) -> bool:
    """Return whether an instruction is a wgmma, which uses registers until a later wait."""
    return instruction.parts[:2] == ("wgmma", "mma_async")


def _bits_of_product(instruction: Instruction) -> set[str]:
    """Return the accumulators of a product and the registers that hold its A."""
    vectors = [operand for operand in instruction.operands[:2] if operand.startswith("{")]
    return {name for vector in vectors for name in split_operands(vector[1:-1])}


def _named(instruction: Instruction) -> set[str]:
    """Return the registers that an instruction names, its guard included."""
    found = {instruction.guard} if instruction.guard else set()
    for operand in instruction.operands:
        found.update(_REGISTER.findall(operand))
    return found


def _fly(state: _State, instruction: Instruction, owned: int) -> None:
    """
    Update the registers in flight, which are kept by age: that of the youngest group that uses
    them.

    Those of the open group have the age 0, which no wait ends.
    """
    if owned:
        for age in range(_AGES):
            state[age] &= ~owned
        state[0] |= owned
    elif instruction.parts[:2] == ("wgmma", "commit_group"):
        oldest = state.pop()
        state.insert(0, 0)
        state[-1] |= oldest
    elif instruction.parts[:2] == ("wgmma", "wait_group"):
        keep = int(instruction.operands[0], 0)
        for age in range(keep + 1, _AGES):
            state[age] = 0


def _states(
    steps: list[list[Instruction]],
    follow: list[list[int]],
    change: Callable[[_State, Instruction], None],
    size: int,
) -> dict[int, _State]:
    """
    Return the state before instructions that can be reached, over all ways to each.

    Args:
        steps: The instructions of each block that change the state, or before which it is wanted.
        follow: The blocks that may come next, of each block.
        change: Changes the state as an instruction does.
        size: Sets of a state, empty at the start.
    """
    starts = {0: [0] * size}
    found: dict[int, _State] = {}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        state = list(starts[number])
        for instruction in steps[number]:
            found[instruction.index] = list(state)
            change(state, instruction)
        for other in follow[number]:
            old = starts.get(other)
            new = state if old is None else [a | b for a, b in zip(old, state, strict=True)]
            if new != old:
                starts[other] = list(new)
                waiting.append(other)
    return found


def _any(state: _State) -> int:
    bits = 0
    for some in state:
        bits |= some
    return bits


def _bits(names: set[str], numbers: dict[str, int]) -> int:
    return _any([1 << numbers[name] for name in names if name in numbers])


def _names(bits: int, names: list[str]) -> list[str]:
    return [name for i, name in enumerate(names) if bits >> i & 1]


def _named_bits(bits: dict[int, int], names: list[str]) -> dict[int, list[str]]:
    return {at: _names(some, names) for at, some in bits.items() if some}
