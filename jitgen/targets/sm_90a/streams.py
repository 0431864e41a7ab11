# SPDX-License-Identifier: Apache-2.0
"""
What the rules of all kernels share that stream rows through registers: what an SM holds of them.

Nothing of it is of one generation: sm_100a takes these rules from here.
"""

from __future__ import annotations

from jitgen.support.frozen import frozen
from jitgen.targets.protocol import refuse_unless

WARP = 32

MOST_CTAS = 32
"""Of an SM at once."""

MOST_THREADS = 2048
"""Of an SM at once."""

_PARTITIONS = 4  # of an SM, each with registers of its own for every fourth warp
_REGISTERS_PER_PARTITION = 16_384
_MAX_REGISTERS = 255
_REGISTER_UNIT = 8  # a thread gets whole units


@frozen
class StreamDerived:
    """
    What follows from a legal config of such a kernel.

    Attributes:
        registers: Of a thread, as many as `ctas_per_sm` CTAs leave it.
        bytes_ahead: Loads of an SM that are under way at once.
    """

    registers: int
    bytes_ahead: int


def threads_of(threads: int, ctas_per_sm: int) -> int:
    """
    Return the threads of an SM that holds so many CTAs.

    Raises:
        Refusal: It does not hold them, with the code ``E_CTAS``.
    """
    every = threads * ctas_per_sm
    refuse_unless(
        ctas_per_sm <= MOST_CTAS and every <= MOST_THREADS,
        "E_CTAS",
        f"{ctas_per_sm} CTAs of {threads} threads are more than an SM holds: {MOST_CTAS} CTAs, "
        f"{MOST_THREADS} threads",
    )
    return every


def registers_of(threads: int) -> int:
    """Return the registers of each thread where an SM holds so many."""
    warps = -(-threads // (WARP * _PARTITIONS))
    registers = _REGISTERS_PER_PARTITION // (WARP * warps) // _REGISTER_UNIT * _REGISTER_UNIT
    return min(registers, _MAX_REGISTERS)
