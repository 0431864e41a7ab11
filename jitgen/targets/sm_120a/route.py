# SPDX-License-Identifier: Apache-2.0
"""
What sm_120a says of `route`: what sm_90a says, for the kernels are the same, but for the shared
memory of a CTA.
"""

from __future__ import annotations

from jitgen.targets.sm_100a.route import Route as OfBlackwell
from jitgen.targets.sm_120a.sizes import SMEM_BYTES


class Route(OfBlackwell):
    """See `jitgen.targets.protocol.Rules`."""

    shared_bytes = SMEM_BYTES
