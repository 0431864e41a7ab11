# SPDX-License-Identifier: Apache-2.0
"""
What sm_120a says of `permute_quantize`: what sm_90a says, for the kernels are the same, but for
what an SM holds at once.
"""

from __future__ import annotations

from jitgen.targets.sm_100a.permute_quantize import PermuteQuantize as OfBlackwell


class PermuteQuantize(OfBlackwell):
    """See `jitgen.targets.protocol.Rules`."""

    most_ctas = 24  # CUDA C++ Programming Guide, "Compute Capabilities", 12.x
    most_threads = 1536
