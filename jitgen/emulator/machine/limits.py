# SPDX-License-Identifier: Apache-2.0
"""
Limits of each architecture: memory, registers, clusters; and instructions that not all have.

Sources: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability" and
section "Thread Block Clusters" (8 CTAs are portable, more need the kernel's consent); CUDA
occupancy calculator, for the units in which registers are given out; PTX ISA, "Target ISA Notes"
of each instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jitgen.errors import EmulationError

MAX_THREADS = 1024
"""Threads of a CTA, on every architecture."""

MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)

SHARED_WITHOUT_CONSENT = 48 * 1024
"""Bytes of shared memory that a launch gets without the attribute that asks for more."""

PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every architecture runs."""

REGISTERS = 65536
"""32-bit registers of a CTA, and of an SM, on every architecture."""

WARP_UNIT, REGISTER_UNIT = 4, 8
"""A CTA gets registers for warps in fours (an SM has four parts), 8 for each thread at a time."""

MAX_REGISTERS = 255
"""Registers that an instruction can name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    Limits of one family of architectures.

    Attributes:
        shared_bytes: Shared memory that a CTA can have.
        cluster: Largest number of CTAs in a cluster, if the kernel allows more than the portable
            number.
    """

    shared_bytes: int
    cluster: int


LIMITS = {
    9: Limits(shared_bytes=227 * 1024, cluster=16),
    10: Limits(shared_bytes=227 * 1024, cluster=16),
    12: Limits(shared_bytes=99 * 1024, cluster=8),
}
"""
Limits by major compute capability. No document says that sm_120 has clusters above the portable
size, so it has none here.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """
    The target of a ``.target`` directive: sm_100a.

    Attributes:
        number: The number in the name, such as 100.
        suffix: ``"a"`` and ``"f"`` have what only this architecture, or its family, has.
    """

    number: int
    suffix: str

    @property
    def major(self) -> int:
        """Major compute capability: 10 of sm_103."""
        return self.number // 10

    @property
    def limits(self) -> Limits:
        """The limits of the target's family of architectures."""
        return LIMITS[self.major]


def target_of(name: str) -> Target:
    """
    Return the target that ``sm_100a`` names.

    Raises:
        EmulationError: The emulator does not know it.
    """
    found = re.fullmatch(r"sm_(\d+)([af]?)", name)
    if found is None or int(found[1]) // 10 not in LIMITS:
        known = ", ".join(f"sm_{major}x" for major in LIMITS)
        raise EmulationError(f"the emulator knows no target {name!r}; it knows {known}")
    return Target(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class Feature:
    """
    Instructions that not every target has.

    Attributes:
        pattern: Regular expression for the whole opcode.
        majors: Compute capabilities that have it.
        is_special: Whether only targets with a suffix have it, as in sm_90a.
    """

    pattern: str
    majors: frozenset[int]
    is_special: bool = True

    def lacks(self, target: Target) -> bool:
        """Return whether `target` does not have these instructions."""
        return target.major not in self.majors or (self.is_special and not target.suffix)

    def matches(self, opcode: str) -> bool:
        """Return whether an opcode, with all its modifiers, is one of these instructions."""
        return re.fullmatch(self.pattern, opcode) is not None


def _on(*majors: int) -> frozenset[int]:
    return frozenset(majors)


FEATURES = (
    Feature(r"wgmma\..*", _on(9)),
    Feature(r"tcgen05\..*", _on(10)),
    Feature(r"cp\.(reduce\.)?async\.bulk\.tensor\..*cta_group::.*", _on(10)),
    Feature(r"setmaxnreg\..*", _on(9, 10, 12)),
    Feature(r"tensormap\.replace\..*", _on(9, 10, 12)),
    Feature(r"mma\..*kind::.*", _on(12)),
    Feature(r"ldmatrix\..*(m8n16|m16n16).*", _on(10, 12)),
    Feature(r"stmatrix\..*m16n8.*", _on(10, 12)),
    Feature(r"cvt\..*(e2m1|e2m3|e3m2|ue8m0).*", _on(10, 12)),
    Feature(r"redux\.sync\..*f32", _on(10)),
    Feature(r"clusterlaunchcontrol\..*", _on(10, 12), is_special=False),
    Feature(r"(add|sub|mul|fma)\..*f32x2", _on(10, 12), is_special=False),
    Feature(r"(add|sub|fma)\..*f32\.(f16|bf16)", _on(10, 12), is_special=False),
    Feature(r"(ld|st)\..*(v8\.[bufs]32|v4\.[bufs]64)", _on(10, 12), is_special=False),
)
"""
The instructions that the compiler refuses for targets without them, from the target notes of their
sections.
"""


def lacks(target: Target, opcode: str) -> bool:
    """Return whether `target` has no instruction ``opcode``, all of its modifiers included."""
    return any(feature.lacks(target) and feature.matches(opcode) for feature in FEATURES)


def registers_of(threads: int, registers: int) -> int:
    """
    Return how many registers of an SM a CTA of `threads` threads takes, at `registers` for each
    thread.
    """
    warps = -(-threads // 32)
    each = -(-registers // REGISTER_UNIT) * REGISTER_UNIT
    return -(-warps // WARP_UNIT) * WARP_UNIT * 32 * each


def most_registers(threads: int, ctas: int = 1) -> int:
    """Return the most registers of a thread with which `ctas` CTAs of `threads` fit on an SM."""
    warps = -(-threads // 32)
    each = REGISTERS // ctas // (-(-warps // WARP_UNIT) * WARP_UNIT * 32)
    return min(each, MAX_REGISTERS) // REGISTER_UNIT * REGISTER_UNIT
