# SPDX-License-Identifier: Apache-2.0
"""
How much the counters of a service grew in each half hour of the last day, in memory.

Prometheus keeps more for longer. This is for the pages of a service that nothing scrapes, and is
empty after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.server.metrics import Metrics

SPAN_S = 1800
"""Seconds of a span."""

SPANS = 48
"""Spans of a day."""

LOOK_S = 30.0
"""Seconds between two looks at the counters: those on both sides of a span's end are mixed."""


@frozen
class Span:
    """
    Growth of the counters in half an hour.

    Attributes:
        at: Its beginning, in seconds since 1970.
        grown: How much each counter grew, by its name: ``source memory``, ``compiled ok``,
            ``toolchain NAME``, ``arch NAME`` for seconds of the compiler, ``queue s``, ``queue n``,
            ``request s``, ``request n``.
        queued: The longest queue that was seen.
    """

    at: float
    grown: Mapping[str, float]
    queued: int

    def of(self, kind: str) -> dict[str, float]:
        """
        Return the growth of the counters whose names begin with `kind`, by the rest of their names.
        """
        return {
            name.removeprefix(f"{kind} "): count
            for name, count in self.grown.items()
            if name.startswith(f"{kind} ")
        }

    def mean(self, kind: str) -> float:
        """
        Return the mean time, ``KIND s`` divided by ``KIND n``, in seconds; 0 if ``KIND n`` is 0.
        """
        number = self.grown.get(f"{kind} n", 0.0)
        return self.grown[f"{kind} s"] / number if number else 0.0


class History:
    """Growth of the counters of `metrics` in the last day."""

    def __init__(self, metrics: Metrics, now: float) -> None:
        self._metrics = metrics
        self._grown: dict[int, dict[str, float]] = {}
        self._queued: dict[int, int] = {}
        self._last = self._totals()
        self._looked = now

    def look(self, now: float, queued: int, *, is_asked: bool = False) -> None:
        """
        Add what the counters grew by since the last look, if that is long ago or `is_asked`.

        Args:
            now: The time, in seconds since 1970.
            queued: Number of kernels that wait.
            is_asked: Whether a page shows it now.
        """
        if now - self._looked < LOOK_S and not is_asked:
            return
        self._looked = now
        span = int(now // SPAN_S)
        totals = self._totals()
        grown = ((name, total - self._last.get(name, 0.0)) for name, total in totals.items())
        self._grown[span] = added((*self._grown.get(span, {}).items(), *grown))
        self._queued[span] = max(self._queued.get(span, 0), queued)
        self._last = totals
        for old in [each for each in self._grown if each <= span - SPANS]:
            del self._grown[old], self._queued[old]

    def spans(self, now: float) -> list[Span]:
        """Return the spans of the last day, the oldest first; those without anything are empty."""
        last = int(now // SPAN_S)
        return [
            Span(
                at=float(span * SPAN_S),
                grown=self._grown.get(span, {}),
                queued=self._queued.get(span, 0),
            )
            for span in range(last - SPANS + 1, last + 1)
        ]

    def _totals(self) -> dict[str, float]:
        return added(self._read())

    def _read(self) -> Iterator[tuple[str, float]]:
        for _, labels, value in _samples(self._metrics.entries, "_total"):
            yield f"source {labels['source']}", value
        for _, labels, value in _samples(self._metrics.compiles, "_total"):
            yield f"compiled {labels['outcome']}", value
            yield f"toolchain {labels['toolchain']}", value
        for _, labels, value in _samples(self._metrics.compile_s, "_sum"):
            yield f"arch {labels['arch']}", value
        for kind, metric in (
            ("queue", self._metrics.queue_s),
            ("request", self._metrics.latency),
        ):
            for part, ending in (("s", "_sum"), ("n", "_count")):
                for _, _, value in _samples(metric, ending):
                    yield f"{kind} {part}", value


def added(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of the numbers of each name, by name."""
    total: dict[str, float] = {}
    for name, value in pairs:
        total[name] = total.get(name, 0.0) + value
    return total


def _samples(metric: object, ending: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of the samples of a metric whose names end in `ending`."""
    for family in metric.collect():  # type: ignore[attr-defined]
        for sample in family.samples:
            if sample.name.endswith(ending):
                yield sample.name, sample.labels, sample.value
