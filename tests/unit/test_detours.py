# SPDX-License-Identifier: Apache-2.0
"""How many files of jitgen a call enters: a detour that comes back fails here."""

from __future__ import annotations

from pathlib import Path

from tests import detours


def test_no_call_enters_more_files_than_it_did(tmp_path: Path) -> None:
    cold, warm = detours.entered(tmp_path / "cache"), detours.entered(tmp_path / "cache")

    assert len(warm) <= detours.HAVE["warm disk"], warm
    assert len(cold) <= detours.HAVE["cold"], cold
    assert {"jitgen/compile/compiler.py", "cache/publishing.py"} <= set(cold) - set(warm)
