# SPDX-License-Identifier: Apache-2.0
"""
What sm_100a says of `silu_mul_quantize`: what sm_90a says, for the kernels are the same.

They have nothing of one generation: vectors of 16 bytes, shuffles, and a search for the largest
value. Registers are as many, but the rules know what the compiler needs on sm_90a: on sm_100a 11 of
the 230 that may be chosen spill two to six instructions' worth, on 8 or 16 bytes of stack.
"""

from __future__ import annotations

from jitgen.config.silu_mul_quantize import SiluMulQuantizeProblem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.silu_mul_quantize import SiluMulQuantize as OfHopper


class SiluMulQuantize(OfHopper):
    """See `jitgen.targets.protocol.Rules`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def doubt(self, problem: SiluMulQuantizeProblem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"
