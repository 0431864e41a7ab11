# SPDX-License-Identifier: Apache-2.0
"""The commands in the documents and examples for fleets are commands that there are."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from jitgen import plans
from jitgen.cli.main import cli
from jitgen.metrics import _OUTCOMES

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "docs" / name for name in ("fleet.md", "bundles.md")),
    *sorted(path for path in (ROOT / "examples" / "bundle").iterdir() if path.suffix != ".py"),
]
LINE = re.compile(r"(?<![\w./-])jitgen[, ]+((?:bundle|prewarm|cache|verify)\b[^\n`|&]*)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_commands_and_options(path: Path) -> None:
    lines = [line.replace(",", " ").split() for line in LINE.findall(path.read_text("utf-8"))]
    assert lines
    for words in lines:
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0).strip("\"'];"))
            assert found is not None, (path.name, words)
            command = found
        known = {name for each in command.params for name in each.opts}
        used = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}

        assert used <= known | {"--help"}, path.name


def test_the_outcomes_are_documented() -> None:
    text = (ROOT / "docs" / "fleet.md").read_text("utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| `jitgen_kernels_total`"))
    named = set(re.findall(r"`([a-z_]+)`", row))

    assert set(_OUTCOMES) - {"error", "compile", "fetch", "reject", "quarantine", "evict"} <= (
        named | {"budget"}
    )


NUMBERS = {
    "docs/bundles.md": r"v3 for sm_90a is (\d+) kernels and .* an H200 alone needs (\d+)",
    "docs/plans.md": r"\(deepseek-v3 (\d+) instead of (\d+),",
    "docs/fleet.md": r"the (\d+) kernels of deepseek-v3 for sm_90a in four shards",
}


def test_a_plan_has_as_many_kernels_as_the_pages_say() -> None:
    """They went on naming the kernels of an H200 alone."""
    plan = plans.load("deepseek-v3")
    counts = [
        len(plans.configs(plan, "sm_90a", devices=devices)) for devices in ((), ("NVIDIA H200",))
    ]
    for name, pattern in NUMBERS.items():
        found = re.search(pattern, (ROOT / name).read_text("utf-8"))
        assert found is not None, name
        assert [int(text) for text in found.groups()] == counts[: found.re.groups], name


def test_a_bundle_has_the_same_size_on_every_page() -> None:
    """It is measured once, and stands on three pages."""
    pages = ("docs/cache.md", "docs/bundles.md", "docs/costs.md")
    sizes = [re.search(r"(\d{3},\d{3}) bytes", (ROOT / name).read_text("utf-8")) for name in pages]

    assert all(sizes)
    assert len({found[1] for found in sizes if found is not None}) == 1
