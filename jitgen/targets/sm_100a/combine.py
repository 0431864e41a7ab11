# SPDX-License-Identifier: Apache-2.0
"""
What sm_100a says of `combine`: what sm_90a says, for the kernels are the same.

They have nothing of one generation: loads and stores of 16 bytes, shuffles, float32 arithmetic.
"""

from __future__ import annotations

from jitgen.config.combine import CombineProblem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.combine import Combine as OfHopper


class Combine(OfHopper):
    """See `jitgen.targets.protocol.Rules`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def doubt(self, problem: CombineProblem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"
