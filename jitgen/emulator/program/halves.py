# SPDX-License-Identifier: Apache-2.0
"""
Registers without a value that only fill up a vector, of which nobody reads their part.

An instruction on two floats in one register (``add.f32x2``) wants both. Where a program has but
one, compilers pack it with a register that nothing is ever written to, and drop that half of the
result:

    mov.b64 %rd1, {%r1, %r9};
    add.f32x2 %rd2, %rd1, %rd3;
    mov.b64 {%r4, _}, %rd2;
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitgen.emulator.program.instruction import Instruction, split_operands

_BY_PARTS = frozenset({"add", "sub", "mul", "fma", "neg", "abs", "min", "max"})
_PAIRS = frozenset({"f32x2", "f16x2", "bf16x2"})

Parts = dict[str, tuple[int, set[int]]]
"""By register into how many parts it is divided, and which of them have no value."""


def that_fill_up(
    names: Iterable[str], code: Sequence[Instruction], reads: Sequence[set[str]]
) -> set[str]:
    """
    Return those of `names`, to which nothing is written, whose values are dropped in the end.

    Args:
        names: Registers.
        code: The instructions.
        reads: What each instruction reads, guards included.
    """
    return {name for name in names if _is_dropped(name, code, reads)}


def _is_dropped(name: str, code: Sequence[Instruction], reads: Sequence[set[str]]) -> bool:
    """Return whether no instruction but packs, moves and sums by parts gets what `name` holds."""
    lacking: Parts = {name: (1, {0})}
    before, after = 0, 1
    while before != after:
        for instruction, read in zip(code, reads, strict=True):
            if not read.isdisjoint(lacking) and not _passes_on(instruction, lacking):
                return False
        before, after = after, sum(len(parts) for _, parts in lacking.values())
    return True


def _passes_on(instruction: Instruction, lacking: Parts) -> bool:
    """Add what the instruction's result lacks; False if it is more than a move of parts."""
    destination, *sources = instruction.operands
    if instruction.guard in lacking:
        return False
    if instruction.parts[0] == "mov" and sources[0].startswith("{"):
        return _packs(destination, sources[0], lacking)
    if instruction.parts[0] == "mov" and destination.startswith("{"):
        return _unpacks(destination, sources[0], lacking)
    is_by_parts = instruction.parts[0] in _BY_PARTS and instruction.parts[-1] in _PAIRS
    if not is_by_parts and instruction.parts[0] != "mov":
        return False
    found = [lacking[source] for source in sources if source in lacking]
    return all(
        _add(destination, count, parts, lacking) and (count == 2 or not is_by_parts)
        for count, parts in found
    )


def _packs(destination: str, source: str, lacking: Parts) -> bool:
    names = split_operands(source[1:-1])
    parts = {at for at, name in enumerate(names) if name in lacking}
    return _add(destination, len(names), parts, lacking)


def _unpacks(destination: str, source: str, lacking: Parts) -> bool:
    names = split_operands(destination[1:-1])
    count, parts = lacking[source]
    if len(names) != count:
        return False
    return all(_add(names[part], 1, {0}, lacking) for part in parts if names[part] != "_")


def _add(name: str, count: int, parts: set[int], lacking: Parts) -> bool:
    """Note parts of `name` that lack a value; False if it is divided in another way, too."""
    before, known = lacking.setdefault(name, (count, set()))
    known |= parts
    return before == count
