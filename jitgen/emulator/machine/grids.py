# SPDX-License-Identifier: Apache-2.0
"""
The launch and the device of a cluster, and the work that has ended when it starts.

Launches of one stream follow each other: the end of one is seen by the next, and by no other
device. PTX ISA, sections "griddepcontrol" and "Memory Consistency Model"; CUDA C++ Programming
Guide, "Streams".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitgen.emulator.machine.remote_clocks import ByCluster
    from jitgen.emulator.program.translate import Program


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """
    The launches of one device, numbered as they begin.

    Its clock in a release has a 1 for each launch that is over, by number, and otherwise a 0.

    Attributes:
        device: Its number.
        has_peers: Whether other devices run as well.
    """

    device: int = 0
    has_peers: bool = False


@dataclass(slots=True, eq=False)
class Grid:
    """
    One launch of a stream.

    Attributes:
        stream: The stream.
        number: Number of the launch in the stream.
        program: The kernel; None in tests that have none.
        before: The clock after the end of the launches before it.
        follows: Whether a launch of the stream began before it.
    """

    stream: Stream = field(default_factory=Stream)
    number: int = 0
    program: Program | None = None
    before: ByCluster = field(default_factory=dict)
    follows: bool = False

    @property
    def title(self) -> str:
        """Prefix of the names of its CTAs; empty if there is only one device."""
        if not self.stream.has_peers:
            return ""
        return f"device {self.stream.device} launch {self.number} "

    def is_over_by(self, released: ByCluster) -> bool:
        """Return whether a release says that the launch is over."""
        ended = released.get(self.stream)
        return ended is not None and self.number < len(ended) and bool(ended[self.number])
