# SPDX-License-Identifier: Apache-2.0
"""`quantize` on the GPU: every kernel that may be chosen, with the bytes that a CPU makes."""

from __future__ import annotations

import pytest
import torch

from jitgen import quantize
from jitgen.config.config import Layout
from jitgen.config.format import Format
from jitgen.config.quantize import QuantizeConfig
from jitgen.ops.quantize.samples import Sizes, make
from jitgen.ops.solved import Solved
from tests.gpu.configs import ARCH, quantized

CONFIGS = quantized(ARCH)


def solve(config: QuantizeConfig, case: Solved) -> int:
    """Return how many bytes of rows are wrong."""
    x, *others = (each.cuda() for each in case.tensors)
    named = {} if config.layout is Layout.CONTIGUOUS else {ARGUMENT[config.layout]: others[0]}
    if config.format is Format.NVFP4:
        named["global_scale"] = others[-1]
    q, scale, *_ = getattr(quantize, config.format)(x, **named, config=config)
    for output, values in zip(case.outputs, (q, scale), strict=True):
        output.write(values.cpu())
    return case.wrong()


ARGUMENT = {Layout.RAGGED: "offs", Layout.MASKED: "masked_m"}


@pytest.mark.parametrize("config", CONFIGS, ids=[config.name(ARCH) for config in CONFIGS])
@pytest.mark.parametrize("is_exact", [True, False], ids=["integers", "random"])
class TestEveryKernel:
    def test_edges(self, config: QuantizeConfig, is_exact: bool) -> None:
        """More groups than lanes, empty and tiny ones; twice, for the second call is warm."""
        for seed in (0, 1):
            (sizes,) = Sizes.of(config, ARCH)

            assert solve(config, make(config, sizes, is_exact=is_exact, seed=seed)) == 0

    def test_many_tiles(self, config: QuantizeConfig, is_exact: bool) -> None:
        case = make(config, Sizes(rows=(900, 0, 2100, 7), k=1552), is_exact=is_exact)

        assert solve(config, case) == 0


def test_a_graph_follows_new_values() -> None:
    """A captured call reads x and the ends of the groups anew."""
    x = torch.randn(300, 256, device="cuda").bfloat16()
    offs = torch.tensor([100, 100, 300], dtype=torch.int32, device="cuda")
    quantize.mxfp8(x, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scale = quantize.mxfp8(x, offs=offs)
    x.mul_(-3)
    offs.copy_(torch.tensor([7, 200, 300]))
    graph.replay()
    want, atoms = quantize.mxfp8(x.cpu(), offs=offs.cpu())
    mine, theirs = (quantize.from_atoms(s.cpu(), 300, 8, offs=offs.cpu()) for s in (scale, atoms))

    assert torch.equal(q.cpu().view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
