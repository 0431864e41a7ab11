# SPDX-License-Identifier: Apache-2.0
"""Finds the parameters of an artifact's launches, without running its kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jitgen.emulator.host.launch import Device, launches
from jitgen.emulator.host.native import Host


def dynamic_shared_bytes(
    library: bytes, symbol: str, arguments: Sequence[object], *, arch: str, num_sms: int, host: Host
) -> int:
    """
    Return the most bytes of dynamic shared memory of a CTA in the launches of one call.

    Args:
        library: The shared library of the artifact. It must be trusted: its code runs.
        symbol: The function.
        arguments: Its arguments; tensors in host memory pass for tensors of the device.
        arch: Target of the GPU that it finds.
        num_sms: SMs of that GPU.
        host: The machine that this runs on.

    Raises:
        EmulationError: The library cannot be loaded.
        UnsupportedPtx: Its host part requests properties of the device that are unknown.
        ToolchainError: There is no C compiler to make the stub runtime.
    """
    device = Device(arch=arch, num_sms=num_sms)
    params = _AnyKernel(tuple)  # what kernels are given does not matter
    found = launches(library, symbol, arguments, device=device, params=params, host=host)
    return max((launch.shared_bytes for _, launch in found), default=0)


class _AnyKernel(defaultdict[str, tuple[int, ...]]):
    """Sizes of the parameters of kernels, of which all are known and none is read."""

    def __contains__(self, name: object) -> bool:
        return True
