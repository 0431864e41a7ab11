# SPDX-License-Identifier: Apache-2.0
"""
A sample of every attack; ``python -m tests.chaos --full`` runs the whole of them, and so does the
night, in which each file call fails with one error in turn instead of all six.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.kernels import REPOSITORY
from tests.chaos.stages import NAMED, STAGES


@pytest.mark.parametrize("name", STAGES)
def test_sample(name: str, tmp_path: Path) -> None:
    attack(name, tmp_path / "report", timeout_s=300)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in NAMED if name != "calls"])
def test_the_whole(name: str, tmp_path: Path) -> None:
    attack(name, tmp_path / "report", "--full", timeout_s=3600)


def attack(name: str, report: Path, *words: str, timeout_s: int) -> None:
    """In a process of its own, as people run it: the attacks fork, and change users and mounts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", name, *words, "--report", str(report)],
        cwd=REPOSITORY,
        env={key: text for key, text in os.environ.items() if not key.startswith("JITGEN_")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{name}: ok" in report.read_text()
