# SPDX-License-Identifier: Apache-2.0
"""The difference of two kernels: config, numbers, key, resources, instructions, source."""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Iterator, Mapping

from jitgen.inspect import code
from jitgen.inspect.kernel import Inspected
from jitgen.support.frozen import frozen

ABSENT = ""
"""The text for a kernel that has no value."""

_CONTEXT = 3


@frozen
class Change:
    """A field in which two kernels differ; `ABSENT` where one of them lacks it."""

    field: str
    one: str
    other: str


@frozen
class Row:
    """
    A line of the difference of two sources.

    Attributes:
        sign: ``-``: only in the first; ``+``: only in the second; a space: in both; ``@``: a gap.
        one, other: Numbers of the line in each source; 0 in a source without it.
        text: The line.
    """

    sign: str
    one: int
    other: int
    text: str


@frozen
class Difference:
    """
    The difference of two kernels.

    Attributes:
        names: Names of the first and the second kernel.
        changes: Fields that differ, by part: config, numbers, key, resources.
        operations: Machine instructions whose counts differ: class, operation, counts.
        source: The difference of the sources, with three lines of context.
    """

    names: tuple[str, str]
    changes: Mapping[str, tuple[Change, ...]]
    operations: tuple[tuple[str, str, int, int], ...]
    source: tuple[Row, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two kernels are equal."""
        return not (any(self.changes.values()) or self.operations or self.source)


def between(one: Inspected, other: Inspected) -> Difference:
    """Return the difference of two kernels."""
    pairs = {
        "config": (one.config, other.config),
        "numbers": (_numbers(one), _numbers(other)),
        "resources": (_resources(one), _resources(other)),
        "key": (one.key_document, other.key_document),
    }
    return Difference(
        names=(one.name, other.name),
        changes={what: tuple(_changes(*sides)) for what, sides in pairs.items()},
        operations=tuple(_operations(one, other)),
        source=tuple(rows(_source(one), _source(other))),
    )


def _numbers(kernel: Inspected) -> dict[str, object]:
    return {number.name: number.value for number in kernel.numbers}


def _resources(kernel: Inspected) -> dict[str, object]:
    found = {} if kernel.resources is None else dataclasses.asdict(kernel.resources)
    if kernel.occupancy is not None:
        found["ctas on an SM"] = kernel.occupancy.ctas
    return found


def _source(kernel: Inspected) -> list[str]:
    listing = kernel.listing(code.PYTHON)
    return [line.text for line in listing.lines] if listing else []


def _changes(one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[Change]:
    left, right = dict(_flat(one)), dict(_flat(other))
    for field in dict.fromkeys((*left, *right)):
        values = left.get(field, ABSENT), right.get(field, ABSENT)
        if values[0] != values[1]:
            yield Change(field=field, one=values[0], other=values[1])


def _flat(document: object, field: str = "") -> Iterator[tuple[str, str]]:
    if not isinstance(document, Mapping):
        yield field, str(document)
        return
    for name, value in document.items():
        yield from _flat(value, f"{field}.{name}" if field else str(name))


def _operations(one: Inspected, other: Inspected) -> Iterator[tuple[str, str, int, int]]:
    counts = [_counts(each) for each in (one, other)]
    found = [
        (code.class_of(name), name, counts[0][name], counts[1][name])
        for name in {*counts[0], *counts[1]}
        if counts[0][name] != counts[1][name]
    ]
    yield from sorted(found, key=lambda row: (-abs(row[2] - row[3]), row[1]))


def _counts(kernel: Inspected) -> Counter[str]:
    listing = kernel.listing(code.SASS)
    return listing.operations if listing else Counter()


def rows(one: list[str], other: list[str]) -> Iterator[Row]:
    """Yield the difference of two texts, with some lines of context."""
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        text = f"lines {first[1] + 1} to {last[2]}, and {first[3] + 1} to {last[4]}"
        yield Row(sign="@", one=0, other=0, text=text)
        for what, a, b, c, d in group:
            if what == "equal":
                for left, right in zip(range(a, b), range(c, d), strict=True):
                    yield Row(sign=" ", one=left + 1, other=right + 1, text=one[left])
                continue
            for left in range(a, b):
                yield Row(sign="-", one=left + 1, other=0, text=one[left])
            for right in range(c, d):
                yield Row(sign="+", one=0, other=right + 1, text=other[right])
