# SPDX-License-Identifier: Apache-2.0
"""
GPU tests run kernels that were prewarmed elsewhere, from the cache that JITGEN_GPU_CACHE names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jitgen.config import Arch
from jitgen.runtime.session import current
from jitgen.settings import settings


def _why_not() -> str:
    if not torch.cuda.is_available():
        return "no GPU here"
    if Arch.of_capability(*torch.cuda.get_device_capability()) is None:
        return "no kernels for this GPU"
    return ""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect nothing without a GPU: the kernels of thousands of cases would be chosen in vain."""
    return True if collection_path.match("test_*.py") and _why_not() else None


def pytest_report_header() -> str:
    """Say why these tests are left out."""
    return f"tests/gpu: {_why_not() or 'runs'}"


CACHE = os.environ.get("JITGEN_GPU_CACHE")


@pytest.fixture(autouse=True)
def prewarmed(cache_root: Path) -> Iterator[None]:
    """Use the carried cache, without compiling, where there is one; else compile as usual."""
    if CACHE:
        with settings.scope(cache_dir=CACHE, on_miss="error"):
            current.get().reset()
            yield
    else:
        yield
