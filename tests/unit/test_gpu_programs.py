# SPDX-License-Identifier: Apache-2.0
"""Programs for GPUs, which no push runs, can be imported: names that they share do not go away."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "gpu"
PROGRAMS = [path.stem for path in FOLDER.glob("[a-z]*.py") if not path.stem.startswith("test_")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_it_can_be_imported(name: str) -> None:
    import_module(f"tests.gpu.{name}")
