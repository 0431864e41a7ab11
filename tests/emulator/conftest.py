# SPDX-License-Identifier: Apache-2.0
"""Tests of this folder are the emulator's: ``python -m pytest -m emulator`` runs them alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_HERE = f"{Path(__file__).parent}{os.sep}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(_HERE):
            item.add_marker(pytest.mark.emulator)
