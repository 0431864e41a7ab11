# SPDX-License-Identifier: Apache-2.0
"""Layers of experts on the GPU: every format, and CUDA graphs with their memory planned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitgen
from jitgen.layer.reference import TOLERANCE, moe, moe_experts, relative_error
from tests.gpu.configs import ARCH
from tests.moe_cases import EXPERTS, FORMATS, HIDDEN, MASKED_ROWS, make

pytestmark = pytest.mark.skipif(ARCH != "sm_90a", reason="layers have kernels for sm_90a")


def on_gpu(form: str, tokens: int, **options: Any) -> tuple[jitgen.MoELayer, list[torch.Tensor]]:
    """Return a layer, and its tokens with their routing."""
    case = make(form, tokens=tokens)
    weights = case.weights.of({n: each.cuda() for n, each in case.weights.tensors.items()})
    layer = jitgen.MoELayer(case.config, weights, **options)
    return layer, [each.cuda() for each in case.given]


def error(layer: jitgen.MoELayer, given: list[torch.Tensor], found: torch.Tensor) -> float:
    x, weights, ids = given
    return relative_error(found, moe(x, layer.weights, weights, ids, layer.config))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("tokens", [1, 19, 700])
class TestEveryFormat:
    def test_right(self, form: str, tokens: int) -> None:
        layer, given = on_gpu(form, tokens)
        tolerance = TOLERANCE[str(layer.weights.activation_format)]

        assert error(layer, given, layer(*given)) < tolerance
        assert torch.equal(layer(*given), layer(*given))

    def test_planned_memory_changes_no_bit(self, form: str, tokens: int) -> None:
        layer, given = on_gpu(form, tokens)
        planned, _ = on_gpu(form, tokens, max_tokens=tokens)
        shared = torch.randn_like(given[0])

        assert torch.equal(planned(*given, shared=shared), layer(*given, shared=shared))


@pytest.mark.parametrize("form", ["block128", "bf16", "wide1"])
def test_a_cuda_graph(form: str) -> None:
    """A captured layer follows new tokens and new experts, and a share skips what is elsewhere."""
    layer, given = on_gpu(form, 16, max_tokens=16)
    out = torch.empty_like(given[0])
    layer(*given, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(*given, out=out)
    for seed in (3, 4):
        case = make(form, tokens=16, seed=seed)
        for mine, new in zip(given, case.given, strict=True):
            mine.copy_(new)
        if seed == 4:
            given[2][5] = EXPERTS  # no expert
            given[1][5] = 0.0
        graph.replay()

        assert error(layer, given, out) < TOLERANCE[str(layer.weights.activation_format)]
        assert torch.equal(out, layer(*given))
        assert bool(out[5].any()) == (seed == 3)


@pytest.mark.parametrize("form", FORMATS)
def test_matrices_in_a_cuda_graph(form: str) -> None:
    """One graph serves every number of tokens that a dispatch brings, and writes no other row."""
    plain, _ = on_gpu(form, 1)
    memory = jitgen.Workspace.of(plain.config, plain.weights, 1, masked=MASKED_ROWS)
    layer = jitgen.MoELayer(plain.config, plain.weights, workspace=memory)
    x = torch.randn(EXPERTS, MASKED_ROWS, HIDDEN, device="cuda").bfloat16()
    masked_m = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
    out = torch.empty_like(x)
    layer.experts(x, masked_m, expected_m=8, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer.experts(x, masked_m, expected_m=8, out=out)
    for counts in ([3, 0, MASKED_ROWS, 1, 8, 17], [0, 0, 1, 0, 0, 0], [MASKED_ROWS] * EXPERTS):
        masked_m.copy_(torch.tensor(counts, dtype=torch.int32))
        out.fill_(77.0)
        graph.replay()
        expected = moe_experts(x, layer.weights, masked_m, layer.config)
        again = plain.experts(x, masked_m, expected_m=8)
        for found, right, other, count in zip(out, expected, again, counts, strict=True):
            assert (found[count:] == 77.0).all()
            assert torch.equal(found[:count], other[:count])
            if count:
                tolerance = TOLERANCE[str(layer.weights.activation_format)]
                assert relative_error(found[:count], right[:count]) < tolerance
