# SPDX-License-Identifier: Apache-2.0
"""What the pages about layers and integrations show is what happens."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from jitgen.cli.main import cli
from jitgen.layer.checkpoints import FAMILIES
from tests import needs

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = {"moe-layer.md": "safetensors", "integrations.md": "transformers"}


@needs.compiler
@pytest.mark.usefixtures("shared_cache", "spoilt_memory")
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("page", NEEDED)
def test_the_calls_in_their_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who runs one block after the other meets no error, and the results are these."""
    if find_spec(NEEDED[page]) is None:
        pytest.skip(f"needs {NEEDED[page]}")
    monkeypatch.setenv("JITGEN_ARCH", "cpu")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)  # noqa: S102  # the page is ours
    if page == "moe-layer.md":
        assert names["out"].shape == (24, 256)
        assert names["out"].isfinite().all()
        assert names["part"].isfinite().all()
        assert not names["torch"].equal(names["part"], names["out"])
        assert (tmp_path / "layer.toml").is_file()
    else:
        assert names["report"].ok
        prompt = 3
        # A model with random weights may end its text itself, with any of its tokens.
        assert prompt < names["text"].shape[1] <= prompt + 4


def test_every_family_is_named() -> None:
    text = (DOCS / "moe-layer.md").read_text("utf-8")

    assert set(FAMILIES) == set(
        re.findall(r"^\| `([a-z0-9_]+)`[^|]*\| `experts", text, re.MULTILINE)
    )


def test_commands_and_options() -> None:
    lines = re.findall(
        r"^    jitgen (bench layer[^\n#]*)",
        (DOCS / "moe-layer-measured.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(lines) == 5
    for line in lines:
        group = cli.get_command(click.Context(cli), "bench")
        assert isinstance(group, click.Group)
        command = group.get_command(click.Context(group), "layer")
        assert command is not None
        used = {word for word in line.split() if word.startswith("--")}

        assert used <= {name for each in command.params for name in each.opts}
