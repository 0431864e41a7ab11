# SPDX-License-Identifier: Apache-2.0
"""Repeated timings of one thing."""

from __future__ import annotations

import statistics

from jitgen.support.frozen import frozen


@frozen
class Times:
    """
    Repetitions of one thing.

    Attributes:
        seconds: One figure for each repetition, or for each round of several.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """How far best and worst lie apart, as a part of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def detail(self, scale: float, unit: str) -> str:
        """Return best, worst and count; `scale` is how many `unit` a second has."""
        low, high = min(self.seconds) * scale, max(self.seconds) * scale
        return f"{low:.3g}..{high:.3g} {unit} in {len(self.seconds)} runs"
