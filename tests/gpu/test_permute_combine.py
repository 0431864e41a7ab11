# SPDX-License-Identifier: Apache-2.0
"""`permute_quantize` and `combine` on the GPU: kernels of the shipped plan, and a CUDA graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import jitgen
from jitgen import plans
from jitgen.config.combine import CombineConfig
from jitgen.config.format import Format
from jitgen.config.permute_quantize import PermuteQuantizeConfig
from jitgen.ops.combine import samples as combining
from jitgen.ops.permute_quantize import samples as permuting
from tests.gpu.configs import ARCH

CONFIGS = plans.configs(plans.load("glue"), ARCH)
ROWS = [config for config in CONFIGS if isinstance(config, PermuteQuantizeConfig)]
SUMS = [config for config in CONFIGS if isinstance(config, CombineConfig)]


def named(configs: list[Any]) -> Any:
    return pytest.mark.parametrize("config", configs, ids=[each.name(ARCH) for each in configs])


@named(ROWS)
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "random"])
def test_rows(config: PermuteQuantizeConfig, is_exact: bool) -> None:
    """Edges, twice, for the second call is warm; and many tiles."""
    (edges,) = permuting.Sizes.of(config, ARCH)
    many = permuting.Sizes(rows=(900, 0, 2100, 7), top_k=8, k=1552)
    if config.format in (Format.MXFP4, Format.NVFP4):  # rows of whole vectors in two's a byte
        edges, many = (replace(each, k=each.k // 32 * 32 + 32) for each in (edges, many))
    for seed, sizes in enumerate((edges, edges, many)):
        case = permuting.make(config, sizes, is_exact=is_exact, seed=seed, device="cuda")

        assert case.solve(partial(jitgen.permute_quantize, config=config)) == 0


@named(SUMS)
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "random"])
def test_sums(config: CombineConfig, is_exact: bool) -> None:
    sizes = (
        combining.Sizes(tokens=10, top_k=17, n=264),
        combining.Sizes(tokens=10, top_k=17, n=264),
        combining.Sizes(tokens=3001, top_k=8, n=1544),
    )
    for seed, each in enumerate(sizes):
        case = combining.make(config, each, is_exact=is_exact, seed=seed, device="cuda")

        assert case.solve(partial(jitgen.combine, config=config)) == 0


def test_a_captured_chain_follows_its_inputs() -> None:
    """Rows there and back, one kernel behind the other: sums of a token's own copies."""
    tokens, top_k, columns = 64, 4, 512
    x = torch.randn(tokens, columns, device="cuda").bfloat16()
    ids = torch.randn(tokens, 16, device="cuda").topk(top_k).indices.int()

    def chain(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        offs, permutation, inverse = jitgen.sort_pairs(ids, experts=16, local_experts=12)
        y, _ = jitgen.permute_quantize(
            *(x, permutation),
            top_k=top_k,
            offs=offs,
            inverse=inverse,
            format="none",
        )
        return jitgen.combine(y, inverse, torch.ones(ids.shape, device="cuda"), shared=-x)

    chain(x, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(x, ids)
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(tokens, columns))
        ids.copy_(torch.randn(tokens, 16).topk(top_k).indices)
        graph.replay()

        local = (ids < 12).sum(1, keepdim=True)
        assert torch.equal(out, ((local - 1) * x.float()).bfloat16())
