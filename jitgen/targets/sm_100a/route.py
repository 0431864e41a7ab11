# SPDX-License-Identifier: Apache-2.0
"""
What sm_100a says of `route`: what sm_90a says, for the kernels are the same.

They have nothing of one generation: shuffles, votes, and stores to the shared memory of a cluster.
"""

from __future__ import annotations

from jitgen.config.route import RouteProblem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a.route import Route as OfHopper


class Route(OfHopper):
    """See `jitgen.targets.protocol.Rules`."""

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def doubt(self, problem: RouteProblem, device: Device) -> str:  # noqa: ARG002
        """Return that nothing was measured on such a device."""
        return f"the model of an {device.name} is on paper: nothing was measured"
