# SPDX-License-Identifier: Apache-2.0
"""The table of findings: it holds every kind that is raised, and the documentation shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen.emulator import findings
from jitgen.emulator.findings import KINDS, Kind, Severity
from jitgen.emulator.report import Finding, Report, Run

HOME = Path(findings.__file__).parent
DOCUMENT = HOME.parents[1] / "docs" / "emulator.md"

KIND_OF = {"warn": -2, "Finding": 0}
"""Position of the kind among the arguments of what makes a finding."""

PASSED_ON = {"kind", "x.kind"}
"""A kind that a function was given; who gave it is seen where it is called."""


def kinds_in(text: str, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the expression of each kind that findings are made of, and where it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            named = [word.value for word in node.keywords if word.arg == "kind"]
            if name in KIND_OF:
                found = ast.unparse(named[0] if named else node.args[KIND_OF[name]])
                yield found, f"{place}:{node.lineno}"


def raised() -> Iterator[tuple[str, str]]:
    for path in sorted(HOME.rglob("*.py")):
        yield from kinds_in(path.read_text("utf-8"), f"{path.relative_to(HOME)}")


def test_every_kind_that_is_raised_is_in_the_table() -> None:
    known = {repr(name) for name in KINDS} | PASSED_ON | {"RESULT"}
    found = list(raised())

    assert len({kind for kind, _ in found}) > 6
    assert [f"{where}: {kind}" for kind, where in found if kind not in known] == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("f.warn(at, 'odd', f'text {1}')", "'odd'"),
        ("warn(fragment, at, 'odd', message)", "'odd'"),
        ("Finding(kind='odd', message='')", "'odd'"),
        ("f.warn(at, ODD, '')", "ODD"),
    ],
)
def test_the_search_sees_how_findings_are_made(text: str, kind: str) -> None:
    assert [found for found, _ in kinds_in(text)] == [kind]


def test_the_documentation_shows_the_table() -> None:
    if not DOCUMENT.exists():
        pytest.skip("the emulator stands alone")
    rows = [f"| `{name}` | {kind.severity} | {kind.meaning} |" for name, kind in KINDS.items()]

    assert "\n".join(rows) + "\n\n" in DOCUMENT.read_text("utf-8")


def test_a_warning_is_shown_and_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "open", Kind(Severity.WARNING, "the ISA does not say"))
    finding, race = Finding(kind="open", message="so"), Finding(kind="race", message="a, b")
    mild, bad = (
        Report(name="k", arch="sm_90a", runs=(Run(mode="eager", seconds=0.0, findings=found),))
        for found in ((finding,), (finding, race))
    )

    assert mild.is_clean
    assert "warning: open: so" in str(mild)
    assert mild.to_json()["runs"][0]["findings"][0]["severity"] == "warning"
    assert not bad.is_clean


def test_an_undeclared_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="odd"):
        str(Finding(kind="odd", message=""))
