# SPDX-License-Identifier: Apache-2.0
"""Tests of this folder are the emulator's: ``python -m pytest -m emulator`` runs them alone."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.emulator)
