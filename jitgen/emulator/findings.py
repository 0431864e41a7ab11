# SPDX-License-Identifier: Apache-2.0
"""
Kinds of findings, and which of them are errors: one table for the machine and for reports.

An error is something that the PTX ISA forbids or gives no meaning, so that hardware may do
anything. A warning is something that the ISA leaves open: such a kernel may work on the hardware
that it was tried on, and counts as right. `docs/emulator.md` shows this table; a test compares
both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Whether a finding makes a kernel wrong."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Kind:
    """
    A kind of finding.

    Attributes:
        severity: Whether it makes a kernel wrong.
        meaning: Description of such a finding, on one line.
    """

    severity: Severity
    meaning: str


def _error(meaning: str) -> Kind:
    return Kind(Severity.ERROR, meaning)


def _warning(meaning: str) -> Kind:
    return Kind(Severity.WARNING, meaning)


KINDS: dict[str, Kind] = {
    # runs that did not come to their end
    "fault": _error(
        "an instruction did something that hardware does not allow; the run ended there"
    ),
    "deadlock": _error("every thread waits for something that never comes"),
    # memory and its order
    "race": _error("two accesses to the same memory that nothing orders"),
    "proxy": _error("ordered, but without the fence between the generic and the async proxy"),
    "convergence": _warning(
        "lanes of a warp only waited for each other, which need not order their memory accesses"
    ),
    "uninitialised": _error(
        "memory, or the register of a lane, is read without having been written"
    ),
    "mbarrier": _error("the bytes of a valid mbarrier are accessed or initialised again"),
    "phase": _error(
        "a phase of a barrier may end before the waits for the previous phase have ended"
    ),
    "parity": _warning(
        "a wait by parity, by a thread that does not know how many phases have ended"
    ),
    "early arrival": _warning(
        "an arrival may come before a wait saw the previous phase, but cannot end its phase early"
    ),
    # registers
    "undefined": _error("a register or predicate is read without having been written"),
    "setmaxnreg": _error(
        "setmaxnreg in the wrong direction, or again before the warpgroup synchronised"
    ),
    "setmaxnreg open": _warning("setmaxnreg has no effect, or it is unknown whether it has one"),
    # matrix instructions
    "fence": _error("registers of a wgmma were accessed before it, and no wgmma.fence came since"),
    "fragment": _warning(
        "registers of A of a wgmma were computed before it, and no wgmma.fence came since"
    ),
    "register": _error("registers of a matrix instruction are used while it is in flight"),
    "collector": _error("a product uses a collector buffer that does not hold its A"),
    "scales": _error("the quarters of tensor memory hold different scale factors"),
    "scale ids": _warning("an address and the descriptor name different bytes of scale factors"),
    "padding": _warning("padding bits of elements of less than a byte are not zero"),
    "tensor load": _warning("tensor memory is freed after loads that no tcgen05.wait::ld ended"),
    "allocation": _warning("an allocation of tensor memory is larger than the one before it"),
    # the start and the end of a CTA
    "start": _error("an access to shared memory of another CTA that may not have started"),
    "arrival": _warning(
        "threads arrived at a barrier of the CTA for which no thread waits any more"
    ),
    "exit": _error(
        "a CTA ended with unfinished copies, groups or barriers, or without freeing memory"
    ),
    # results
    "result": _error("two modes gave different bits"),
    "wrong": _error("values are not those of the reference"),
    # what a verification lacks
    "never executed": _error(
        "a synchronisation, copy, matrix or store instruction that no problem ever reached"
    ),
}
"""Every kind there is, in the order of the documentation."""


def severity_of(kind: str) -> Severity:
    """
    Return the severity of findings of `kind`: error or warning.

    Raises:
        KeyError: The kind is not in the table, which is a mistake in the emulator.
    """
    return KINDS[kind].severity
