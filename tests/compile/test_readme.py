# SPDX-License-Identifier: Apache-2.0
"""What the README, and the page that goes on from it, show is what happens."""

from __future__ import annotations

import doctest
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.codegen.render import render
from jitgen.config.config import Config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BOTH = README + (ROOT / "docs" / "grouped-gemm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", BOTH, re.DOTALL)
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
        SESSION, {"jitgen": jitgen}, "docs/grouped-gemm.md", None, None
    )
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)

    assert (result.failed, result.attempted) == (0, 3)


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_kernel_that_it_shows_is_the_kernel(page: str) -> None:
    """Line by line; the excerpt is moved to the left as a whole."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = re.search(r"<!-- excerpt: (\w+) -->\n\n```py\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    source = render(*Config.parse(shown[1])).text
    first = shown[2].splitlines()[0]
    indent = next(line for line in source.splitlines() if line.endswith(f" {first}"))

    assert textwrap.indent(shown[2], indent.removesuffix(first)) in source


def test_the_commands_exist() -> None:
    """Every `jitgen ...` line of a console block names a command that answers --help."""
    from click.testing import CliRunner

    from jitgen.cli.main import cli

    lines = re.findall(r"^\$ (?:\w+=\S+ )?jitgen (.*?)(?:#.*)?$", BOTH, re.MULTILINE)
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
