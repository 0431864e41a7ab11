# SPDX-License-Identifier: Apache-2.0
"""Two ways to the second GEMM of a layer: what is predicted beside what was measured."""

from __future__ import annotations

import pytest

from jitgen.config import Arch
from jitgen.config.moe_fc2_dense import MoEFc2DenseProblem
from jitgen.ops.moe_fc2_dense.ways import ways

MEASURED_US = {  # on an H200, as docs/fc2.md has it: dense, grouped, grouped and combine
    1: (30.0, 14.0, 22.6),
    8: (44.8, 44.2, 54.0),
    16: (56.5, 72.8, 85.1),
    32: (81.4, 119, 134),
    64: (111, 160, 179),
    96: (125, 172, 210),
    128: (128, 178, 209),
    192: (250, 182, 226),
    256: (270, 181, 263),
    288: (279, 178, 236),
    384: (294, 185, 259),
}


@pytest.mark.parametrize("tokens", MEASURED_US)
def test_the_way_is_chosen_that_was_faster(tokens: int) -> None:
    """
    Of 192 and 256 tokens it once was not: a new fit of the grouped GEMM had left behind what is
    added to it for short K.
    """
    dense, grouped, together = MEASURED_US[tokens]
    problem = MoEFc2DenseProblem(groups=256, m=tokens, n=7168, k=256)
    found = ways(problem, Arch.SM_90A, device="h200")

    assert found.is_dense_faster == (dense < together)
    if tokens > 1:
        assert found.grouped_us == pytest.approx(grouped, rel=0.07)
