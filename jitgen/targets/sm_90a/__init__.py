# SPDX-License-Identifier: Apache-2.0
"""Hopper: H100, H200, GH200, H20."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from jitgen.targets.protocol import HostLevel
from jitgen.targets.sm_90a.devices import DEVICES

if TYPE_CHECKING:
    from jitgen.targets.protocol import Rules


class Sm90a:
    """See `jitgen.targets.protocol.Target`."""

    name = "sm_90a"
    family = "sm90"
    is_gpu = True
    compiler_options = ("--gpu-arch", "sm_90a")
    host_level = HostLevel.BASE
    devices = DEVICES
    operations = (
        *("grouped_gemm", "moe_fc2_dense", "quantize", "silu_mul_quantize"),
        *("combine", "permute_quantize", "route"),
    )

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        return (major, minor) == (9, 0)

    @cache  # noqa: B019  # there is one target
    def rules(self, op: str) -> Rules:
        """Return what it says of an operation of `operations`."""
        if op == "silu_mul_quantize":
            from jitgen.targets.sm_90a.silu_mul_quantize import SiluMulQuantize

            return SiluMulQuantize()
        if op == "route":
            from jitgen.targets.sm_90a.route import Route

            return Route()
        if op == "quantize":
            from jitgen.targets.sm_90a.quantize import Quantize

            return Quantize()
        if op == "moe_fc2_dense":
            from jitgen.targets.sm_90a.moe_fc2_dense import MoeFc2Dense

            return MoeFc2Dense()
        if op == "permute_quantize":
            from jitgen.targets.sm_90a.permute_quantize import PermuteQuantize

            return PermuteQuantize()
        if op == "combine":
            from jitgen.targets.sm_90a.combine import Combine

            return Combine()
        from jitgen.targets.sm_90a.grouped_gemm import GroupedGemm

        return GroupedGemm()


TARGET = Sm90a()
