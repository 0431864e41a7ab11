# SPDX-License-Identifier: Apache-2.0
"""
``.cta_group``: how many CTAs a tcgen05 instruction acts on, and which.

Two CTAs whose ranks differ in the last bit only are a pair, each the peer of the other. One thread
of the pair, of either CTA, issues an instruction for both; the peer must not have exited.

PTX ISA, sections "Issue Granularity", "CTA Pair" and "Peer CTA" of tcgen05.
"""

from __future__ import annotations

from jitgen.emulator.machine.cta import Cta
from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported
from jitgen.errors import MachineFault

_NUMBERS = {"cta_group::1": 1, "cta_group::2": 2}


def check_parts(instruction: Instruction, known: str) -> None:
    """Raise Unsupported for a modifier that is not among the words of `known`."""
    unknown = [part for part in instruction.parts[2:] if part not in known.split()]
    if unknown:
        raise Unsupported(f"modifier .{unknown[0]}")


def num_ctas(builder: Builder, instruction: Instruction) -> int:
    """
    Return 1 for ``.cta_group::1`` and 2 for ``.cta_group::2``.

    Raises:
        MachineFault: Another tcgen05 instruction of the kernel has another one, executed or not:
            "All tcgen05 instructions within a kernel must specify the same value".
        Unsupported: It has none.
    """
    number = _number_of(instruction)
    if number is None:
        raise Unsupported("no .cta_group")
    for other in builder.program.code:
        if _number_of(other) not in {None, number}:
            place = builder.program.place
            raise MachineFault(
                "all tcgen05 instructions of a kernel must have the same .cta_group\n"
                f"  at {place(other.index)}\n  at {place(instruction.index)}"
            )
    return number


def _number_of(instruction: Instruction) -> int | None:
    if instruction.parts[0] != "tcgen05":
        return None
    return next((_NUMBERS[part] for part in instruction.parts if part in _NUMBERS), None)


def group_of(f: Fragment, at: int, ctas: int) -> list[Cta]:
    """
    Return the CTAs that an instruction acts on, ``.cta_group::1`` or ``::2``, by rank.

    A peer that has exited is a finding.

    Raises:
        MachineFault: The CTA has no peer.
    """
    if ctas == 1:
        return [f.cta]
    even = f.cta.rank & ~1
    if even + 1 >= len(f.cluster.ctas):
        f.fault(at, f".cta_group::2, but {f.cta.name} has no peer in its cluster")
    group = f.cluster.ctas[even : even + 2]
    peer = group[1 - (f.cta.rank & 1)]
    if peer.has_exited:
        f.warn(at, "exit", f".cta_group::2, but {peer.name} has exited")
    return group
