# SPDX-License-Identifier: Apache-2.0
"""Blackwell for desks and workstations: RTX 50, RTX PRO 6000."""

from __future__ import annotations

from jitgen.targets.gpu import GpuTarget
from jitgen.targets.protocol import Device
from jitgen.targets.sm_100a import STREAMING
from jitgen.targets.sm_120a.devices import DEVICES


class Sm120a(GpuTarget):
    """The target ``sm_120a``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "sm_120a"
    compiler_options = ("--gpu-arch", "sm_120a")
    family = "sm120"
    capability = (12, 0)
    folder = "sm_120a"
    borrowed = dict.fromkeys(STREAMING, "sm_90a")
    devices: tuple[Device, ...] = DEVICES
    operations = (
        *("grouped_gemm", "activation_quantize", "quantize"),
        *("combine", "permute_quantize", "route", "activation_backward"),
    )


TARGET = Sm120a()
