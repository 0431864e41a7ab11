# SPDX-License-Identifier: Apache-2.0
"""What prose names is there: files, modules, what they hold, and the folders of CONTRIBUTING.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.support.moved import MOVED, NAMES

from .test_layers import LEVEL

ROOT = Path(__file__).parents[2]

_KINDS = {".md", ".py", ".jinja", ".toml", ".yaml", ""}
_FOLDERS = ("docs", "jitgen", "cache", "templates", "tests", "examples", ".ci")
_APART = {"goldens", "__pycache__", "cache", "templates"}
"""Parts of paths that are not looked into: of `jitgen`, the two links."""

_PATH = re.compile(
    r"(?<![\w/.$-])(?:jitgen|cache|templates|tests|docs|examples)/[\w./-]+\.(?:py|md|jinja|sh)\b"
)
_NAME = re.compile(r"`(jitgen(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
_STANDS_FOR = re.compile(r"[/._][A-Z]{3,}\b|\.\.\.")
"""In what stands for others, as ``jitgen/ops/NAME/__init__.py`` does."""

_OTHERS = {
    *("jitgen.prepared", "jitgen.none"),
    *MOVED,
    *(f"{module}.{old}" for module, names in NAMES.items() for old in names),
}
"""A field in files of weights, what a test of links wants to be missing, and old names."""


@cache
def prose() -> list[tuple[str, str]]:
    """Return the files that people read, by their paths: all but what is generated."""
    found = [*ROOT.glob("*.md")]
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            inner = path.relative_to(ROOT).parts[1:]
            if path.suffix in _KINDS and not _APART & {*inner} and path.is_file():
                found.append(path)
    return [(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in found]


def test_there_is_much_of_it() -> None:
    assert sum(len(_PATH.findall(text)) for _, text in prose()) > 200
    assert sum(len(_NAME.findall(text)) for _, text in prose()) > 400


def test_every_file_that_is_named_is_there() -> None:
    wrong = {
        f"{name}: {path}"
        for name, text in prose()
        for path in _PATH.findall(text)
        if not _STANDS_FOR.search(path) and not _is_file(path, name)
    }

    assert wrong == set()


def _is_file(path: str, name: str) -> bool:
    beside = (ROOT / name).parent
    return any((folder / path).exists() for folder in (ROOT, ROOT / "jitgen", beside))


def test_every_name_in_backticks_is_there() -> None:
    """A module, or what a module, a class or an object of the facade has."""
    every = {found: name for name, text in prose() for found in _NAME.findall(text)}
    wrong = {f"{place}: {name}" for name, place in every.items() if not _is_there(name)}

    assert wrong == set()


def _is_there(name: str) -> bool:
    return name in _OTHERS or bool(_STANDS_FOR.search(name)) or any(map(_has, _held(name)))


def _held(name: str) -> Iterator[tuple[Any, list[str]]]:
    """Yield what may have the last parts of a name: its innermost module, and the facade."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            yield import_module(".".join(parts[:length])), parts[length:]
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("jitgen"):
                pytest.skip(f"{error.name} is not installed")
            continue
        break
    yield jitgen, parts[1:]


def _has(held: tuple[Any, list[str]]) -> bool:
    thing, parts = held
    for part in parts:
        if part in getattr(thing, "__annotations__", {}):
            return True
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def test_the_folders_of_contributing_are_those_of_the_code() -> None:
    """Bottom first, as `LAYERS` has them; the page named folders that were gone."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rule = re.search(r"- Imports point one way: (.*?)\. Tests check it", text, re.DOTALL)
    assert rule is not None
    floors = [re.findall(r"`([\w.]+)`", floor) for floor in rule[1].split(";")]
    names = [name for floor in floors for name in floor]

    folders = {path.name for path in (ROOT / "jitgen").iterdir() if (path / "__init__.py").exists()}
    assert {name.split(".")[0] for name in names} >= folders
    assert len(names) == len({*names})
    assert [name for name in names if name not in LEVEL] == []
    for floor in floors:
        assert len({LEVEL[name] for name in floor}) == 1, floor
    for lower, higher in pairwise(floors):
        assert LEVEL[lower[0]] < LEVEL[higher[0]], (lower, higher)


def test_the_folders_of_the_design_are_those_of_the_code() -> None:
    """docs/design.md lists every folder once, and each above those that it may be imported by."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## The folders")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]

    assert sorted(names) == sorted(LEVEL.keys() - {"_version"})
    assert [LEVEL[name] for name in names] == sorted(LEVEL[name] for name in names)
