# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It runs to its end, checks its own results, and says something."""
    runpy.run_path(str(path), run_name="__main__")

    assert capsys.readouterr().out.strip()
