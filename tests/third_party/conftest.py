# SPDX-License-Identifier: Apache-2.0
"""The test package, installed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import jitgen
from tests.third_party import installing

__all__ = ["jitgen"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the test package is installed."""
    place = tmp_path_factory.mktemp("acme")
    return installing.install(place / "site", place)
