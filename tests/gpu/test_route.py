# SPDX-License-Identifier: Apache-2.0
"""`route` and `sort_pairs` on the GPU: every kernel that may be chosen, beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config.route import RouteConfig, Scoring
from jitgen.ops.route.samples import Sizes, make
from tests.gpu.configs import ARCH, routed

CONFIGS = routed(ARCH)


def solver(config: RouteConfig) -> Callable[..., Any]:
    function = jitgen.sort_pairs if config.scoring is Scoring.GIVEN else jitgen.route
    return partial(function, config=config)


@pytest.mark.parametrize("config", CONFIGS, ids=[config.name(ARCH) for config in CONFIGS])
@pytest.mark.parametrize("is_exact", [True, False], ids=["integers", "random"])
class TestEveryKernel:
    def test_edges(self, config: RouteConfig, is_exact: bool) -> None:
        """Odd numbers of experts, those of others; twice, for the second call is warm."""
        for sizes in Sizes.of(config, ARCH):
            for seed in (0, 1):
                case = make(config, sizes, is_exact=is_exact, seed=seed, device="cuda")

                assert case.solve(solver(config)) == 0

    @pytest.mark.parametrize("tokens", [1, 129, 5000])
    def test_tokens(self, config: RouteConfig, is_exact: bool, tokens: int) -> None:
        """Clusters without tokens; and more than all warps of the GPU have at once."""
        first, _ = Sizes.of(config, ARCH)
        case = make(config, replace(first, tokens=tokens), is_exact=is_exact, device="cuda")

        assert case.solve(solver(config)) == 0


@pytest.mark.parametrize("tokens", [64, 4096])
def test_the_same_bits_every_time(tokens: int) -> None:
    """Ties are many, and no thread decides anything by being first."""
    x = torch.randint(-3, 4, (tokens, 128), device="cuda").bfloat16()
    first = jitgen.route(x, top_k=8)
    for _ in range(20):
        again = jitgen.route(x, top_k=8)

        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("tokens", [5, 3000])
def test_a_graph_follows_new_values(tokens: int) -> None:
    """A captured call reads logits anew, with its workspace in the graph's memory."""
    x = torch.randn(tokens, 128, device="cuda").bfloat16()
    jitgen.route(x, top_k=8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = jitgen.route(x, top_k=8)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        expected = jitgen.reference.route(x, top_k=8)

        torch.testing.assert_close(found.topk_weights, expected.topk_weights)
        assert all(torch.equal(a, b) for a, b in zip(found[1:], expected[1:], strict=True))
