# SPDX-License-Identifier: Apache-2.0
"""Kernels for prepacked weights on the GPU at hand, against float64 sums of what they decode."""

from __future__ import annotations

import random

import pytest
import torch

import jitgen
from jitgen.config import Layout
from jitgen.config.config import BLayout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.ops.grouped_gemm import cases as problem
from jitgen.ops.grouped_gemm.samples import Solved
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH, PREPACKED
from tests.problems import verify, verify_exact

pytestmark = pytest.mark.skipif(not PREPACKED, reason=f"{ARCH} has no kernels for them")


def solved(
    config: GroupedGemmConfig, rows: list[int], n: int, k: int, *, is_exact: bool = False
) -> Solved:
    """Return a problem for `config` with its answer, computed on the GPU in float64."""
    sizes = problem.Sizes(rows=tuple(rows), n=n, k=k, num_sms=1)
    call = problem.make(config, sizes, is_exact=is_exact).call
    return Solved.of(call.copy("cuda"), is_exact=is_exact)


def run(config: GroupedGemmConfig, case: Solved) -> torch.Tensor:
    """Return what the kernel of `config` computes for `case`, on all SMs."""
    device = torch.cuda.get_device_properties(case.out.device)
    jitgen.get_kernel(config, ARCH)(*case.tensors, device.multi_processor_count)
    torch.cuda.synchronize()
    return case.out


FOLDED_BITS = 10
"""
What `verify` allows for where values within a sum have scales up to 2**11 apart: of products that
are so much smaller than the largest, the tensor core keeps fewer bits, or none. One large product
left out of the 128 of a sum would still show.
"""


def check(config: GroupedGemmConfig, case: Solved) -> None:
    types = config.operands
    is_folded = types.b_layout is BLayout.FOLDED1
    bits = FOLDED_BITS if is_folded else ACCUMULATOR_BITS[types.a_dtype]
    verify(case, run(config, case), accumulator_bits=bits)


def edge_rows(tile: int) -> list[int]:
    return [0, 1, tile - 1, 0, tile, tile + 1, 2 * tile + 3, 0]


@pytest.mark.parametrize("config", PREPACKED, ids=[config.name(ARCH) for config in PREPACKED])
class TestEveryKernel:
    @pytest.mark.parametrize(("n", "k"), [(512, 1024), (200, 288), (8, 32)])
    def test_edges(self, config: GroupedGemmConfig, n: int, k: int) -> None:
        """Empty groups, rows around the tile, tails of N and K; unowned rows keep their NaN."""
        check(config, solved(config, edge_rows(config.tile.m), n, k))

    def test_exact(self, config: GroupedGemmConfig) -> None:
        """Small integers and scales that are powers of two: every bit is right."""
        case = solved(config, edge_rows(config.tile.m), 328, 672, is_exact=True)

        verify_exact(case, run(config, case))

    def test_uneven_groups(self, config: GroupedGemmConfig) -> None:
        """As routing makes them, 0 to 69 rows; many tiles, so that every pipeline wraps; twice."""
        chance = random.Random(config.tile.m)
        rows = [chance.choice([0, 1, chance.randint(0, 69)]) for _ in range(32)]
        case = solved(config, rows, 2048, 1152)
        check(config, case)
        first = case.out.clone()
        again = run(config, case)

        same = (out[case.is_owned].view(torch.uint8) for out in (again, first))  # NaNs, too
        assert torch.equal(*same)

    def test_large_k(self, config: GroupedGemmConfig) -> None:
        """An odd number of k-blocks, many times as deep as the pipeline."""
        check(config, solved(config, [3, 0, config.tile.m + 5], 264, 8192 + 96))


@pytest.mark.parametrize("layout", Layout)
def test_more_groups_than_the_table_has_entries(layout: Layout) -> None:
    """Entries then stand for several groups, most of them empty."""
    config = next(config for config in PREPACKED if config.layout is layout)
    chance = random.Random(5)
    rows = [chance.choice([0, 0, 0, 1, 9]) for _ in range(700)]

    check(config, solved(config, rows, 136, 160))
