# SPDX-License-Identifier: Apache-2.0
"""
Checks of registers, which are inserted before and after an instruction in the function of its
block.

`definitions` and `flights` analyse the whole program to find the registers to check. The analysis
needs the registers that each instruction accesses, which are only known once the blocks are
translated; so blocks with such registers are translated a second time, with the checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jitgen.emulator.machine.in_flight import check_access, check_touched, note_touched
from jitgen.emulator.machine.unwritten import check_written, note_written
from jitgen.emulator.program.definitions import Doubts
from jitgen.emulator.program.flights import Flights
from jitgen.emulator.program.instruction import Instruction

if TYPE_CHECKING:
    from jitgen.emulator.program.builder import Builder


@dataclass(frozen=True, slots=True)
class Checks:
    """
    The checks of the registers of a program.

    Attributes:
        doubts: The registers that may not have been written.
        flights: The registers that may belong to a wgmma in flight, or lack its fence.
    """

    doubts: Doubts = field(default_factory=Doubts)
    flights: Flights = field(default_factory=Flights)

    def concern(self, at: int) -> bool:
        """Return whether an instruction is to be checked."""
        return self.doubts.concern(at) or self.flights.concern(at)

    def before(self, builder: Builder, instruction: Instruction) -> list[str]:
        """Return the statements to run before an instruction."""
        at, lines = instruction.index, []
        if at in self.doubts.reads:
            rows = {self.doubts.rows[name]: name for name in self.doubts.reads[at]}
            guard = str(self.doubts.rows.get(instruction.guard or ""))
            mask = builder.mask(instruction)
            lines.append(builder.call(check_written, mask, guard, repr(rows)))
        if at in self.flights.accesses:
            rows = {builder.register(name)[1]: name for name in self.flights.accesses[at]}
            lines.append(builder.call(check_access, builder.mask(instruction), repr(rows)))
        if at in self.flights.products:
            rows = {self.flights.rows[name]: name for name in self.flights.products[at]}
            a = instruction.operands[1]
            of_a = sorted({*rows.values()} & {*(builder.names(a) if a.startswith("{") else ())})
            lines.append(builder.call(check_touched, repr(rows), repr(of_a)))
        return lines

    def sums(self, at: int) -> dict[int, str]:
        """
        Return the accumulators that may never have been written when product `at` adds to them, by
        their rows in `Cta.unwritten`.
        """
        return {self.doubts.rows[name]: name for name in self.doubts.sums.get(at, ())}

    def after(self, builder: Builder, instruction: Instruction) -> list[str]:
        """Return the statements to run after an instruction."""
        at, lines = instruction.index, []
        if at in self.doubts.firsts:
            rows = tuple(self.doubts.rows[name] for name in self.doubts.firsts[at])
            lines.append(builder.call(note_written, builder.mask(instruction), repr(rows)))
        if at in self.flights.touches:
            rows = tuple(self.flights.rows[name] for name in self.flights.touches[at])
            lines.append(builder.call(note_touched, builder.mask(instruction), repr(rows)))
        return lines
