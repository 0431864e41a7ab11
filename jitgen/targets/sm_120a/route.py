# SPDX-License-Identifier: Apache-2.0
"""
What sm_120a says of `route`: what sm_90a says, for the kernels are the same, but for the shared
memory of a CTA.
"""

from __future__ import annotations

from jitgen.targets.sm_100a.route import Route as OfBlackwell


class Route(OfBlackwell):
    """See `jitgen.targets.protocol.Rules`."""

    shared_bytes = 99 * 1024  # CUDA C++ Programming Guide, "Compute Capabilities", 12.x
