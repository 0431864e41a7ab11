# SPDX-License-Identifier: Apache-2.0
"""
What sm_100a says of `permute_quantize`: what sm_90a says, for the kernels are the same.

They have nothing of one generation: loads and stores of 16 bytes, shuffles, float32 arithmetic.
"""

from __future__ import annotations

from jitgen.config.permute_quantize import PermuteQuantizeProblem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.permute_quantize import PermuteQuantize as OfHopper


class PermuteQuantize(OfHopper):
    """See `jitgen.targets.protocol.Rules`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def doubt(self, problem: PermuteQuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"
