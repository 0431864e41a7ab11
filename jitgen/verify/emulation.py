# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.emulate`: runs one call of a compiled kernel of jitgen on the CPU, or one on each of several
devices, in several modes of the emulator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from jitgen.emulator import (
    NUM_SMS,
    TIME_LIMIT_S,
    Artifact,
    DeviceCall,
    Mode,
    OnDevices,
    Report,
    emulate_devices,
    parse_modes,
)
from jitgen.emulator import emulate as emulate_artifact
from jitgen.errors import InputError
from jitgen.runtime.kernel import Kernel
from jitgen.verify.artifacts import of_kernel
from jitgen.verify.host import HOST


def emulate(
    kernel: Kernel | Artifact | OnDevices,
    *tensors: object,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    num_sms: int = NUM_SMS,
    time_limit_s: float = TIME_LIMIT_S,
    unknown: Collection[str] = (),
    settled: Collection[str] = (),
    explores: bool = False,
) -> Report:
    """
    Run `kernel` on the CPU, once in each mode, and return the findings.

    The artifact is not changed: its host part checks the arguments and makes the launch, and the
    PTX of its device part is executed instruction by instruction, with every access checked for
    bounds, initialisation and races. Results are written to the tensors. Every mode starts with the
    same values, and all modes must give the same bits.

    Args:
        kernel: A kernel of a GPU target (its source is compiled again to get the PTX), or an
            `Artifact`; or an object that describes the calls of several devices, with their tensors
            and windows.
        tensors: The arguments: torch tensors in host memory. For kernels of jitgen, the last
            argument, the number of SMs, is added; for an `Artifact`, give all arguments.
        modes: ``quick``, ``all``, or names or modes of `jitgen.emulator.modes`.
        num_sms: Number of SMs of the GPU. With few SMs, a CTA gets several tiles even in small
            problems.
        time_limit_s: Seconds that one mode may take.
        unknown: Names of tensors that count as uninitialised until the kernel has written them.
        settled: Names of tensors that earlier kernels do not write. If this kernel may start before
            an earlier one has ended (PDL), reading other tensors before griddepcontrol.wait is a
            finding.
        explores: Leave out random modes if the previous modes prove the result for every schedule;
            if results depend on the order of accesses, such as atomics, add modes with other
            orders.

    Raises:
        MachineFault: The kernel did something that hardware does not allow; Deadlock if it waits
            for ever.
        UnsupportedPtx: The kernel has instructions that the emulator does not support.
        EmulationError: The kernel cannot be run for another reason.
        ToolchainError: A C compiler or the kernel compiler is missing.
        InputError: `modes` is wrong, or a name in `unknown` or `settled`.
        Exception: Any error that the kernel's host part raises about its arguments.
    """
    if isinstance(kernel, OnDevices):
        if tensors or settled or explores:
            raise InputError("kernel", "what devices run has its tensors, and observes no schedule")
        calls = [_with_artifact(call, num_sms) for call in kernel.calls]
        return emulate_devices(
            replace(kernel, calls=calls),
            modes=modes,
            num_sms=num_sms,
            time_limit_s=time_limit_s,
            host=HOST,
            unknown=unknown,
        )
    chosen = parse_modes(modes)  # before the kernel is compiled once more
    if isinstance(kernel, Kernel):
        artifact, arguments = of_kernel(kernel), (*tensors, num_sms)
    else:
        artifact, arguments = kernel, tensors
    return emulate_artifact(
        artifact,
        *arguments,
        modes=chosen,
        num_sms=num_sms,
        time_limit_s=time_limit_s,
        host=HOST,
        unknown=unknown,
        settled=settled,
        explores=explores,
    )


def _with_artifact(call: DeviceCall, num_sms: int) -> DeviceCall:
    """Return `call`; if of a jitgen kernel, as a call of its artifact, with `num_sms`."""
    if not isinstance(call.kernel, Kernel):
        return call
    arguments = {**call.arguments, "num_sms": num_sms}
    return replace(call, kernel=of_kernel(call.kernel), arguments=arguments)
