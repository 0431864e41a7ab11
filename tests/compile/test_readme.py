# SPDX-License-Identifier: Apache-2.0
"""What the README shows is what happens."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

import jitgen

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
CALLS = [block for block in BLOCKS if ">>>" not in block]
(SESSION,) = (block for block in BLOCKS if ">>>" in block)


def test_the_calls_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who runs one block after the other gets what the comments state."""
    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    names: dict[str, Any] = {}
    for block in CALLS:
        exec(block, names)  # noqa: S102  # the README is ours
        assert tuple(names["out"].shape) == (384, 512)
        assert names["out"].dtype is names["torch"].bfloat16

    assert len(CALLS) == 4


def test_the_session() -> None:
    """The interactive block prints what it shows."""
    examples = doctest.DocTestParser().get_doctest(
        SESSION, {"jitgen": jitgen}, "README.md", None, None
    )
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)

    assert (result.failed, result.attempted) == (0, 3)


def test_the_commands_exist() -> None:
    """Every `jitgen ...` line of a console block names a command that answers --help."""
    from click.testing import CliRunner

    from jitgen.cli.main import cli

    lines = re.findall(r"^\$ (?:\w+=\S+ )?jitgen (.*?)(?:#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        words = []
        for word in line.split():
            if word.startswith("-") or word.isupper():
                break
            words.append(word)
        result = CliRunner().invoke(cli, [*words[:2], "--help"])

        assert result.exit_code == 0, line


def test_the_links_lead_somewhere() -> None:
    """Every relative link of the documents names a file that is there."""
    root = Path(__file__).parents[2]
    for document in (*root.glob("*.md"), *root.glob("docs/*.md")):
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
