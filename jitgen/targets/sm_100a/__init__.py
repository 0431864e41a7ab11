# SPDX-License-Identifier: Apache-2.0
"""Blackwell for data centres: B200, GB200."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.targets.protocol import HostLevel, rules_in
from jitgen.targets.sm_100a.devices import B200, GB200

if TYPE_CHECKING:
    from jitgen.targets.protocol import AnyRules


STREAMING = ("combine", "permute_quantize", "quantize", "route", "silu_mul_quantize")
"""Operations whose kernels are those of sm_90a, and their rules with them."""


class Sm100a:
    """See `jitgen.targets.protocol.Target`."""

    name = "sm_100a"
    family = "sm100"
    is_gpu = True
    compiler_options: tuple[str, ...] = ("--gpu-arch", "sm_100a")
    host_level = HostLevel.BASE
    devices = (B200, GB200)
    operations = (
        *("grouped_gemm", "moe_fc2_dense", "quantize", "silu_mul_quantize"),
        *("combine", "permute_quantize", "route"),
    )

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        return (major, minor) == (10, 0)

    def rules(self, op: str) -> AnyRules:
        """Return what it says of an operation of `operations`."""
        own = "sm_90a" if op in STREAMING else "sm_100a"
        return rules_in(f"jitgen.targets.{own}", op, self.name)


TARGET = Sm100a()
