# SPDX-License-Identifier: Apache-2.0
"""`activation_quantize` on the GPU: kernels of the shipped plan, numbers of each group, graphs."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import jitgen
from jitgen import plans
from jitgen.config.activation_quantize import ActivationQuantizeConfig
from jitgen.errors import CaptureMiss
from jitgen.ops.activation_quantize.samples import Sizes, make
from jitgen.runtime.session import current
from tests.gpu.configs import ARCH, of_every_group

CONFIGS = [
    config
    for config in plans.configs(plans.load("swiglu"), ARCH)
    if isinstance(config, ActivationQuantizeConfig)
]
CONFIGS += of_every_group(ARCH)
CONFIG = next(config for config in CONFIGS if config.layout == "ragged")

of_cuda = partial(make, device="cuda")


@pytest.mark.parametrize("config", CONFIGS, ids=[config.name(ARCH) for config in CONFIGS])
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "random"])
class TestEveryKernel:
    def test_edges(self, config: ActivationQuantizeConfig, is_exact: bool) -> None:
        """More groups than lanes, empty and tiny ones; twice, for the second call is warm."""
        for seed in (0, 1):
            (sizes,) = Sizes.of(config, ARCH)
            case = of_cuda(config, sizes, is_exact=is_exact, seed=seed)

            assert case.solve(partial(jitgen.activation_quantize, config=config)) == 0

    def test_many_tiles(self, config: ActivationQuantizeConfig, is_exact: bool) -> None:
        case = of_cuda(config, Sizes(rows=(900, 0, 2100, 7), n=1544), is_exact=is_exact)

        assert case.solve(partial(jitgen.activation_quantize, config=config)) == 0


def test_a_cuda_graph() -> None:
    """A captured call follows new values of its inputs, the groups' rows included."""
    case, other = (
        of_cuda(CONFIG, Sizes(rows=rows, n=512), is_exact=True, seed=seed)
        for seed, rows in enumerate([(100, 3, 60), (0, 160, 3)])
    )
    call = partial(jitgen.activation_quantize, config=CONFIG)
    assert case.solve(call) == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q, scale = call(**case.arguments)
    for mine, new in zip(case.tensors[:2], other.tensors[:2], strict=True):
        mine.copy_(new)

    def replay(
        *_: object, out: tuple[torch.Tensor, object], **__: object
    ) -> tuple[torch.Tensor, object]:
        graph.replay()
        out[0].copy_(q)
        return out[0], scale

    q.copy_(other.arguments["out"][0])  # the right results of padding rows
    assert other.solve(replay) == 0


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capture_of_a_kernel_that_is_not_loaded() -> None:
    """A miss during capture raises its own error, and the call works after it."""
    case = of_cuda(CONFIG, Sizes(rows=(4, 0, 9), n=128), is_exact=True)
    call = partial(jitgen.activation_quantize, config=CONFIG)
    current.get().reset()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureMiss, match="before the capture"), torch.cuda.graph(graph):
        call(**case.arguments)

    assert case.solve(call) == 0
