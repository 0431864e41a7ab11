# SPDX-License-Identifier: Apache-2.0
"""What docs/inspect.md shows is what happens: its commands make pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from jitgen.cli import main
from jitgen.compile import inspect
from jitgen.inspect.page import _TITLES
from tests import needs
from tests.inspect_pages import Page

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs jitgen[inspect]"),
]

TEXT = (Path(__file__).parents[2] / "docs" / "inspect.md").read_text(encoding="utf-8")
LINES = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.strip().splitlines()
]
COMMANDS = [shlex.split(line)[1:] for line in LINES if line.startswith("jitgen ")]


def test_every_section_is_described() -> None:
    for title in (*_TITLES.values(), "Difference"):
        assert f"| {title} |" in TEXT


@pytest.mark.nightly  # ten seconds each; on every push test_inspect_command.py makes a page of two
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_commands_make_pages(
    words: list[str], shared_cache: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main.run(words) == 0
    (made,) = tmp_path.glob("*.html")
    Page(made.read_text(encoding="utf-8")).check()
