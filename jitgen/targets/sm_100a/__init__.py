# SPDX-License-Identifier: Apache-2.0
"""Blackwell for data centres: B200, GB200."""

from __future__ import annotations

from jitgen.targets.gpu import GpuTarget
from jitgen.targets.sm_100a.devices import B200, GB200

STREAMING = (
    *("activation_backward", "combine", "permute_quantize", "quantize", "route"),
    "activation_quantize",
)
"""Operations whose kernels have nothing of one generation: see `jitgen.targets.sm_90a.streams`."""

WIRE = ("combine_ranks", "dispatch")
"""Operations between the GPUs of a host, whose kernels have nothing of one generation, either."""


class Sm100a(GpuTarget):
    """The target ``sm_100a``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "sm_100a"
    compiler_options = ("--gpu-arch", "sm_100a")
    family = "sm100"
    capability = (10, 0)
    folder = "sm_100a"
    borrowed = dict.fromkeys((*STREAMING, *WIRE), "sm_90a")
    devices = (B200, GB200)
    operations = (
        *("grouped_gemm", "moe_fc2_dense", "quantize", "activation_quantize"),
        *("combine", "permute_quantize", "route", "activation_backward"),
        *("dispatch", "combine_ranks"),
    )


TARGET = Sm100a()
