# SPDX-License-Identifier: Apache-2.0
"""The output object: tables, documents, sizes, progress."""

from __future__ import annotations

import io
import json

import pytest

from jitgen.cli.output import Column, Output, counted, human_size, human_time


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def plain(*, is_json: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Output(is_json=is_json, stdout=out, stderr=err), out, err


def test_plain_table_is_aligned_and_has_no_trailing_blanks() -> None:
    output, out, _ = plain()
    output.table(
        [Column("NAME"), Column("SIZE", is_number=True), Column("WHY")],
        [("a", "10", ""), ("longer", "9", "x")],
    )

    assert out.getvalue() == "NAME    SIZE  WHY\na         10\nlonger     9  x\n"


def test_table_refuses_a_row_that_does_not_fit_its_headings() -> None:
    output, _, _ = plain()

    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        output.table([Column("ONE")], [("a", "b")])


def test_json_prints_one_document_and_no_human_text() -> None:
    output, out, err = plain(is_json=True)
    output.note("talk")
    output.result("cache stats", {"entries": 3}, lambda: output.line("human"))

    assert json.loads(out.getvalue()) == {"schema": 1, "command": "cache stats", "entries": 3}
    assert err.getvalue() == "talk\n"


def test_json_of_names_that_are_no_utf8() -> None:
    output, out, _ = plain(is_json=True)
    output.result("tune", {"device": "\ud800 \u00e9"}, output.line)

    assert json.loads(out.getvalue().encode("utf-8"))["device"] == "\ud800 \u00e9"


def test_sizes_are_bytes_unless_people_read_them() -> None:
    assert plain()[0].size(69222) == "69222"
    assert Output(is_json=False, stdout=Terminal(), stderr=Terminal()).size(69222) == "67.6 KiB"


def test_terminal_table_keeps_names_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    name = "x" * 70
    Output(is_json=False, stdout=out, stderr=Terminal()).table(
        [Column("NAME"), Column("REASON", is_prose=True)], [(name, "[bold]" + " word" * 20)]
    )

    assert name in out.getvalue()
    assert "[bold]" in out.getvalue()  # cells are never read as markup
    assert "\x1b[3" not in out.getvalue()  # and NO_COLOR is obeyed


def test_dumb_terminals_get_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")

    assert not Output(is_json=False, stdout=Terminal()).is_terminal


def test_plain_progress_tells_what_is_news() -> None:
    output, out, err = plain()
    with output.progress(3, "compiling") as progress:
        progress.advance("first")
        progress.advance()
        progress.note("failed: second")
        progress.advance("third")

    assert err.getvalue() == "[1/3] first\nfailed: second\n[3/3] third\n"
    assert out.getvalue() == ""


def test_terminal_progress_keeps_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    output = Output(is_json=False, stdout=Terminal(), stderr=err)
    with output.progress(1, "compiling") as progress:
        progress.note("failed: x")
        progress.advance("x" * 500)

    assert "failed: x" in err.getvalue()
    assert "1/1" in err.getvalue()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**30, "3.0 GiB"), (2**41, "2.0 TiB")],
)
def test_human_size(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.12e-5, "31.2 us"), (6.2e-4, "620.0 us"), (0.5, "500.00 ms"), (2, "2.00 s")],
)
def test_human_time(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


def test_counted() -> None:
    assert counted(1, "entry", "entries") == "1 entry"
    assert counted(10_000, "entry", "entries") == "10,000 entries"
    assert counted(0, "kernel") == "0 kernels"
