# SPDX-License-Identifier: Apache-2.0
"""
What sm_100a says of `quantize`: what sm_90a says, for the kernels are the same.

They round to e2m1 in float32 arithmetic, which is right everywhere, though this target could
convert.
"""

from __future__ import annotations

from jitgen.config.quantize import QuantizeProblem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.quantize import Quantize as OfHopper


class Quantize(OfHopper):
    """See `jitgen.targets.protocol.Rules`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def doubt(self, problem: QuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"
