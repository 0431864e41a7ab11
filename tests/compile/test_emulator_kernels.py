# SPDX-License-Identifier: Apache-2.0
"""
Golden kernels and those of the sm_90a menu, compiled and run in the emulator: with every push a few
goldens that have between them every cluster and split (`test_emulated_grouped_gemm` varies layouts,
scales and types), and at night the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.config import Arch, Config, Layout
from jitgen.ops.grouped_gemm.config import KernelConfig, Operands
from jitgen.verify import verify
from tests import needs
from tests.candidates import candidates
from tests.covering import covering

pytestmark = [needs.compiler, needs.linker]

GOLDENS = sorted(path.stem for path in (Path(__file__).parents[1] / "goldens").glob("*_sm_90a.py"))
MENU = [
    config.name(Arch.SM_90A)
    for layout in Layout
    for config in candidates(Arch.SM_90A, layout, Operands())
]
NAMES = tuple(dict.fromkeys([*MENU, *GOLDENS]))
FEW = {
    config.name(Arch.SM_90A)
    for config in covering(
        [KernelConfig.parse(name)[0] for name in GOLDENS if name.startswith(KernelConfig.op)],
        lambda config: [
            *([config.cluster] if config.cluster.size > 1 else []),
            *(["split K"] if config.schedule.split_k > 1 else []),
        ],
    )
}


def test_there_are_goldens_and_a_menu() -> None:
    assert GOLDENS
    assert MENU
    assert len(FEW) < len(NAMES) / 2


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW else pytest.mark.nightly) for name in NAMES],
)
def test_kernel(name: str) -> None:
    """
    Right to the bit for small integers, within rounding for random numbers, and nothing found:
    no race, no missing fence, nothing left undone; with asynchronous work done at once and late.
    And no wait, copy, matrix instruction or store that the problems do not reach.
    """
    config, arch = Config.parse(name)

    found = verify(config, arch, modes="quick")

    assert found.is_right, found.to_json()
