# SPDX-License-Identifier: Apache-2.0
"""Hopper: H100, H200, GH200, H20."""

from __future__ import annotations

from jitgen.targets.gpu import GpuTarget
from jitgen.targets.sm_90a.devices import DEVICES


class Sm90a(GpuTarget):
    """The target ``sm_90a``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "sm_90a"
    compiler_options = ("--gpu-arch", "sm_90a")
    family = "sm90"
    capability = (9, 0)
    folder = "sm_90a"
    devices = DEVICES
    operations = (
        *("grouped_gemm", "grouped_gemm_wgrad", "unpack_weights"),
        *("moe_fc2_dense", "quantize", "activation_quantize"),
        *("permute_quantize", "combine", "route", "activation_backward"),
        *("dispatch", "combine_ranks", "add_lora", "moe_decode"),
    )


TARGET = Sm90a()
