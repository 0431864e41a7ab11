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
    modes = re.findall(
        r"^\| `([a-z]+(?:-[a-zN]+)+|reversed)` \|", documents.text(PAGE), re.MULTILINE
    )
    assert len(parse_modes([mode.replace("-N", "-1") for mode in modes])) == len(modes) == 5
