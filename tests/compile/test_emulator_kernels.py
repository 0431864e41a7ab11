# SPDX-License-Identifier: Apache-2.0
"""Every golden kernel and every kernel of the sm_90a menu, compiled and run in the emulator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jitgen.config import Arch, Layout
from jitgen.ops.grouped_gemm.config import KernelConfig, Operands
from jitgen.verify import verify
from tests.candidates import candidates

pytest.importorskip("cutlass")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

GOLDENS = sorted(path.stem for path in (Path(__file__).parents[1] / "goldens").glob("*_sm_90a.py"))
MENU = [
    config.name(Arch.SM_90A)
    for layout in Layout
    for config in candidates(Arch.SM_90A, layout, Operands())
]


def test_there_are_goldens_and_a_menu() -> None:
    assert GOLDENS
    assert MENU


@pytest.mark.parametrize("name", dict.fromkeys([*MENU, *GOLDENS]))
def test_kernel(name: str) -> None:
    """
    Right to the bit for small integers, within rounding for random numbers, and nothing found:
    no race, no missing fence, nothing left undone; with asynchronous work done at once and late.
    """
    config, arch = KernelConfig.parse(name)

    found = verify(config, arch, modes="quick")

    assert found.is_right, found.to_json()
