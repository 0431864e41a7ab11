# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm_wgrad` and autograd on the GPU: every kernel that may be chosen, and real sizes."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import jitgen
from jitgen.config import DType
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.ops.grouped_gemm_wgrad.samples import Sizes, make
from tests.gpu.configs import ACCUMULATOR_BITS, ARCH, wgrad

CONFIGS = wgrad(ARCH)

pytestmark = pytest.mark.skipif(not CONFIGS, reason=f"{ARCH} has no such kernels")

BITS = ACCUMULATOR_BITS.get(DType.BF16, 0)

of_cuda = partial(make, device="cuda")


@pytest.mark.parametrize("config", CONFIGS, ids=[config.to_name() for config in CONFIGS])
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "random"])
class TestEveryKernel:
    def test_edges(self, config: GroupedGemmWgradConfig, is_exact: bool) -> None:
        """Twice, for the second call is warm."""
        for sizes in Sizes.of(config, ARCH):
            for seed in (0, 1):
                case = of_cuda(config, sizes, is_exact=is_exact, seed=seed)
                jitgen.grouped_gemm_wgrad(**case.arguments, config=config)

                assert case.wrong(BITS) == 0

    def test_a_layer(self, config: GroupedGemmWgradConfig, is_exact: bool) -> None:
        """Groups from nothing to thousands of rows, and more tiles than SMs."""
        sizes = Sizes(rows=(0, 1, 63, 700, 64, 1500, 0, 129), n=2048, k=1032, num_sms=1)
        case = of_cuda(config, sizes, is_exact=is_exact)
        for _ in range(2):
            jitgen.grouped_gemm_wgrad(**case.arguments, config=config)

            assert case.wrong(BITS) == 0


def test_a_cuda_graph() -> None:
    """A captured call follows new values of its inputs, the ends of groups included."""
    config = CONFIGS[0]  # ragged: of masked rows there are as many as the largest group has
    sizes = [Sizes(rows=rows, n=512, k=264, num_sms=1) for rows in ((90, 7, 200), (3, 294, 0))]
    case, other = (of_cuda(config, each, is_exact=True, seed=1) for each in sizes)
    call = partial(jitgen.grouped_gemm_wgrad, **case.arguments, config=config)
    call()
    assert case.wrong(BITS) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for mine, new in zip(case.tensors[:-1], other.tensors[:-1], strict=True):
        mine.copy_(new)
    graph.replay()
    other.out.copy_(case.out)

    assert other.wrong(BITS) == 0


def test_a_step() -> None:
    """Forwards and backwards in bfloat16, with a bias, beside float64 in torch."""
    torch.manual_seed(0)
    a = torch.randn(1000, 512, device="cuda").bfloat16().requires_grad_()
    b = torch.randn(4, 768, 512, device="cuda").bfloat16().requires_grad_()
    offs = torch.tensor([100, 100, 613, 990], dtype=torch.int32, device="cuda")
    dy = torch.randn(1000, 768, device="cuda").bfloat16()
    bias = torch.randn(4, 768, device="cuda").requires_grad_()
    y = jitgen.grouped_gemm(a, b, offs=offs, bias=bias)
    y.backward(dy)  # type: ignore[no-untyped-call]
    start = 0
    assert a.grad is not None
    assert b.grad is not None
    assert bias.grad is not None
    for g, end in enumerate(offs.tolist()):
        rows = slice(start, end)
        da = dy[rows].double() @ b[g].detach().double()
        db = dy[rows].double().T @ a[rows].detach().double()
        product = a[rows].detach().double() @ b[g].detach().double().T + bias[g].detach()
        start = end

        assert torch.allclose(y[rows].double(), product, rtol=2**-8, atol=0.05)
        assert torch.allclose(bias.grad[g].double(), dy[rows].double().sum(0), rtol=1e-4, atol=1e-3)
        assert torch.allclose(a.grad[rows].double(), da, rtol=2**-8, atol=0.05)
        assert torch.allclose(b.grad[g].double(), db, rtol=2**-8, atol=0.05)
    assert not a.grad[990:].any()
