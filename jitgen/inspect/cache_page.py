# SPDX-License-Identifier: Apache-2.0
"""The page of a whole cache."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from jitgen._version import __version__
from jitgen.inspect import plots
from jitgen.inspect.cache_report import CacheReport, Row, State
from jitgen.inspect.document import document
from jitgen.inspect.markup import Markup, joined, table, tag

MOST_ROWS = 4000
"""Largest number of entries on a page, the last used first; they take about 2 MB."""

_KEY_DIGITS = 12
_LAST_SECOND = 253402300799.0  # of the year 9999
_AGES = (
    ("an hour", 3600),
    ("a day", 86_400),
    ("a week", 604_800),
    ("30 days", 2_592_000),
    ("a year", 31_536_000),
)
_TITLES = {
    "entries": "Entries",
    "misses": "What calls do not find",
    "sizes": "Sizes",
    "ages": "Ages",
    "failures": "Failures",
    "quarantine": "Quarantine",
}


def cache_page(report: CacheReport) -> str:
    """Return the page of a cache: HTML in one file."""
    parts = {
        "misses": _misses(report),
        "sizes": _sizes(report),
        "ages": _ages(report),
        "failures": _failures(report),
        "quarantine": _quarantine(report),
        "entries": _entries(report),
    }
    sections = (
        tag("section", tag("h2", _TITLES[name]), part, id=name, aria_label=_TITLES[name])
        for name, part in parts.items()
    )
    links = (tag("a", _TITLES[name], href=f"#{name}") for name in parts)
    return document(
        "Kernel cache - jitgen",
        tag("a", "To the entries", href="#entries", class_="skip"),
        _header(report),
        tag("nav", *links, aria_label="Sections"),
        tag("main", tag("section", _cards(report)), *sections),
        tag("footer", f"Made by jitgen {__version__}. This file needs nothing else."),
    )


def _header(report: CacheReport) -> Markup:
    where = f"{_when(report.made)}, mode {report.mode}"
    if report.bases:
        where += f"; and, only read: {', '.join(report.bases)}"
    return tag("header", tag("h1", report.root), tag("p", where))


def _cards(report: CacheReport) -> Markup:
    stats, states = report.stats, report.states
    limit = f" of {_size(stats.limit_bytes)}" if stats.limit_bytes else ""
    values = [
        ("entries", f"{len(report.rows):,}"),
        ("that calls find", f"{states[State.FOUND]:,}"),
        ("on disk" + limit, _size(stats.disk_bytes)),
        ("loads from disk", f"{stats.hits:,}"),
        ("remembered failures", f"{stats.failures:,}"),
        ("in quarantine", f"{stats.quarantined:,}"),
        ("pinned", f"{stats.pinned:,}"),
        ("problems measured", f"{stats.tuned:,}"),
    ]
    return tag(
        "ul",
        *(tag("li", tag("b", value), tag("span", name)) for name, value in values),
        class_="cards",
    )


def _misses(report: CacheReport) -> Markup:
    reasons = report.reasons
    if not reasons:
        return tag("p", "Calls find every entry.", class_="note")
    unused = sum(
        row.info.disk_bytes for row in report.rows if row.state not in (State.FOUND, State.UNKNOWN)
    )
    words = f"Entries that calls of this installation do not find take {_size(unused)}."
    rows = [(count, reason) for reason, count in reasons.most_common()]
    return joined((tag("p", words), table(("entries", "why"), rows, [0])))


def _sizes(report: CacheReport) -> Markup:
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        found.setdefault(row.info.arch or "damaged", []).append(row)
    bars = [
        (
            f"{arch} ({len(rows):,})",
            sum(row.info.disk_bytes for row in rows) // 1024,
            f"{len(rows):,} entries",
        )
        for arch, rows in sorted(found.items())
    ]
    if not bars:
        return _none()
    return joined(
        (
            tag("p", "KiB on the disk by target, with the number of entries.", class_="note"),
            plots.bars("KiB on the disk by target", bars),
        )
    )


def _ages(report: CacheReport) -> Markup:
    counts = [0] * (len(_AGES) + 1)
    for row in report.rows:
        age = report.made - row.info.last_use
        counts[next((at for at, (_, s) in enumerate(_AGES) if age < s), len(_AGES))] += 1
    names = [*(f"within {name}" for name, _ in _AGES), "longer ago"]
    bars = [(name, n, f"{n:,} entries") for name, n in zip(names, counts, strict=True)]
    if not report.rows:
        return _none()
    return joined(
        (
            tag("p", "Entries by when they were last used.", class_="note"),
            plots.bars("Entries by when they were last used", bars),
        )
    )


def _failures(report: CacheReport) -> Markup:
    if not report.failures:
        return _none()
    rows = [
        (_key(key), _name(failure.name), _when(failure.expires), failure.reason)
        for key, failure in report.failures
    ]
    return table(("key", "kernel", "tried again from", "why it did not compile"), rows)


def _quarantine(report: CacheReport) -> Markup:
    if not report.damages:
        return _none()
    rows = [
        (
            _key(damage.key),
            _name(damage.name),
            "" if damage.set_aside is None else _when(damage.set_aside),
            damage.reason,
        )
        for damage in report.damages
    ]
    return table(("key", "kernel", "set aside", "what is wrong"), rows)


def _entries(report: CacheReport) -> Markup:
    rows = [tuple(_cells(row)) for row in report.rows[:MOST_ROWS]]
    rest = len(report.rows) - len(rows)
    heads = ("key", "kernel", "bytes", "loads", "last used", "compiled", "in", "calls", "where")
    tools = tag(
        "div",
        tag(
            "label",
            tag("span", "Filter ", class_="note"),
            tag("input", type="search", class_="filter", data_filters="rows", autocomplete="off"),
        ),
        tag("output", aria_live="polite"),
        class_="tools",
    )
    parts: list[object] = [tools, table(heads, rows, [2, 3, 6], id="rows")]
    if rest > 0:
        parts.append(tag("p", f"{rest:,} more, which were used longer ago, are not shown."))
    return joined(parts)


def _cells(row: Row) -> Iterator[object]:
    info = row.info
    yield _key(info.key)
    yield _name(info.name or "(damaged)")
    yield f"{info.size_bytes:,}"
    yield f"{info.hits:,}"
    yield _when(info.last_use)
    yield row.created
    yield f"{row.compile_s:.1f} s" if row.created else ""
    yield tag("span", row.state, class_="good" if row.state is State.FOUND else None)
    yield info.base or ("pinned" if info.is_pinned else "")


def _none() -> Markup:
    return tag("p", "None.", class_="note")


def _key(key: str) -> Markup:
    return tag("span", key[:_KEY_DIGITS], class_="name")


def _name(name: str) -> Markup:
    return tag("span", name, class_="name")


def _size(num_bytes: int) -> str:
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _when(seconds: float) -> str:
    """Return a time as text, in UTC; a time that `datetime` cannot represent is bounded."""
    bounded = min(max(seconds, 0.0), _LAST_SECOND)
    return datetime.fromtimestamp(bounded, UTC).isoformat(sep=" ", timespec="minutes")[:16]
