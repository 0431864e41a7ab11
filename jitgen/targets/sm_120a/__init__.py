# SPDX-License-Identifier: Apache-2.0
"""Blackwell for desks and workstations: RTX 50, RTX PRO 6000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.targets.protocol import HostLevel, rules_in
from jitgen.targets.sm_100a import STREAMING
from jitgen.targets.sm_120a.devices import DEVICES

if TYPE_CHECKING:
    from jitgen.targets.protocol import AnyRules, Device


class Sm120a:
    """See `jitgen.targets.protocol.Target`."""

    name = "sm_120a"
    family = "sm120"
    is_gpu = True
    compiler_options: tuple[str, ...] = ("--gpu-arch", "sm_120a")
    host_level = HostLevel.BASE
    devices: tuple[Device, ...] = DEVICES
    operations = (
        *("grouped_gemm", "silu_mul_quantize", "quantize"),
        *("combine", "permute_quantize", "route"),
    )

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        return (major, minor) == (12, 0)

    def rules(self, op: str) -> AnyRules:
        """Return what it says of an operation of `operations`."""
        own = "sm_90a" if op in STREAMING else "sm_120a"
        return rules_in(f"jitgen.targets.{own}", op, self.name)


TARGET = Sm120a()
