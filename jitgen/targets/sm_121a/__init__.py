# SPDX-License-Identifier: Apache-2.0
"""DGX Spark: GB10. Kernels are those of sm_120a, compiled anew."""

from __future__ import annotations

from jitgen.targets.sm_120a import Sm120a
from jitgen.targets.sm_120a.devices import GB10


class Sm121a(Sm120a):
    """The target ``sm_121a``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "sm_121a"
    compiler_options = ("--gpu-arch", "sm_121a")
    devices = (GB10,)
    capability = (12, 1)


TARGET = Sm121a()
