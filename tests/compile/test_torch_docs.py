# SPDX-License-Identifier: Apache-2.0
"""What docs/torch.md shows is what happens."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from jitgen.cli.main import cli
from tests import needs

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^\$ jitgen (.*)$", PAGE, re.MULTILINE)
SLOW = ("torch.compile(", "aoti_")
"""Inductor compiles C++ for these."""


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_blocks_run_in_their_order(is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each states its result with an assert."""
    if is_whole and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler")
    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    torch._dynamo.reset()
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if is_whole or not any(word in block for word in SLOW):
            exec(block, names)  # noqa: S102  # the page is ours

    assert sum("assert" in block or "raise" in block for block in BLOCKS) == len(BLOCKS) - 1


def test_the_commands_are_right() -> None:
    chosen, verified = COMMANDS
    found = CliRunner().invoke(cli, chosen.split())

    assert found.exit_code == 0, found.output
    assert "bnmajor" in found.output or "nmajor" in found.output
    name = verified.split()[-1]
    assert CliRunner().invoke(cli, ["show", name, "--key"]).exit_code == 0
