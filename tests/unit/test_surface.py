# SPDX-License-Identifier: Apache-2.0
"""The public surface is the accepted one, and CHANGELOG.md tells of every change of it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import documents, surface


@pytest.fixture(scope="module")
def now() -> list[str]:
    if not all(map(find_spec, ("starlette", "cryptography", "zstandard"))):
        pytest.skip("needs jitgen[server]: the service is a part of the surface")
    return surface.surface()


def test_the_surface_is_what_was_accepted(now: list[str]) -> None:
    """If it is not: a line in CHANGELOG.md, and python -m tests.surface accept."""
    accepted = surface.parsed(surface.FILE.read_text(encoding="utf-8"))

    assert surface.changed(accepted.lines, now) == []


def test_the_file_is_written_by_its_command() -> None:
    """An edit by hand would need no line in CHANGELOG.md."""
    accepted = surface.parsed(surface.FILE.read_text(encoding="utf-8"))
    told = surface.entries(documents.text(surface.CHANGELOG))

    assert accepted.digest == surface.digest(accepted.lines)
    assert set(accepted.told) <= set(told)


def test_it_has_every_part(now: list[str]) -> None:
    assert "command jitgen cache ls --json: flag" in now
    assert "json cache ls entries[].key: string" in now
    assert "format store: v1" in now
    assert any(line.startswith("python jitgen.grouped_gemm(a: ") for line in now)
    assert any(line.startswith("python jitgen.MoELayer.from_checkpoint(") for line in now)
    assert any(line.startswith("setting JITGEN_ON_MISS: on_miss, ") for line in now)
    assert any(line.startswith("service GET /v1/entries/{key}: read; 200 ") for line in now)
    assert any(line.startswith("torch jitgen::combine.out(") for line in now)


@pytest.mark.parametrize(
    ("line", "entry", "is_told"),
    [
        ("command jitgen cache ls --age: flag", "`jitgen cache ls --age` lists old ones.", True),
        ("command jitgen cache ls --age: flag", "`jitgen prewarm --bars`", False),
        ("python jitgen.moe(x: Tensor, y: int)", "`jitgen.moe` takes y.", True),
        ("python jitgen.moe(x: Tensor, y: int)", "`route` takes y.", False),
        ("json cache ls entries[].age: number", "`jitgen cache ls --json` says `age`.", True),
        ("format key document: 3", "The key document is 3.", True),
        ("setting JITGEN_X: x, text, none", "`JITGEN_X` is new.", True),
        ("setting JITGEN_X: x, text, none", "jitgen is faster.", False),
    ],
)
def test_an_entry_must_name_the_change(line: str, entry: str, is_told: bool) -> None:
    assert surface.telling(line, ["Something else entirely", entry]) == (entry if is_told else None)


def test_a_change_is_accepted_with_a_new_entry_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that the last accepted surface had already tells of an older change."""
    was, now = ["command jitgen demo"], ["command jitgen demo", "command jitgen demo --loud: flag"]
    old = {"`jitgen demo` prints its times."}
    (tmp_path / "CHANGELOG.md").write_text("- `jitgen demo` prints its\n  times.\n", "utf-8")
    monkeypatch.setattr(surface, "ROOT", tmp_path)
    monkeypatch.setattr(surface, "FILE", tmp_path / "surface.txt")
    monkeypatch.setattr(surface, "surface", lambda: now)
    monkeypatch.setattr(surface, "_before", lambda: (was, old))

    assert surface.accept() == ["command jitgen demo --loud: flag"]
    assert not surface.FILE.exists()

    with (tmp_path / "CHANGELOG.md").open("a", encoding="utf-8") as changelog:
        changelog.write("- `jitgen demo --loud` beeps.\n")

    assert surface.accept() == []
    assert surface.parsed(surface.FILE.read_text(encoding="utf-8")) == surface.Accepted(
        now, surface.digest(now), ["`jitgen demo --loud` beeps."]
    )
