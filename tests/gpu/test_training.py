# SPDX-License-Identifier: Apache-2.0
"""Steps of transformers' experts on the GPU: beside eager ones, and both beside float64."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch

from jitgen.integrations import transformers as integration
from tests.gpu.configs import ARCH
from tests.transformers_experts import call, errors, make, step

pytest.importorskip("transformers", "5.20", reason="needs jitgen[transformers]")
pytestmark = [
    pytest.mark.skipif(ARCH != "sm_90a", reason="operands of 16 bits have kernels for sm_90a"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        integration.register()
    return


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["MixtralExperts", "AriaExperts"])
def test_a_step(name: str, dtype: torch.dtype) -> None:
    """Weights with either dimension contiguous."""
    module = make(name, dtype).cuda()
    x, ids, weights = (each.cuda() for each in call(dtype))
    exact = copy.deepcopy(module).double()
    expected = step(exact, "eager", (x.double(), ids, weights.double()))
    others = errors(step(module, "eager", (x, ids, weights)), expected)
    mine = errors(step(module, integration.IMPLEMENTATION, (x, ids, weights)), expected)

    for found, other in zip(mine, others, strict=True):
        assert found <= 1.5 * other + 1e-7


def test_under_autocast() -> None:
    """A module in float32, which Hopper has no kernels for, in bfloat16."""
    module = make("MixtralExperts", torch.float32).cuda()
    given = tuple(each.cuda() for each in call(torch.float32))
    expected = step(module, "eager", given)
    with torch.autocast("cuda", torch.bfloat16):
        found = step(module, integration.IMPLEMENTATION, given)

    assert found[0].dtype is torch.float32
    assert max(errors(found, expected)) < 0.03


def test_a_cuda_graph_follows_weights() -> None:
    """A replay multiplies what the weights are then: nothing was copied from them."""
    module = make("MixtralExperts", torch.bfloat16).cuda()
    module.config._experts_implementation = integration.IMPLEMENTATION
    given = tuple(each.cuda() for each in call(torch.bfloat16))
    with torch.no_grad():
        module(*given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = module(*given)
        module.down_proj.mul_(2)
        graph.replay()

        assert torch.equal(found, module(*given))
