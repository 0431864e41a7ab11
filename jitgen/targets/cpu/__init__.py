# SPDX-License-Identifier: Apache-2.0
"""The host's own processor: no GPU needed, the same path from config to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.targets.protocol import Device, HostLevel, rules_in

if TYPE_CHECKING:
    from jitgen.targets.protocol import AnyRules


class Cpu:
    """The target ``cpu``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "cpu"
    family = "cpu"
    is_gpu = False
    compiler_options = ()
    host_level = HostLevel.OWN
    devices = (
        # One core of the machine that the constants of the cost model were measured on.
        Device(
            name="x86-64 server", num_sms=1, clock_mhz=2600, dram_gbps=10.0, l2_bytes=32 * 2**20
        ),
    )
    operations = (
        *("grouped_gemm", "grouped_gemm_wgrad", "moe_fc2_dense", "activation_quantize"),
        *("permute_quantize", "combine", "route", "activation_backward"),
        *("dispatch", "combine_ranks", "add_lora"),
    )

    def runs_on(self, major: int, minor: int) -> bool:  # whatever GPU it is
        """Return whether a GPU runs its kernels: none does."""
        return False

    def rules(self, op: str) -> AnyRules:
        """Return the rules of `op`, one of `operations`."""
        return rules_in("jitgen.targets.cpu", op)


TARGET = Cpu()
