# SPDX-License-Identifier: Apache-2.0
"""Every command line in the documentation names commands and options that there are."""

from __future__ import annotations

import argparse
import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.site.commands import commands
from jitgen.settings import settings
from tests import documents

PAGES = documents.pages()
LINES = [(page, line) for page in PAGES for line in documents.command_lines(page)]


@pytest.mark.parametrize("page", PAGES)
def test_they_parse(page: str) -> None:
    wrong = [
        f"jitgen {line}: {mistake}"
        for line in documents.command_lines(page)
        if (mistake := documents.mistake(line))
    ]

    assert wrong == []


SET = re.compile(r"\b(JITGEN_[A-Z_]+)=(\S+)")


def test_settings_have_values_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pages set JITGEN_TRUST or JITGEN_CACHE_DIR to a relative path, which is refused."""
    lines = [line for page in PAGES for line in documents.copied_lines(page)]
    found = {pair for line in lines for pair in SET.findall(line)}
    assert len(found) > 10
    for name, value in found:
        if value == "..." or name.startswith("JITGEN_GPU_"):  # of the tests on a GPU alone
            continue
        with monkeypatch.context() as patch:
            patch.setenv(name, value.replace("$PWD", "/home/reader"))
            settings.check_environment()


@pytest.mark.parametrize(
    ("page", "command", "extra"),
    [
        ("docs/tutorial-serving.md", "jitgen bundle", "remote"),
        ("docs/bundles.md", "jitgen bundle", "remote"),
        ("docs/bundles.md", "jitgen bundle", "signing"),
        ("docs/signing.md", "jitgen trust", "signing"),
        ("docs/signing.md", "jitgen cache push", "remote"),
        ("docs/service.md", "jitgen token", "server"),
    ],
)
def test_extras_are_installed_before_their_commands(page: str, command: str, extra: str) -> None:
    """The tutorial installed none, and its last commands failed."""
    before, found, _ = documents.text(page).partition(f"{command} ")

    assert found
    assert re.search(rf"pip install .*\[[\w,]*\b{extra}\b[\w,]*\]", before)


def test_they_are_found() -> None:
    """In blocks of consoles, in indented blocks, in sentences, behind variables and in chains."""
    found = {page: list(documents.command_lines(page)) for page in PAGES}

    assert len(LINES) > 250
    assert "demo" in found["README.md"]
    assert "prewarm deepseek-v3 --arch sm_90a" in found["docs/containers.md"]
    assert any(line.startswith("show $NAME") for line in found["docs/kernel-engineer.md"])
    assert any("--scales mx32" in line for line in found["docs/mxfp4.md"]), "continued lines"
    assert {"doctor", "cache explain NAME"} <= {
        line.strip() for line in found["docs/troubleshooting.md"]
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("shwo NAME", "no command shwo"),
        ("show NAME --sauce", "--sauce"),
        ("cache lst", "jitgen cache has no command lst"),
        ("prewarm plan --arch --check extra --jobs", ""),
        ("tune --space -g 8 --within 1.5 --budgets 3", "--budgets"),
    ],
)
def test_mistakes_are_seen(line: str, says: str) -> None:
    assert says in documents.mistake(line)
    assert bool(documents.mistake(line)) == bool(says)


def test_every_command_with_json_is_described() -> None:
    """docs/json.md has a row for each command that takes --json: all of them do."""
    rows = re.findall(r"^\| (`[^|]*`) \|", documents.text("docs/json.md"), re.MULTILINE)
    words = set()
    for row in rows:  # `cache dir`, `ls`, `stats`: the first word holds for those that follow
        first, *others = (cell.split(" --")[0] for cell in re.findall(r"`([^`]*)`", row))
        words |= {first, *others, *(f"{first.split()[0]} {other}" for other in others)}
    for path, command in commands():
        takes = any("--json" in option.opts for option in command.params)
        whole = " ".join(path)

        assert takes, f"jitgen {whole} does not take --json"
        assert whole in words or (path[0] == "bench" and "bench" in words), (
            f"docs/json.md says nothing of {whole}"
        )


class _Taken(Exception):
    """The words of a command line were parsed."""


OF_A_CHECKOUT = sorted(
    {
        (module, " ".join(words.split()))
        for page in PAGES
        for module, words in re.findall(
            r"(?:`|^    |^\$ )python -m (tests\.[\w.]+) +(\w[^#\n&;|`]*|-[^#\n&;|`]*)",
            documents.text(page),
            re.MULTILINE,
        )
    }
)


def test_programs_of_a_checkout_are_found() -> None:
    assert ("tests.ptx", "check ~/before.json") in OF_A_CHECKOUT
    assert len(OF_A_CHECKOUT) > 10


@pytest.mark.parametrize(("module", "words"), OF_A_CHECKOUT)
def test_programs_of_a_checkout_take_their_words(
    module: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page used to name `python -m tests.ptx check` without the file that it needs."""
    found = importlib.util.find_spec(module)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{module}.__main__")
    assert found is not None, f"there is no {module}"
    assert found.origin is not None
    if "parse_args(" not in Path(found.origin).read_text(encoding="utf-8"):
        return
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise _Taken

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    numbers = re.sub(r"\b[A-Z]\b", "1", words).replace("KIND", "values")
    numbers = numbers.replace("ARCH", "sm_90a")
    monkeypatch.delitem(sys.modules, found.name, raising=False)  # else runpy warns
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(numbers)])
    with pytest.raises(_Taken):
        runpy.run_module(found.name, run_name="__main__")
