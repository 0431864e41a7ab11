# SPDX-License-Identifier: Apache-2.0
"""Measurements, tables and targets of layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from jitgen.bench.layer import NAME
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.ours import LORA, STEPS
from jitgen.bench.layer.peers import INDUCTOR as TORCH
from jitgen.bench.protocol import Record, Row
from jitgen.bench.report import OURS, Report, Table, counted_words
from jitgen.support.frozen import frozen

FEW_TOKENS = 512
"""Largest number of tokens for which reading the weights limits a layer."""

OVER_TORCH, OVER_PEERS = {True: 1.5, False: 1.2}, {True: 1.15, False: 1.03}
"""Targets of the others' times, relative to ours: for few tokens, and for more."""

ONE_TOKEN_US = 94.0
OF_FLOOR = 1.02
"""
Longest times relative to the floor, for one token and for 4 to 64 tokens: with 32 and with 256
experts.
"""


OF_BASE = 1.15
"""Longest time of 64 tokens with adapters, relative to the time without them."""


@frozen
class Measured(Record):
    """
    The results of one case.

    Attributes:
        case: The sizes.
        active: Number of experts that at least one token chose.
        floor_us: Time of reading the weights of these experts at the rate of a copy.
        times_us: Microseconds of each side, medians.
        spreads: Spread of each side: the difference of its longest and shortest time, relative to
            the median.
        errors: Each side's error against float32.
        steps_us: Microseconds of each of jitgen's launches, timed alone, including the cost of an
            event; if one launch sorts and gathers, also those of the two launches that do the same.
        missing: Sides without a time, each with the reason.
        notes: Caveats of sides in this case, for readers.
    """

    case: Case
    active: int
    floor_us: float
    times_us: dict[str, float]
    spreads: dict[str, float]
    errors: dict[str, float]
    steps_us: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def best_peer(self) -> str:
        """Name of the fastest side that is neither jitgen's nor torch's; empty if there is none."""
        others = [side for side in self.times_us if not side.startswith((OURS, TORCH))]
        return min(others, key=self.times_us.__getitem__, default="")


@dataclass(slots=True, kw_only=True)
class LayerReport(Report):
    """Report of a run of the layer suite."""

    SUITES: ClassVar[tuple[str, ...]] = (NAME,)
    JSON: ClassVar[str] = "conditions notes copy_rate cases=found"

    found: list[Measured] = field(default_factory=list)

    def targets(self) -> Iterator[Row]:
        """Yield the targets of the cases, each with its measured figure."""
        for each in self.found:
            case, ours = each.case, each.times_us.get(OURS)
            if ours is None:
                continue
            is_few = case.tokens <= FEW_TOKENS
            has_floor = case.experts >= 32 and not case.of  # a share may have no expert of a token
            if has_floor and case.tokens == 1:
                yield _row(f"one token: {case}", ours, "us", ONE_TOKEN_US)
            if has_floor and 4 <= case.tokens <= 64:
                yield _row(f"of the floor: {case}", ours / each.floor_us, "x", OF_FLOOR)
            if LORA in each.times_us and case.tokens == 64:
                yield _row(f"with adapters: {case}", each.times_us[LORA] / ours, "x", OF_BASE)
            if TORCH in each.times_us:
                rate = each.times_us[TORCH] / ours
                yield _row(
                    f"{TORCH} over ours: {case}", rate, "x", OVER_TORCH[is_few], is_rate=True
                )
            if peer := each.best_peer:
                rate = each.times_us[peer] / ours
                least = OVER_PEERS[is_few]
                yield _row(f"{peer} over ours: {case}", rate, "x", least, is_rate=True)

    def tables(self) -> Iterator[Table]:
        """
        Yield, for each layer, a table of sides and one of our steps; then tables of errors, of
        sides that were left out, and of remarks.
        """
        for layer in dict.fromkeys(each.case.layer for each in self.found):
            yield from _tables(layer, [each for each in self.found if each.case.layer == layer])
        yield Table(
            title="errors against float32",
            columns=("case", "errors"),
            rows=tuple((str(each.case), _errors(each)) for each in self.found),
        )
        for title, column, texts in (
            ("left out", "why", [each.missing for each in self.found]),
            ("remarks", "what", [each.notes for each in self.found]),
        ):
            counts = counted_words(texts)
            yield Table(
                title=title,
                columns=("side", "cases", column),
                rows=tuple((side, str(count), text) for (side, text), count in counts.items()),
            )


def _tables(layer: str, found: list[Measured]) -> Iterator[Table]:
    """Yield the tables of the cases of a layer."""
    sides = list(dict.fromkeys(side for each in found for side in each.times_us))
    yield Table(
        title=layer,
        columns=("tokens", "active", "floor us", *(f"{side} us" for side in sides)),
        rows=tuple(
            (
                str(each.case.tokens),
                str(each.active),
                f"{each.floor_us:.1f}",
                *(_time(each, side) for side in sides),
            )
            for each in found
        ),
    )
    timed = [each for each in found if each.steps_us]
    steps = list(dict.fromkeys(step for each in timed for step in each.steps_us)) or STEPS
    yield Table(
        title=f"{layer}, each launch alone, us",
        columns=("tokens", *steps),
        rows=tuple(
            (str(each.case.tokens), *(_step(each, step) for step in steps)) for each in timed
        ),
    )


def _errors(found: Measured) -> str:
    return ", ".join(f"{side} {error:.2e}" for side, error in found.errors.items())


def _step(found: Measured, step: str) -> str:
    """Return the time of a launch alone as text; a dash if the case has none."""
    return f"{found.steps_us[step]:.1f}" if step in found.steps_us else "-"


def _time(found: Measured, side: str) -> str:
    """Return a side's time and its ratio to jitgen's; for jitgen's, its ratio to the floor."""
    if side not in found.times_us:
        return "-"
    time = found.times_us[side]
    base = found.floor_us if side == OURS else found.times_us.get(OURS, time)
    return f"{time:.1f} ({time / base:.2f})" if base else f"{time:.1f}"  # nothing here was chosen


def _row(what: str, value: float, unit: str, budget: float, *, is_rate: bool = False) -> Row:
    return Row(suite=NAME, what=what, value=value, unit=unit, budget=budget, is_rate=is_rate)
