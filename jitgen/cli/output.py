# SPDX-License-Identifier: Apache-2.0
"""
The output of all commands: tables, JSON documents, notes and progress.

Standard output is data: a table for people, or with ``--json`` exactly one document. Standard error
has notes, warnings and progress. Sizes are rounded on a terminal, and plain bytes everywhere else,
so that scripts get exact numbers. Colours appear only on a terminal, and never if NO_COLOR is set;
rich is imported only if there is a terminal. Characters that are not printable are escaped, because
names and reasons come from files that others may have written.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Protocol

from jitgen.support.codec import to_json
from jitgen.support.text import json_safe, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.text import Text

SCHEMA = 1
"""Version of every JSON document; it grows when a field changes its meaning."""


_BAR = 24  # columns of a progress bar
_PROSE = 32  # columns that wrapped text gets at least


class ExitCode(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WOULD_COMPILE = 3


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table.

    Attributes:
        title: Its heading.
        is_number: Whether it is aligned to the right.
        is_prose: Whether its cells may be wrapped; names are not wrapped, so that they can be
            copied.
    """

    title: str
    is_number: bool = False
    is_prose: bool = False

    @classmethod
    def of(cls, heading: str) -> Column:
        """Return the column for a heading, which ``>`` marks as numbers, and ``~`` as prose."""
        return cls(heading.lstrip(">~"), heading[0] == ">", heading[0] == "~")


class Progress(Protocol):
    """Progress of long work, as a command reports it."""

    def advance(self, text: str = "") -> None:
        """Count one more finished item; `text`, if any, is shown for it."""

    def note(self, text: str) -> None:
        """Print a line that stays above the bar, for example a failure."""


class Output:
    """
    Standard output and standard error of one command.

    Attributes:
        is_json: Whether standard output gets exactly one JSON document.
        is_terminal: Whether standard output is a terminal.
        has_document: Whether the JSON document was printed already.
    """

    def __init__(
        self, *, is_json: bool, stdout: IO[str] | None = None, stderr: IO[str] | None = None
    ) -> None:
        self.is_json = is_json
        self.has_document = False
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self.is_terminal = not is_json and _is_terminal(self._stdout)
        self._consoles: dict[int, Console] = {}

    # data

    def result(
        self, command: str, document: dict[str, object], human: Callable[[], object]
    ) -> None:
        """
        Print the result of `command`: `document` with ``--json``; otherwise `human` prints it.

        The document gets the fields ``schema`` and ``command``.
        """
        if not self.is_json:
            human()
            return
        self.has_document = True
        content = {"schema": SCHEMA, "command": command, **document}
        is_utf8 = codecs.lookup(getattr(self._stdout, "encoding", None) or "utf-8").name == "utf-8"
        text = json.dumps(content, indent=2, ensure_ascii=not is_utf8)
        # Half a surrogate pair, which names from outside may hold, is no UTF-8 and not printable.
        self._stdout.write(json_safe(text) + "\n")

    def report(self, command: str, document: object, human: Callable[[], object]) -> None:
        """Print the result of `command` as `result` does; `document` is a dataclass."""
        self.result(command, to_json(document), human)

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print one line of data; `style` is a rich style, used on a terminal only."""
        _print(self._stdout, self._console(self._stdout), text, style)

    def text(self, text: str) -> None:
        """Print a source, PTX or SASS unchanged; on a terminal, control characters are escaped."""
        shown = printable(text, keep="\n\t") if self.is_terminal else text
        self._stdout.write(shown if shown.endswith("\n") else shown + "\n")

    def fields(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values in two columns."""
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.line(f"{name:<{width}}  {value}".rstrip())

    def table(self, headings: Sequence[Column | str], rows: Sequence[Sequence[str]]) -> None:
        """
        Print a table; every row has one cell for each column.

        A heading may be a text, which begins with ``>`` for a column of numbers, and with ``~`` for
        one of prose.
        """
        columns = [each if isinstance(each, Column) else Column.of(each) for each in headings]
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"a row has {len(row)} cells for {len(columns)} columns: {row}")
        rows = [[printable(cell) for cell in row] for row in rows]
        console = self._console(self._stdout)
        if console is not None:
            _fancy_table(console, columns, rows)
            return
        widths = [
            max(len(column.title), *(len(row[index]) for row in rows), 0)
            for index, column in enumerate(columns)
        ]
        for cells in ([column.title for column in columns], *rows):
            padded = (
                cell.rjust(width) if column.is_number else cell.ljust(width)
                for cell, width, column in zip(cells, widths, columns, strict=True)
            )
            self._stdout.write("  ".join(padded).rstrip() + "\n")

    def size(self, num_bytes: int) -> str:
        """Return a size: ``67.6 KiB`` on a terminal, plain bytes elsewhere."""
        return human_size(num_bytes) if self.is_terminal else str(num_bytes)

    # talk

    def note(self, text: str) -> None:
        """Print a line on standard error."""
        _print(self._stderr, self._console(self._stderr), text, "")

    def warn(self, text: str) -> None:
        """Print a warning on standard error."""
        _print(self._stderr, self._console(self._stderr), f"warning: {text}", "yellow")

    def error(self, kind: str, text: str) -> None:
        """Print an error in one line; with ``--json`` also as document, if none was printed yet."""
        _print(
            self._stderr,
            self._console(self._stderr),
            f"error: {' '.join(text.split())}",
            "bold red",
        )
        if self.is_json and not self.has_document:
            self.result("error", {"error": {"type": kind, "message": text}}, lambda: None)

    @contextmanager
    def progress(self, total: int, title: str) -> Iterator[Progress]:
        """
        Show the progress of long work: a bar on a terminal, otherwise a line for each item with a
        text.
        """
        console = self._console(self._stderr)
        if console is None:
            yield _PlainProgress(self, total)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(_BAR),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim", markup=False),
        )
        with Bar(*columns, console=console, transient=True) as bar:
            room = console.width - _BAR - len(title) - 24
            yield _FancyProgress(self, bar, bar.add_task(title, total=total, text=""), room)

    def _console(self, stream: IO[str]) -> Console | None:
        """Return a rich console of `stream`; None if it is no terminal, or carries JSON."""
        if self.is_json and stream is self._stdout:
            return None
        if not _is_terminal(stream):
            return None
        if id(stream) not in self._consoles:
            from rich.console import Console

            self._consoles[id(stream)] = Console(file=stream, highlight=False)
        return self._consoles[id(stream)]


