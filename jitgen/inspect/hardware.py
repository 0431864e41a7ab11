# SPDX-License-Identifier: Apache-2.0
"""
Limits of a multiprocessor for each family of targets, which give the number of CTAs on an SM and
the limits in the roofline.

Sources: CUDA C++ Programming Guide, table of technical specifications by compute capability; rates
of tensor cores from the data sheets that the cost models cite.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.support.frozen import frozen
from jitgen.targets.protocol import Device

_REGISTER_GRAIN = 256  # of a warp
_SHARED_GRAIN = 128
_WARP = 32


@frozen
class Multiprocessor:
    """
    Limits of one SM.

    Attributes:
        registers: Number of 32-bit registers.
        warps: Warps that may be resident.
        ctas: CTAs that may be resident.
        shared_bytes: Bytes of shared memory.
        reserved_bytes: Shared memory that the system uses for each CTA.
        cta_shared_bytes: Largest shared memory of one CTA.
        tensor_columns: Columns of tensor memory; 0 if there is none.
        flop: Operations per cycle of the tensor cores on dense operands, by bits of an element.
    """

    registers: int
    warps: int
    ctas: int
    shared_bytes: int
    reserved_bytes: int
    cta_shared_bytes: int
    tensor_columns: int
    flop: tuple[tuple[int, int], ...]


MULTIPROCESSORS = {
    "sm90": Multiprocessor(
        registers=65_536,
        warps=64,
        ctas=32,
        shared_bytes=233_472,
        reserved_bytes=1024,
        cta_shared_bytes=232_448,
        tensor_columns=0,
        flop=((8, 8192), (16, 4096)),
    ),
    "sm100": Multiprocessor(
        registers=65_536,
        warps=64,
        ctas=32,
        shared_bytes=233_472,
        reserved_bytes=1024,
        cta_shared_bytes=232_448,
        tensor_columns=512,
        flop=((4, 32_768), (8, 16_384), (16, 8192)),
    ),
    "sm120": Multiprocessor(
        registers=65_536,
        warps=48,
        ctas=24,
        shared_bytes=102_400,
        reserved_bytes=1024,
        cta_shared_bytes=101_376,
        tensor_columns=0,
        flop=((4, 4096), (8, 2048), (16, 512)),
    ),
}
"""
Multiprocessors by family of targets. Pages of kernels for other families show no occupancy and no
roofline limits.
"""


@frozen
class Limit:
    """
    The number of CTAs of a kernel for which one resource of an SM suffices.

    Attributes:
        resource: Its name.
        ctas: Number of CTAs.
        needs: A text of the amount that a CTA uses.
        has: A text of the amount that an SM has.
    """

    resource: str
    ctas: int
    needs: str
    has: str


@frozen
class Occupancy:
    """
    How many CTAs fit on an SM.

    Attributes:
        limits: The limit of each resource.
        threads: Threads of a CTA.
        warps: Largest number of warps on an SM.
    """

    limits: tuple[Limit, ...]
    threads: int
    warps: int

    @property
    def ctas(self) -> int:
        """Number of CTAs that fit on an SM."""
        return min(limit.ctas for limit in self.limits)

    @property
    def share(self) -> float:
        """Resident warps as a part of those that an SM may have."""
        return self.ctas * -(-self.threads // _WARP) / self.warps


def occupancy(
    family: str, *, registers: int, threads: int, shared_bytes: int, tensor_columns: int = 0
) -> Occupancy | None:
    """
    Return how many CTAs fit on an SM; None where the family or the number of threads is not known.

    Args:
        family: Family of the target.
        registers: Registers of a thread at launch.
        threads: Threads of a CTA.
        shared_bytes: Static and dynamic shared memory of a CTA.
        tensor_columns: Columns of tensor memory that it allocates.
    """
    sm = MULTIPROCESSORS.get(family)
    if sm is None or not threads:
        return None
    needs = _Needs(registers, threads, shared_bytes, tensor_columns)
    limits = tuple(_limits(sm, needs))
    return Occupancy(limits=limits, threads=threads, warps=sm.warps)


class _Needs:
    """The resources of a CTA, rounded up to the units of allocation."""

    def __init__(self, registers: int, threads: int, shared_bytes: int, columns: int) -> None:
        self.warps = -(-threads // _WARP)
        self.registers = -(-registers * _WARP // _REGISTER_GRAIN) * _REGISTER_GRAIN * self.warps
        self.shared_bytes = -(-shared_bytes // _SHARED_GRAIN) * _SHARED_GRAIN
        self.columns = columns


def _limits(sm: Multiprocessor, needs: _Needs) -> Iterator[Limit]:
    yield Limit(
        resource="registers",
        ctas=sm.registers // max(1, needs.registers),
        needs=f"{needs.registers:,} for {needs.warps} warps",
        has=f"{sm.registers:,}",
    )
    taken = needs.shared_bytes + sm.reserved_bytes
    yield Limit(
        resource="shared memory",
        ctas=sm.shared_bytes // taken,
        needs=f"{taken:,} B, of which the system takes {sm.reserved_bytes:,}",
        has=f"{sm.shared_bytes:,} B",
    )
    yield Limit(
        resource="warps",
        ctas=sm.warps // needs.warps,
        needs=f"{needs.warps}",
        has=f"{sm.warps}",
    )
    yield Limit(resource="CTAs", ctas=sm.ctas, needs="1", has=f"{sm.ctas}")
    if needs.columns:
        yield Limit(
            resource="tensor memory",
            ctas=sm.tensor_columns // needs.columns,
            needs=f"{needs.columns} columns",
            has=f"{sm.tensor_columns} columns",
        )


@frozen
class Roofs:
    """
    The peak rates of a device.

    Attributes:
        device: Its name.
        flop_rate: Operations per second of its tensor cores, at its clock under load.
        byte_rate: Bytes per second of its memory, from the data sheet.
    """

    device: str
    flop_rate: float
    byte_rate: float


def roofs(family: str, device: Device, bits: int) -> Roofs | None:
    """Return the peak rates for operands of `bits` bits per value; None if they are not known."""
    sm = MULTIPROCESSORS.get(family)
    if sm is None:
        return None
    own: float | None = getattr(
        device.constants, "bf16_flop" if bits == 16 else f"fp{bits}_flop", None
    )
    rate = own or dict(sm.flop).get(bits)
    if not rate:
        return None
    return Roofs(
        device=device.name,
        flop_rate=float(rate) * device.num_sms * device.clock_mhz * 1e6,
        byte_rate=device.dram_gbps * 1e9,
    )
