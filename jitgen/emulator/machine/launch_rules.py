# SPDX-License-Identifier: Apache-2.0
"""
Finds launches that hardware refuses, before anything runs: the launch is compared with the limits
of the architecture and with the directives of the kernel.

Sources: PTX ISA, sections "Performance-Tuning Directives" and "Cluster Dimension Directives"; CUDA
Runtime API, "Execution Control"; `jitgen.emulator.machine.limits` for the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from jitgen.emulator.machine import limits
from jitgen.emulator.machine.limits import Target
from jitgen.emulator.machine.machine import Index, Launch
from jitgen.emulator.machine.shared_memory import SHARED_BASE
from jitgen.errors import MachineFault

_SHOWN = 4
"""Instructions without a target that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """
    The properties of a kernel that a launch must fit.

    Attributes:
        target: Name of what it is compiled for.
        opcodes: Line of the PTX and opcode of each instruction.
        directives: Numbers after the directives, by name without the dot.
        shared_end: Offset at which dynamic shared memory begins.
        registers: Registers of a thread, as its machine code says; 0 where there is none.
        lacks_setmaxnreg: Whether there is machine code, and it has no setmaxnreg.
    """

    target: str
    opcodes: tuple[tuple[int, str], ...]
    directives: Mapping[str, tuple[int, ...]]
    shared_end: int
    registers: int = 0
    lacks_setmaxnreg: bool = False


def as_launched(kernel: Kernel, launch: Launch) -> Launch:
    """
    Return a launch as the hardware makes it: with the cluster and the registers of the kernel.

    Raises:
        MachineFault: The hardware refuses the launch, or the compiler the kernel; all reasons.
    """
    target = limits.target_of(kernel.target)
    required = kernel.directives.get("reqnctapercluster")
    if required and not launch.names_cluster:
        launch = replace(launch, cluster=_three(required))
    launch = replace(
        launch,
        registers=_registers(kernel, launch),
        ignores_setmaxnreg=kernel.lacks_setmaxnreg,
    )
    problems = [
        *_instructions(kernel, target),
        *_sizes(launch),
        *_shared(kernel, launch, target),
        *_cluster(kernel, launch, target),
        *_directives(kernel, launch),
        *_register_file(kernel, launch),
    ]
    if problems:
        reasons = "; ".join(problems)
        raise MachineFault(f"the kernel cannot be launched on {kernel.target}: {reasons}")
    return launch


def _three(numbers: tuple[int, ...]) -> Index:
    x, y, z = (*numbers, 1, 1, 1)[:3]
    return x, y, z


def _registers(kernel: Kernel, launch: Launch) -> int:
    """Return the registers of a thread at the start: of the machine code, or what PTX allows."""
    if kernel.registers:
        return -(-kernel.registers // limits.REGISTER_UNIT) * limits.REGISTER_UNIT
    if "maxnreg" in kernel.directives:
        return kernel.directives["maxnreg"][0]
    if not kernel.directives.keys() & {"reqntid", "maxntid", "minnctapersm"}:
        return 0
    bound = kernel.directives.get("reqntid") or kernel.directives.get("maxntid")
    threads = math.prod(bound) if bound else launch.num_threads
    ctas = kernel.directives.get("minnctapersm", (1,))[0]
    return limits.most_registers(threads, max(1, ctas)) if threads else 0


def _instructions(kernel: Kernel, target: Target) -> Iterator[str]:
    missing = {op for op in {op for _, op in kernel.opcodes} if limits.lacks(target, op)}
    found = [f"{op} (line {line})" for line, op in kernel.opcodes if op in missing]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield f"it has no {', '.join(found[:_SHOWN])}{more}"


def _sizes(launch: Launch) -> Iterator[str]:
    if not 1 <= launch.num_threads <= limits.MAX_THREADS:
        yield f"{launch.num_threads} threads of a CTA; 1 to {limits.MAX_THREADS} are allowed"
    for name, sizes, most in (
        ("CTA", launch.block, limits.MAX_BLOCK),
        ("grid", launch.grid, limits.MAX_GRID),
    ):
        if any(not 1 <= size <= end for size, end in zip(sizes, most, strict=True)):
            yield f"a {name} of {sizes}; at most {most} are allowed"


def _shared(kernel: Kernel, launch: Launch, target: Target) -> Iterator[str]:
    fixed = kernel.shared_end - SHARED_BASE
    total, most = fixed + launch.shared_bytes, target.limits.shared_bytes
    if total > most:
        yield f"{total} bytes of shared memory ({fixed} of them static); it has {most} for a CTA"
    consent = launch.most_shared_bytes
    if consent is None:
        consent = max(0, limits.SHARED_WITHOUT_CONSENT - fixed)
    if launch.shared_bytes > consent:
        yield (
            f"{launch.shared_bytes} bytes of dynamic shared memory, but the kernel may have "
            f"{consent} (cudaFuncAttributeMaxDynamicSharedMemorySize)"
        )


def _cluster(kernel: Kernel, launch: Launch, target: Target) -> Iterator[str]:
    size, most = launch.cluster_size, target.limits.cluster
    required = kernel.directives.get("reqnctapercluster")
    if required and _three(required) != launch.cluster:
        yield f"a cluster of {launch.cluster}, but .reqnctapercluster says {_three(required)}"
    if "explicitcluster" in kernel.directives and not (required or launch.names_cluster):
        yield ".explicitcluster, and nothing says what a cluster is"
    ranks = kernel.directives.get("maxclusterrank", (size,))[0]
    if size > ranks:
        yield f"a cluster of {size} CTAs, but .maxclusterrank says {ranks}"
    if not 1 <= size <= most:
        yield f"a cluster of {size} CTAs; it has {most}"
    elif size > limits.PORTABLE_CLUSTER and not launch.is_nonportable:
        yield (
            f"a cluster of {size} CTAs; more than {limits.PORTABLE_CLUSTER} need "
            "cudaFuncAttributeNonPortableClusterSizeAllowed"
        )
    pairs = zip(launch.grid, launch.cluster, strict=True)
    if size and any(ctas % cluster for ctas, cluster in pairs):
        yield f"a grid of {launch.grid} is not a multiple of the cluster {launch.cluster}"


def _directives(kernel: Kernel, launch: Launch) -> Iterator[str]:
    required = kernel.directives.get("reqntid")
    if required and _three(required) != launch.block:
        yield f"a CTA of {launch.block} threads, but .reqntid says {_three(required)}"
    most = math.prod(kernel.directives.get("maxntid", launch.block))
    if launch.num_threads > most:
        yield f"a CTA of {launch.num_threads} threads, but .maxntid says {most}"
    bound = kernel.directives.get("maxnreg", (kernel.registers,))[0]
    if kernel.registers > bound:
        yield f"machine code with {kernel.registers} registers, but .maxnreg says {bound}"


def _register_file(kernel: Kernel, launch: Launch) -> Iterator[str]:
    """
    Yield a reason if a CTA needs more registers than there are. The number that ptxas chose always
    fits the PTX, but not every number of threads.
    """
    is_said = kernel.registers or "maxnreg" in kernel.directives
    taken = limits.registers_of(launch.num_threads, launch.registers)
    if is_said and taken > limits.REGISTERS:
        yield (
            f"{launch.num_threads} threads with {launch.registers} registers each take {taken} "
            f"of {limits.REGISTERS}"
        )