class _PlainProgress:
    """Progress for logs: one line for each item that has a text."""

    def __init__(self, output: Output, total: int) -> None:
        self._output = output
        self._total = total
        self._done = 0

    def advance(self, text: str = "") -> None:
        self._done += 1
        if text:
            self._output.note(f"[{self._done}/{self._total}] {text}")

    def note(self, text: str) -> None:
        self._output.note(text)


class _FancyProgress:
    """Progress on a terminal: a bar, followed by the last item."""

    def __init__(self, output: Output, bar: Bar, task: TaskID, room: int) -> None:
        self._output = output
        self._bar = bar
        self._task = task
        self._room = room

    def advance(self, text: str = "") -> None:
        self._bar.update(self._task, advance=1, text=printable(text)[: max(0, self._room)])

    def note(self, text: str) -> None:
        self._output.note(text)


def human_size(num_bytes: int) -> str:
    """Return a size in a unit of its magnitude: ``512 B``, ``1.4 GiB``."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_time(seconds: float) -> str:
    """Return a time in a unit of its magnitude: ``31.2 us``, ``0.62 ms``, ``2.31 s``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 entry``, ``3 entries``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _is_terminal(stream: IO[str]) -> bool:
    if os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def _print(stream: IO[str], console: Console | None, text: str, style: str) -> None:
    text = printable(text)
    if console is None:
        stream.write(text + "\n")
    else:
        console.print(text, style=style or None, markup=False, soft_wrap=True)


def _fancy_table(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> None:
    """Print a table with rich, as wide as its unbroken columns need: names stay whole."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.is_prose,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(_plain, row))
    needed = sum(
        _PROSE
        if column.is_prose
        else 2 + max(len(column.title), *(len(row[index]) for row in rows), 0)
        for index, column in enumerate(columns)
    )
    width = console.width
    console.width = max(width, needed)
    try:
        console.print(table)
    finally:
        console.width = width


def _plain(cell: str) -> Text:
    """Return a cell in which rich finds no markup."""
    from rich.text import Text

    return Text(cell)
