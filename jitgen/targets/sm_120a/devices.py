# SPDX-License-Identifier: Apache-2.0
"""
The devices of sm_120a and sm_121a, on paper: nothing here was measured by jitgen.

SMs, clocks and memory are those of NVIDIA's data sheets.
"""

from __future__ import annotations

from jitgen.targets.protocol import Device

_NOT_RUN = "kernels ran in the emulator alone, never on such a GPU; times and choices are on paper"

RTX_5090 = Device(
    name="NVIDIA GeForce RTX 5090",
    num_sms=170,
    clock_mhz=2407,
    dram_gbps=1792.0,
    l2_bytes=96 * 2**20,
    proof=_NOT_RUN,
)
RTX_PRO_6000 = Device(
    name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    num_sms=188,
    clock_mhz=2617,
    dram_gbps=1792.0,
    l2_bytes=128 * 2**20,
    proof=_NOT_RUN,
)
GB10 = Device(
    name="NVIDIA GB10",
    num_sms=48,
    clock_mhz=2418,
    dram_gbps=273.0,
    l2_bytes=24 * 2**20,
    proof=_NOT_RUN,
)
