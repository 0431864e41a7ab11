# SPDX-License-Identifier: Apache-2.0
"""Hopper: H100, H200, GH200, H20."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.targets.protocol import HostLevel, rules_in
from jitgen.targets.sm_90a.devices import DEVICES

if TYPE_CHECKING:
    from jitgen.targets.protocol import AnyRules


class Sm90a:
    """See `jitgen.targets.protocol.Target`."""

    name = "sm_90a"
    family = "sm90"
    is_gpu = True
    compiler_options = ("--gpu-arch", "sm_90a")
    host_level = HostLevel.BASE
    devices = DEVICES
    operations = (
        *("grouped_gemm", "grouped_gemm_wgrad", "unpack_weights"),
        *("moe_fc2_dense", "quantize", "silu_mul_quantize"),
        *("permute_quantize", "combine", "route"),
    )

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        return (major, minor) == (9, 0)

    def rules(self, op: str) -> AnyRules:
        """Return what it says of an operation of `operations`."""
        return rules_in("jitgen.targets.sm_90a", op)


TARGET = Sm90a()
