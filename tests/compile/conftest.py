# SPDX-License-Identifier: Apache-2.0
"""A cache that the tests of one file share, for those that call the same kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen.ops import dispatch
from jitgen.runtime import registry


@pytest.fixture(scope="module")
def module_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def shared_cache(
    cache_root: Path, module_root: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Compile a kernel once for all tests of a file, and load it anew for each."""
    module_root.chmod(0o700)
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(module_root))
    registry.reset()
    dispatch.memo.clear()
    yield
    dispatch.memo.clear()
