# SPDX-License-Identifier: Apache-2.0
"""Repeated timings of one function."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from jitgen.support.frozen import frozen


@frozen
class Times:
    """
    The times of repetitions.

    Attributes:
        seconds: One figure for each repetition, or for each round of several.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the times, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The difference of the longest and the shortest time, as a part of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median

    def to_json(self) -> list[float]:
        """Return the seconds as a JSON list."""
        return list(self.seconds)

    @classmethod
    def from_json(cls, seconds: Iterable[float]) -> Times:
        """
        Return the object from the document that `to_json` returned.

        Raises:
            TypeError, ValueError: `seconds` is not what `to_json` returned.
        """
        found = cls(seconds=tuple(map(float, seconds)))
        if not min(found.seconds, default=0.0) > 0:
            raise ValueError("times are positive, and there is one for each round")
        return found

    def detail(self, scale: float, unit: str) -> str:
        """
        Return a text of the shortest and the longest time and the number of times; `scale` is the
        number of `unit` in a second.
        """
        low, high = min(self.seconds) * scale, max(self.seconds) * scale
        return f"{low:.3g}..{high:.3g} {unit} in {len(self.seconds)} runs"
