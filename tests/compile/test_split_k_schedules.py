# SPDX-License-Identifier: Apache-2.0
"""CTAs that exchange sums are right in every order, whichever of their warps have no rows."""

from __future__ import annotations

import pytest

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Schedule, Tile
from jitgen.verify import verify
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]


@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_split_k_is_proved(arch: str) -> None:
    """A warp that waited in some tiles alone took one phase of a barrier for the next but one."""
    tile = Tile(m=128, n=64, k=128)
    config = GroupedGemmConfig(layout=Layout.MASKED, tile=tile, schedule=Schedule(split_k=2))

    found = verify(config, arch, "3:130:64:512")

    assert found.is_right
    (*reports,) = (trial.report for trial in found.trials)
    assert all(report is not None and report.is_proved for report in reports)
