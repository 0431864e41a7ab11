# SPDX-License-Identifier: Apache-2.0
"""`moe_fc2_dense` on the GPU: every kernel that may be chosen, real sizes, and CUDA graphs."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import jitgen
from jitgen.config import DType
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.ops.moe_fc2_dense.samples import Sizes, make
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH, fc2

CONFIGS = fc2(ARCH)

pytestmark = pytest.mark.skipif(not CONFIGS, reason=f"{ARCH} has no such kernels")

FP8_BITS = ACCUMULATOR_BITS[DType.E4M3]

of_cuda = partial(make, device="cuda")


@pytest.mark.parametrize("config", CONFIGS, ids=[config.to_name() for config in CONFIGS])
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "random"])
class TestEveryKernel:
    def test_edges(self, config: MoEFc2DenseConfig, is_exact: bool) -> None:
        """Twice, for the second call is warm."""
        for sizes in Sizes.of(config, ARCH):
            for seed in (0, 1):
                case = of_cuda(config, sizes, is_exact=is_exact, seed=seed)
                jitgen.moe_fc2_dense(**case.arguments, config=config)

                assert case.wrong(FP8_BITS) == 0

    @pytest.mark.parametrize("tokens", [1, 33, 384])
    def test_a_layer(self, config: MoEFc2DenseConfig, is_exact: bool, tokens: int) -> None:
        sizes = Sizes(tokens=tokens, experts=64, n=7168, k=256, top_k=8)
        case = of_cuda(config, sizes, is_exact=is_exact)
        jitgen.moe_fc2_dense(**case.arguments, config=config)

        assert case.wrong(FP8_BITS) == 0


def test_a_cuda_graph() -> None:
    """A captured call follows new values of its inputs, the routing included."""
    config, sizes = CONFIGS[0], Sizes(tokens=40, experts=12, n=512, k=272, top_k=2)
    case, other = (of_cuda(config, sizes, is_exact=True, seed=seed) for seed in (0, 1))
    call = partial(jitgen.moe_fc2_dense, **case.arguments, config=config)
    call()
    assert case.wrong(FP8_BITS) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for mine, new in zip(case.tensors[:-1], other.tensors[:-1], strict=True):
        mine.copy_(new)
    graph.replay()
    other.out.copy_(case.out)

    assert other.wrong(FP8_BITS) == 0
