# SPDX-License-Identifier: Apache-2.0
"""
The cases of the suites of grouped GEMMs: the products of mixture-of-experts layers.

The cases of each suite are in a JSON file beside this one, called after the suite. A file of the
same form can be given instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from jitgen.support.documents import parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

T = TypeVar("T")


def file_of(suite: str) -> Path:
    """Return the file with the cases of a suite."""
    return Path(__file__).with_name(f"{suite}.json")


PUBLIC, KNEE = file_of("hopper"), file_of("knee")

MATRICES = UP, DOWN = ((4096, 7168), (7168, 2048))
"""N and K of the two projections of an expert of DeepSeek-V3."""

_HEADER = {"dtype": "e4m3", "scale_granularity": "block128", "out_dtype": "bf16"}
_SEED, _MOST_ZIPF = 0, 4


@frozen
class Case:
    """
    Sizes of one measurement: FP8 operands, block128 scales, bfloat16 results.

    Attributes:
        layout: How rows belong to groups.
        groups: Number of groups.
        rows_per_group: Rows of each group, or their mean.
        n: Columns of the output.
        k: Length of the sums.
        max_rows: Rows that a has for each group of the masked layout; None for the others.
        spread: How unequal groups are: each has from 1 - spread to 1 + spread times the mean.
        zipf: How unequal groups are instead: the r-th largest has rows in proportion to r ** -zipf.
    """

    layout: Layout
    groups: int
    rows_per_group: int
    n: int
    k: int
    max_rows: int | None = None
    spread: float = 0.0
    zipf: float = 0.0

    def __post_init__(self) -> None:
        if min(self.groups, self.rows_per_group, self.n, self.k) < 1:
            raise ConfigError(f"groups, rows_per_group, n and k must be at least 1 (got {self})")
        if not 0 <= self.spread <= 1:
            raise ConfigError(f"spread must be from 0 to 1 (got {self.spread})")
        if not 0 <= self.zipf <= _MOST_ZIPF:
            raise ConfigError(f"zipf must be from 0 to {_MOST_ZIPF} (got {self.zipf})")
        if self.spread and self.zipf:
            raise ConfigError("a case has a spread or a zipf, not both: leave one out")
        if (self.max_rows is not None) != (self.layout is Layout.MASKED):
            raise ConfigError(
                f"max_rows is for the masked layout, which needs it (got {self.max_rows} for "
                f"{self.layout})"
            )
        if self.max_rows is not None and max(self.row_counts) > self.max_rows:
            raise ConfigError(
                f"max_rows must be at least {max(self.row_counts)}, which the largest group has "
                f"(got {self.max_rows})"
            )

    @classmethod
    def from_json(cls, document: object) -> Case:
        """
        Return the case that `document`, a JSON object, describes.

        Raises:
            ConfigError: A field is missing, unknown, or has a value that it may not have.
        """
        known = sorted(field.name for field in fields(cls))
        needed = ("layout", "groups", "rows_per_group", "n", "k")
        values = fields_of(document, "a case", known, needed)
        for name in {*known} - {"layout", "spread", "zipf"}:
            if name in values and (name, values[name]) != ("max_rows", None):
                _require(values[name], name, int)
        for name in ("spread", "zipf"):
            _require(values.get(name, 0), name, int, float)
        if values["layout"] not in [*Layout]:
            raise ConfigError(f"layout must be {', '.join(Layout)} (got {shown(values['layout'])})")
        return cls(**{**values, "layout": Layout(values["layout"])})

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def problem(self) -> GroupedGemmProblem:
        """The case as a problem: sizes and types, from which operands are made."""
        return GroupedGemmProblem(
            layout=self.layout,
            groups=self.groups,
            m=self.groups * self.rows_per_group,
            n=self.n,
            k=self.k,
        )

    @property
    def row_counts(self) -> tuple[int, ...]:
        """
        Rows of each group: by `zipf_counts` if `zipf` is above 0, else by the function
        `row_counts`.
        """
        if self.zipf:
            return zipf_counts(self.groups, self.rows_per_group, self.zipf)
        return row_counts(self.groups, self.rows_per_group, self.spread)

    def __str__(self) -> str:
        """Return the case as tables show it: ``masked 32 x 8 N4096 K7168 +-30%``."""
        uneven = f" +-{self.spread:.0%}" if self.spread else ""
        uneven += f" Zipf {self.zipf:g}" if self.zipf else ""
        return f"{self.layout} {self.groups} x {self.rows_per_group} N{self.n} K{self.k}{uneven}"


ONE_TOKEN = tuple(
    Case(layout=Layout.RAGGED, groups=groups, rows_per_group=1, n=n, k=k)
    for n, k in MATRICES
    for groups in (1, 8)
)
"""One row for each group: the time is that of reading the weights."""


def load(path: Path = PUBLIC, make: Callable[[object], Any] = Case.from_json) -> tuple[Any, ...]:
    """
    Return the cases of a file in the order in which it lists them.

    Args:
        path: The file.
        make: Makes a case of a JSON value; may raise a ConfigError.

    Raises:
        ConfigError: The file cannot be read, or does not hold cases of FP8 operands with block128
            scales and bfloat16 results.
    """
    try:
        document = parse_json(read_bounded(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} does not hold cases: {error}") from None
    if not isinstance(document, Mapping) or not isinstance(document.get("cases"), list):
        raise ConfigError(f"{path} does not hold cases: it needs an object with a list 'cases'")
    for name, value in _HEADER.items():
        if document.get(name, value) != value:
            raise ConfigError(f"{path}: {name} must be {value!r} (got {shown(document[name])})")
    try:
        return tuple(make(case) for case in document["cases"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def only(steps: Iterable[T], texts: Sequence[str], word: str = "case") -> list[T]:
    """
    Return the steps whose name has every one of `texts`.

    Raises:
        ConfigError: No step has them all; the message calls a step `word`.
    """
    found = [step for step in steps if all(text in str(step) for text in texts)]
    if not found and not texts:
        raise ConfigError(f"there is no {word} to measure")
    if not found:
        raise ConfigError(f"no {word} has {' and '.join(map(repr, texts))} in its name")
    return found


def row_counts(groups: int, mean: int, spread: float) -> tuple[int, ...]:
    """
    Return the rows of each group, drawn uniformly if `spread` is above 0. Equal arguments give
    equal rows.
    """
    if not spread:
        return (mean,) * groups
    chance = random.Random(_SEED)  # sizes, not secrets
    low, high = ((1 + sign * spread) * mean for sign in (-1, 1))
    return tuple(round(chance.uniform(low, high)) for _ in range(groups))


def zipf_counts(groups: int, mean: int, exponent: float) -> tuple[int, ...]:
    """
    Return the rows of each group, always the same, ``groups * mean`` in all.

    The r-th largest has rows in proportion to ``r ** -exponent``; which group that is was drawn.
    """
    weights = [rank**-exponent for rank in range(1, groups + 1)]
    random.Random(_SEED).shuffle(weights)  # sizes, not secrets
    sums = list(accumulate(weights))
    ends = [round(groups * mean * each / sums[-1]) for each in sums]
    return tuple(end - start for start, end in pairwise((0, *ends)))


def fields_of(
    document: object, what: str, known: Sequence[str], needed: Sequence[str]
) -> dict[str, Any]:
    """
    Return the fields of a JSON object.

    Raises:
        ConfigError: `document` is no JSON object, has a field that is not in `known`, or lacks one
            of `needed`; the message calls the document `what`.
    """
    if not isinstance(document, dict):
        raise ConfigError(f"{what} must be an object (got {shown(document)})")
    if unknown := sorted(document.keys() - set(known)):
        raise ConfigError(
            f"{what} has no field {shown(unknown[0])}; it may have {', '.join(known)}"
        )
    if missing := [name for name in needed if name not in document]:
        raise ConfigError(f"{what} needs {missing[0]!r} (got {shown(document)})")
    return dict(document)


def _require(value: object, name: str, *types: type) -> None:
    if type(value) not in types:
        words = " or ".join(each.__name__ for each in types)
        raise ConfigError(f"{name} must be of type {words} (got {shown(value)})")
