# SPDX-License-Identifier: Apache-2.0
"""Every example runs as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from jitgen.runtime.session import current

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all examples, as a reader who tries them in turn would have."""
    return tmp_path_factory.mktemp("examples") / "cache"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path,
    shared_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It runs to its end, checks its own results, and says something."""
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(shared_root))
    current.get().reset()
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        current.get().reset()

    assert capsys.readouterr().out.strip()
