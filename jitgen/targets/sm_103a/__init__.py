# SPDX-License-Identifier: Apache-2.0
"""Blackwell Ultra for data centres: B300, GB300. Kernels are those of sm_100a, compiled anew."""

from __future__ import annotations

from jitgen.targets.sm_100a import Sm100a
from jitgen.targets.sm_100a.devices import B300, GB300


class Sm103a(Sm100a):
    """The target ``sm_103a``; its members are those of `jitgen.targets.protocol.Target`."""

    name = "sm_103a"
    compiler_options = ("--gpu-arch", "sm_103a")
    devices = (B300, GB300)
    capability = (10, 3)


TARGET = Sm103a()
