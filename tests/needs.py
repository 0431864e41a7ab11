# SPDX-License-Identifier: Apache-2.0
"""
What tests need of the machine.

Nothing is imported to find out: where other code than jitgen imported the compiler first, jitgen
compiles in a process of its own, and so would all tests after that, for a second more each time.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import pytest

compiler = pytest.mark.skipif(find_spec("cutlass") is None, reason="needs nvidia-cutlass-dsl")
linker = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


def _torch() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return (0,)


newer_dynamo = pytest.mark.skipif(
    _torch() < (2, 13), reason="needs torch 2.13: docs/torch.md says what torch.compile does before"
)
