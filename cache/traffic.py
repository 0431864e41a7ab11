# SPDX-License-Identifier: Apache-2.0
"""
Where kernels came from, day by day: counts by tier, time lost to misses, and the worst misses.

A process counts a kernel once, when it is not loaded yet; calls of a loaded kernel are not counted,
since they cost less than counting. A *hit* came from this machine, a *miss* from elsewhere, from
the compiler, or from nowhere. The time of a miss is what its caller waited.

The counts are one JSON object in the index, kept for `DAYS` days:
``{"20421": {"disk": [3, 0], "compiled": [1, 2300], "worst": [[2300, "name", "compiled", 1764…]]}}``
with milliseconds, days since 1970, and seconds since 1970.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from typing import Annotated, Any

from jitgen.support import vocabulary as v
from jitgen.support.codec import one_of
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.frozen import frozen

HITS = ("memory", "disk", "base")
NOWHERE = "nowhere"
MISSES = ("remote", "service", "compiled", NOWHERE)
TIERS = (*HITS, *MISSES)

DAYS = 30
"""Days for which the counts are kept."""

WORST = 10
"""Number of the worst misses that are kept of each day."""

_DAY_S = 86400
_WORST = "worst"
_MAX_BYTES = 2**18
_MOST = 2**53
_MAX_NAME = 256


@frozen
class TierTraffic:
    """
    The number of kernels that came from one tier, and the seconds that callers waited for them; 0
    for a tier of hits.
    """

    kernels: v.Count
    seconds: v.Seconds


@frozen
class DayTraffic:
    """
    The kernels of one day, or of all days.

    Attributes:
        date: The day in UTC; empty: all of them.
        tiers: The counts of each tier with kernels.
        hit_rate: Part of them that came from this machine; None without any.
        lost_s: Seconds that callers waited for misses.
    """

    date: str
    tiers: Annotated[Mapping[str, TierTraffic], v.by("tier")]
    hit_rate: float | None
    lost_s: v.Seconds


@frozen
class MissedKernel:
    """One miss: the kernel, where it came from, and what its caller waited."""

    name: v.Name
    tier: Annotated[str, one_of(*MISSES)]
    seconds: v.Seconds
    at: v.Since1970


@frozen
class Traffic:
    """
    Where kernels came from.

    Attributes:
        total: Over all days that are kept.
        days: Each day with kernels, the last one first.
        worst: The misses for which callers waited longest.
    """

    total: DayTraffic
    days: tuple[DayTraffic, ...]
    worst: tuple[MissedKernel, ...]


def counted(text: str | None, records: Iterable[list[object]], now: float | None = None) -> str:
    """
    Return the counts in `text` with those of journal records added, for the last `DAYS` days.

    Records of other kinds, and malformed ones, count for nothing.
    """
    days = _days(text)
    for record in records:
        match record:
            case ["use", str(), str(tier), int(at)] if tier in HITS:
                _add(days, tier, 0, at)
            case ["miss", str(), str(name), str(tier), int(ms), int(at)] if tier in MISSES:
                if 0 <= ms < _MOST and _add(days, tier, ms, at):
                    worst = days[at // _DAY_S].setdefault(_WORST, [])
                    worst.append([ms, name[:_MAX_NAME], tier, at])
                    worst.sort(reverse=True)
                    del worst[WORST:]
    last = int(time.time() if now is None else now) // _DAY_S
    kept = {str(day): found for day, found in days.items() if last - DAYS < day <= last + 1}
    return json.dumps(kept, separators=(",", ":"))


def _add(days: dict[int, dict[str, Any]], tier: str, ms: int, at: int) -> bool:
    """Count one kernel; returns False, and counts nothing, if the time `at` is not valid."""
    if not 0 <= at < _MOST:
        return False
    count = days.setdefault(at // _DAY_S, {}).setdefault(tier, [0, 0])
    count[0] += 1
    count[1] += ms
    return True


def read(text: str | None) -> Traffic:
    """Return the counts in `text`; what is malformed in it is left out."""
    days = _days(text)
    found = [_day(str(_date(number)), days[number]) for number in sorted(days, reverse=True)]
    total: dict[str, list[int]] = {}
    for each in days.values():
        for tier in TIERS:
            kernels, ms = each.get(tier, (0, 0))
            before = total.get(tier, [0, 0])
            total[tier] = [before[0] + kernels, before[1] + ms]
    worst = sorted((row for each in days.values() for row in each.get(_WORST, ())), reverse=True)
    return Traffic(
        total=_day("", total),
        days=tuple(found),
        worst=tuple(
            MissedKernel(name=name, tier=tier, seconds=ms / 1000, at=at)
            for ms, name, tier, at in worst[:WORST]
        ),
    )


def _day(name: str, counts: Mapping[str, Any]) -> DayTraffic:
    tiers = {
        tier: TierTraffic(kernels=counts[tier][0], seconds=counts[tier][1] / 1000)
        for tier in TIERS
        if counts.get(tier, (0,))[0]
    }
    every = sum(each.kernels for each in tiers.values())
    hits = sum(each.kernels for tier, each in tiers.items() if tier in HITS)
    lost = sum(each.seconds for tier, each in tiers.items() if tier in MISSES)
    return DayTraffic(
        date=name, tiers=tiers, hit_rate=round(hits / every, 4) if every else None, lost_s=lost
    )


def _date(number: int) -> date:
    return date(1970, 1, 1) + timedelta(days=min(number, 2_900_000))  # of the year 9910


def _days(text: str | None) -> dict[int, dict[str, Any]]:
    """Return the well-formed counts in `text`, by day: another user may have written it."""
    found: dict[int, dict[str, Any]] = {}
    with suppress(BadDocument, AttributeError):
        document = parse_json((text or "{}").encode("utf-8", "replace"), max_bytes=_MAX_BYTES)
        for day, counts in document.items():
            if day.isdecimal() and len(day) < 8 and isinstance(counts, dict):
                good = {tier: pair for tier, pair in counts.items() if _is_count(tier, pair)}
                rows = counts.get(_WORST)
                if isinstance(rows, list):
                    good[_WORST] = [row for row in rows[:WORST] if _is_miss(row)]
                found[int(day)] = good
    return found


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_count(tier: str, pair: object) -> bool:
    return (
        tier in TIERS
        and isinstance(pair, list)
        and len(pair) == 2
        and all(_is_number(value) for value in pair)
    )


def _is_miss(row: object) -> bool:
    match row:
        case [ms, str(), str(tier), at]:
            return tier in MISSES and _is_number(ms) and _is_number(at)
    return False
