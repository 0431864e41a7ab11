# SPDX-License-Identifier: Apache-2.0
"""
Tables of tiles on an emulated GPU: a warp fills those of up to 32 groups in one go, all threads
those of more; and what is asked of L2 before the kernel before has ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.config import Arch, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.verify import device
from tests import needs

pytestmark = [needs.compiler, needs.linker]

KERNEL = GroupedGemmConfig(
    layout=Layout.RAGGED,
    operands=Operands(scale_granularity=ScaleGranularity.ROW),
    tile=Tile(m=64, n=32, k=128),
)
N, K = 40, 128


@pytest.fixture(autouse=True)
def emulated_gpu(shared_cache: None) -> Iterator[None]:
    """An emulated H100 with few SMs, so that a CTA gets several tiles."""
    with device("sm_90a", num_sms=4):
        yield


def rows_of(groups: int) -> list[int]:
    """Return rows of so many groups: some without any, some of several tiles, the last one with."""
    rows = [(0, 3, 64, 65, 1, 0, 130)[group % 7] for group in range(groups)]
    return [*rows[:-1], 5]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("groups", [1, 31, 32, 33, 65])
def test_results_are_right_with_so_many_groups(groups: int) -> None:
    """The last lane has the 32nd group, and a 33rd is counted otherwise."""
    counts = rows_of(groups)
    a = torch.randint(-3, 4, (sum(counts), K)).to(torch.float8_e4m3fn)
    b = torch.randint(-3, 4, (groups, N, K)).to(torch.float8_e4m3fn)
    scales = torch.ones(len(a)), torch.ones(groups, N)
    offs = torch.tensor(counts).cumsum(0).to(torch.int32)

    out = jitgen.grouped_gemm(a, b, *scales, offs=offs, config=KERNEL)

    whose = torch.repeat_interleave(torch.arange(groups), torch.tensor(counts))
    right = torch.einsum("mk,mnk->mn", a.float(), b.float()[whose])
    assert torch.equal(out, right.to(torch.bfloat16))


@pytest.mark.parametrize("layout", Layout)
def test_groups_are_asked_for_before_the_wait(layout: Layout) -> None:
    """Else the first read of a call waits for memory: 0.1 us of it on an H200."""
    config = GroupedGemmConfig(layout=layout, operands=KERNEL.operands, tile=KERNEL.tile)
    body = render(config, Arch.SM_90A).text.partition("def grouped_gemm_kernel")[2]

    assert 0 < body.index("ask_for(groups)") < body.index("griddepcontrol_wait")
