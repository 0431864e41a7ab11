# SPDX-License-Identifier: Apache-2.0
"""Common parts of targets that are GPUs: how they are compiled for, and where their rules are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from jitgen.targets.protocol import AnyRules, Device, HostLevel, rules_in


class GpuTarget:
    """
    Base of targets that are GPUs; members are those of `jitgen.targets.protocol.Target`.

    Attributes:
        capability: Compute capability of the GPUs that run its kernels.
        folder: Folder of its rules: its own name, or that of a target with the same kernels.
        borrowed: Name of the other target, by operations that have its kernels and rules.
    """

    name: str
    family: str
    devices: tuple[Device, ...]
    operations: tuple[str, ...]
    compiler_options: tuple[str, ...]
    is_gpu = True
    host_level = HostLevel.BASE
    capability: ClassVar[tuple[int, int]]
    folder: ClassVar[str]
    borrowed: ClassVar[Mapping[str, str]] = {}

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        return (major, minor) == self.capability

    def rules(self, op: str) -> AnyRules:
        """Return the rules of `op`, one of `operations`."""
        return rules_in(f"jitgen.targets.{self.borrowed.get(op, self.folder)}", op, self.name)
