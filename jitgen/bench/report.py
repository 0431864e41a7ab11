# SPDX-License-Identifier: Apache-2.0
"""
Reports of suites: results and their conditions, as JSON, in a file, and as tables.

A suite defines the record of its results; `Report` has the common parts of all reports: the file,
the conditions, the failures.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from jitgen.bench.protocol import Record, Row
from jitgen.errors import ConfigError
from jitgen.support.documents import parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

OURS = "jitgen"
"""Name of jitgen's side."""

_MAX_BYTES = 2**26  # of a report; a whole suite with its samples takes one


@frozen
class Table:
    """
    A table for readers.

    Attributes:
        title: Title of the table.
        columns: Titles of the columns.
        rows: Cells of each row.
        texts: Columns of words, which are aligned to the left; empty: only the first column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[str, ...] = ()

    def is_text(self, column: str) -> bool:
        """Return whether the cells of a column are words, not numbers."""
        return column in (self.texts or self.columns[:1])

    def markdown(self, empty: str = "") -> Iterator[str]:
        """
        Yield the title and the lines of the table. Without rows yield the title and `empty`, or
        nothing if that is not given.
        """
        if not self.rows and not empty:
            return
        yield from (f"## {self.title}", "")
        if not self.rows:
            yield from (empty, "")
            return
        for cells in (self.columns, ("---",) * len(self.columns), *self.rows):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
        yield ""


@dataclass(slots=True, kw_only=True)
class Report(Record):
    """
    A run of a suite, which grows while it runs.

    Attributes:
        SUITES: Names of the suites that have this class of report.
        SCHEMA: Name and version of the JSON's form.
        NEEDED: The side whose absence makes a case a failure.
        suite: The suite.
        conditions: The conditions of the figures: device, versions, observed clocks.
        copy_rate: Bytes per second of a copy within the device's memory, reads and writes counted
            together; 0 if it was not measured.
        found: The results, one for each case. Each has a `case`, and in `missing` the reasons of
            sides without a result.
        notes: Caveats of sides, for readers.
    """

    SUITES: ClassVar[tuple[str, ...]] = ()
    SCHEMA: ClassVar[Mapping[str, Any]] = {}
    NEEDED: ClassVar[str] = OURS

    suite: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    copy_rate: float = 0.0
    found: list[Any] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.suite = self.suite or self.SUITES[0]

    @property
    def failures(self) -> list[str]:
        """Results that are missing or wrong although they are required: one line each."""
        return failures(self.found, self.NEEDED)

    def targets(self) -> Iterator[Row]:
        """
        Yield the targets of the suite, each with its figure in the report: none, unless a subclass
        has some.
        """
        yield from ()

    def tables(self) -> Iterator[Table]:
        """Yield the results as tables: none, unless a subclass has some."""
        yield from ()

    def lines(self) -> Iterator[str]:
        """Yield further lines to print below the tables: none, unless a subclass has some."""
        yield from ()

    def remarks(self) -> Iterator[str]:
        """Yield the caveats of the figures."""
        for name, note in self.notes.items():
            yield f"{name}: {note}"

    def summary(self) -> dict[str, Any]:
        """
        Return what a command's JSON contains in addition to the report: the targets with their
        figures.
        """
        return {"targets": [row.to_json() for row in self.targets()]}

    def differs(self, _other: Self) -> str:
        """
        Return a text that says how the cases of this report differ from those of another: empty,
        unless a subclass compares them.
        """
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {"suite": self.suite, **self.SCHEMA, **super(Report, self).to_json()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """
        Return the object from the document that `to_json` returned.

        Raises:
            ConfigError: `document` is not one that `to_json` returned.
        """
        suite = document.get("suite")
        schema = {name: document.get(name) for name in cls.SCHEMA}
        if suite not in cls.SUITES or schema != cls.SCHEMA:
            raise ConfigError(f"it is no report of {' or '.join(cls.SUITES)} of this version")
        try:
            report = cls.decoded(document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ConfigError(f"the report is damaged: {shown(error)}") from None
        report.suite = suite
        return report

    @classmethod
    def decoded(cls, document: Mapping[str, Any]) -> Self:
        """Return the report in `document`, which may be damaged; raises as `Record.from_json`."""
        return super(Report, cls).from_json(document)

    def save(self, path: Path) -> None:
        """
        Write the report to `path` in one step, so that a reader never sees an incomplete file.

        Raises:
            ConfigError: The file cannot be written.
        """
        write(json.dumps(self.to_json(), indent=1) + "\n", path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """
        Return the report that `save`, or the command's ``--json``, wrote to `path`.

        Raises:
            ConfigError: The file cannot be read or is no such report.
        """
        try:
            document = parse_json(read_bounded(path, _MAX_BYTES), max_bytes=_MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} does not hold a report: {error}") from None
        if not isinstance(document, dict):
            raise ConfigError(f"{path} does not hold a report: it is no object")
        try:
            return cls.from_json(document)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def markdown(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the lines of the report in Markdown; `rows` are its targets."""
        device = self.conditions.get("gpu", "a device that is not known")
        yield from (f"# jitgen bench {self.suite}: {device}", "")
        copy_rate = ("copy rate", f"{self.copy_rate * 1e-9:,.0f} GB/s")
        for table in (
            *self.tables(),
            table_of_targets(rows),
            Table(title="sides", columns=("side", "note"), rows=tuple(self.notes.items())),
            Table(
                title="conditions",
                columns=("condition", "value"),
                rows=(*self.conditions.items(), copy_rate),
            ),
        ):
            yield from table.markdown()


def failures(found: Iterable[Any], side: str = OURS) -> list[str]:
    """Return a line for each case without a result of `side`."""
    return [f"{each.case}: {each.missing[side]}" for each in found if side in each.missing]


def table_of_targets(rows: Iterable[Row]) -> Table:
    """Return targets as a table."""
    return Table(
        title="targets",
        columns=("what", "found", "goal", "reached", "detail"),
        rows=tuple(
            (
                row.what,
                f"{row.value:.3f}" + f" {row.unit}" * (row.unit != "x"),
                f"{row.budget}",
                "yes" if row.ok else "no",
                row.detail,
            )
            for row in rows
        ),
    )


def counted_words(found: Iterable[Mapping[str, str]], *without: str) -> Counter[tuple[str, str]]:
    """
    Return, for each side that is not in `without` and each text, the number of cases in which the
    side has this text.
    """
    every = (pair for texts in found for pair in texts.items())
    return Counter(pair for pair in every if pair[0] not in without)


def write(text: str, path: Path) -> None:
    """
    Write `text` to `path` in one step, so that a reader never sees an incomplete file.

    Raises:
        ConfigError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
