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

_HERE = f"{Path(__file__).parent}{os.sep}"


def _why_not() -> str:
    if not torch.cuda.is_available():
        return "no GPU here"
    if Arch.of_capability(*torch.cuda.get_device_capability()) is None:
        return "no kernels for this GPU"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_not()
    if reason:
        for item in items:
            if str(item.path).startswith(_HERE):
                item.add_marker(pytest.mark.skip(reason=reason))


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
