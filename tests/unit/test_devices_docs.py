# SPDX-License-Identifier: Apache-2.0
"""What docs/emulator-devices.md shows: its code runs, and what it says of modes and keys is so."""

from __future__ import annotations

import re

import pytest

from jitgen.emulator import parse_modes
from tests import documents

PAGE = "docs/emulator-devices.md"


def test_the_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(documents.ROOT)
    (code,) = documents.blocks("docs/emulator-devices.md", "python")
    exec(compile(code, PAGE, "exec"), {})  # noqa: S102


def test_every_mode_is_one() -> None:
    (table,) = re.findall(r"\| mode \| \|\n(.*?)\n\n", documents.text(PAGE), re.DOTALL)
    rows = [row.partition(" | ")[0] for row in table.splitlines()[1:]]
    modes = re.findall(r"`([^`]+)`", " ".join(rows))
    named = [mode.replace("-N", "-1").replace("-K", "-2") for mode in modes]
    assert len(parse_modes(named)) == len(named) == 6
