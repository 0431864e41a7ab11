# SPDX-License-Identifier: Apache-2.0
"""What docs/gradients.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from jitgen.cli.main import run
from tests import needs

PAGE = (Path(__file__).parents[2] / "docs" / "gradients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    jitgen (.*?)(?: *#.*)?$", PAGE, re.MULTILINE)


@needs.compiler
@pytest.mark.usefixtures("shared_cache", "spoilt_memory")
def test_the_calls_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block, names)  # noqa: S102  # the page is ours

    assert len(BLOCKS) == 5
    assert names["a"].grad.shape == (384, 256)
    assert names["b"].grad.shape == names["db"].shape == (4, 512, 256)
    assert names["b"].grad.dtype is torch.bfloat16
    assert not names["a"].grad[380:].any()
    for name in ("a", "b", "bias"):
        assert names[name].grad.isfinite().all()
    of_layer = names["layer"].w13, names["layer"].w2, names["router"].weight, names["x"]
    assert all(each.grad.any() for each in of_layer)
    assert not names["y"].isfinite().all()  # four rows belong to no group, and nothing reads them


@pytest.mark.parametrize("words", COMMANDS)
def test_the_commands_exist(words: str) -> None:
    """Those that need no GPU and take no time are run, others are asked for their help."""
    is_quick = words.startswith("select")

    assert run(words.split() if is_quick else [*words.split()[:2], "--help"]) == 0


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 4
