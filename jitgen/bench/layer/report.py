# SPDX-License-Identifier: Apache-2.0
"""What was found of each case, its tables, and what it is to show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from jitgen.bench.layer import NAME
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.inductor import NAME as TORCH
from jitgen.bench.layer.ours import OURS, STEPS
from jitgen.bench.protocol import Row
from jitgen.errors import ConfigError
from jitgen.support.documents import BadDocument, parse_json, read_bounded

FEW_TOKENS = 512
"""Up to so many tokens weights are what a layer waits for."""

OVER_TORCH, OVER_PEERS = {True: 1.5, False: 1.2}, {True: 1.15, False: 1.03}
"""What the others' times are to be, as parts of ours: for few tokens, and for more."""

ONE_TOKEN_US = 94.0
OF_FLOOR = 1.02
"""The most that one token may take, and 4 to 64 tokens, as a part of the floor; of 32 and 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    One case.

    Attributes:
        case: The sizes.
        active: Experts that somebody chose.
        floor_us: What their weights take at the rate of a copy.
        times_us: Microseconds of each side, medians.
        spreads: How far best and worst lie apart, as parts of these.
        errors: Each side's error against float32.
        steps_us: Microseconds of each launch of ours, timed alone, with what an event costs: of one
            that sorts and gathers, and of the two that do so otherwise.
        missing: Sides that are not there, and why.
        notes: What a reader must know of a side in this case.
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
        """The fastest side of others that is not torch's; empty where there is none."""
        others = [side for side in self.times_us if not side.startswith((OURS, TORCH))]
        return min(others, key=self.times_us.__getitem__, default="")


@dataclass(slots=True, kw_only=True)
class LayerReport:
    """
    A run.

    Attributes:
        found: Every case.
        conditions: What figures depend on.
        notes: What a reader must know of a side.
        copy_rate: Bytes a second of a copy, read and written.
    """

    found: list[Found] = field(default_factory=list)
    conditions: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    copy_rate: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "suite": NAME,
            "conditions": self.conditions,
            "notes": self.notes,
            "copy_rate": self.copy_rate,
            "cases": [asdict(each) | {"case": _case_json(each.case)} for each in self.found],
        }

    def save(self, path: Path) -> None:
        """
        Write the report.

        Raises:
            ConfigError: The file cannot be written.
        """
        try:
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Return what `save` wrote.

        Raises:
            ConfigError: It is no such file.
        """
        try:
            document = parse_json(read_bounded(path))
            cases = document["cases"]
            return cls(
                found=[Found(**{**each, "case": Case(**each["case"])}) for each in cases],
                conditions=document["conditions"],
                notes=document["notes"],
                copy_rate=document["copy_rate"],
            )
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError, KeyError) as error:
            # what Python says of a value that is of another form helps nobody
            why = f": {error}" if isinstance(error, BadDocument) else ""
            raise ConfigError(
                f"{path} is no report of {NAME}{why}; `jitgen bench {NAME} --save FILE` writes one"
            ) from None


def _case_json(case: Case) -> dict[str, int]:
    names = ("experts", "tokens", "hidden", "intermediate", "top_k", "of")
    return {name: getattr(case, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A title, columns and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(found: Sequence[Found]) -> Iterator[Table]:
    """Yield for each layer a table of sides, and one of the steps of ours."""
    for layer in dict.fromkeys(each.case.layer for each in found):
        here = [each for each in found if each.case.layer == layer]
        sides = list(dict.fromkeys(side for each in here for side in each.times_us))
        columns = ("tokens", "active", "floor us", *(f"{side} us" for side in sides))
        rows = [
            (
                str(each.case.tokens),
                str(each.active),
                f"{each.floor_us:.1f}",
                *(_time(each, side) for side in sides),
            )
            for each in here
        ]
        yield Table(title=layer, columns=columns, rows=tuple(rows))
        timed = [each for each in here if each.steps_us]
        steps = list(dict.fromkeys(step for each in timed for step in each.steps_us)) or STEPS
        yield Table(
            title=f"{layer}, each launch alone, us",
            columns=("tokens", *steps),
            rows=tuple(
                (str(each.case.tokens), *(_step(each, step) for step in steps)) for each in timed
            ),
        )


def _step(found: Found, step: str) -> str:
    """Return the time of a launch alone, if the case has it."""
    return f"{found.steps_us[step]:.1f}" if step in found.steps_us else "-"


def _time(found: Found, side: str) -> str:
    """Return a side's time, and what it is of ours; of ours what it is of the floor."""
    if side not in found.times_us:
        return "-"
    time = found.times_us[side]
    base = found.floor_us if side == OURS else found.times_us.get(OURS, time)
    return f"{time:.1f} ({time / base:.2f})" if base else f"{time:.1f}"  # nothing here was chosen


def targets(found: Sequence[Found]) -> Iterator[Row]:
    """Yield what the cases are to show, each with its figure."""
    for each in found:
        case, ours = each.case, each.times_us.get(OURS)
        if ours is None:
            continue
        is_few = case.tokens <= FEW_TOKENS
        has_floor = case.experts >= 32 and not case.of  # a share may have no expert of a token
        if has_floor and case.tokens == 1:
            yield _row(f"one token: {case}", ours, "us", ONE_TOKEN_US)
        if has_floor and 4 <= case.tokens <= 64:
            yield _row(f"of the floor: {case}", ours / each.floor_us, "x", OF_FLOOR)
        if TORCH in each.times_us:
            rate = each.times_us[TORCH] / ours
            yield _row(f"{TORCH} over ours: {case}", rate, "x", OVER_TORCH[is_few], is_rate=True)
        if peer := each.best_peer:
            rate = each.times_us[peer] / ours
            yield _row(f"{peer} over ours: {case}", rate, "x", OVER_PEERS[is_few], is_rate=True)


def _row(what: str, value: float, unit: str, budget: float, *, is_rate: bool = False) -> Row:
    return Row(suite=NAME, what=what, value=value, unit=unit, budget=budget, is_rate=is_rate)


def left_out(found: Sequence[Found]) -> dict[tuple[str, str], int]:
    """Return how often a side was left out, by side and reason."""
    return _counted(each.missing for each in found)


def remarks(found: Sequence[Found]) -> dict[tuple[str, str], int]:
    """Return in how many cases a reader must know something of a side, by side and remark."""
    return _counted(each.notes for each in found)


def _counted(found: Iterable[dict[str, str]]) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for each in found:
        for place in each.items():
            counts[place] = counts.get(place, 0) + 1
    return counts
