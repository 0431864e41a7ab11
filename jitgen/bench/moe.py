# SPDX-License-Identifier: Apache-2.0
"""
A small mixture-of-experts layer in FP8: what `jitgen demo` runs, and a model of how the pieces fit.

Tokens are sorted by expert, multiplied with the up-projections, gated (SwiGLU), quantised again,
multiplied with the down-projections, and added up by their routing weights. The grouped GEMM is a
parameter, so that the same code runs on kernels and on the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from jitgen import quantize
from jitgen.frozen import frozen

Gemm = Callable[..., Tensor]
"""`jitgen.grouped_gemm`, or anything that takes the same arguments."""


@frozen
class Sizes:
    """
    Sizes of a layer.

    Attributes:
        tokens: Rows of the input.
        hidden: Columns of the input and of the output.
        intermediate: Columns between the two projections.
        experts: Number of experts.
        top: Experts that each token goes to.
    """

    tokens: int
    hidden: int
    intermediate: int
    experts: int = 8
    top: int = 2

    @property
    def rows(self) -> int:
        """Rows of the grouped GEMMs: every token once for each of its experts."""
        return self.tokens * self.top


@frozen
class Projection:
    """
    One linear layer of every expert, quantised.

    Attributes:
        weights: (E, N, K) float8_e4m3fn.
        scales: (E, ceil(N / 128), ceil(K / 128)) float32.
    """

    weights: Tensor
    scales: Tensor


@frozen
class Routing:
    """
    Which token goes where.

    Attributes:
        tokens: (rows,) int64; the token of each row, rows sorted by expert.
        weights: (rows, 1) float32; what the row counts in its token's sum.
        offs: (E,) int32; the row behind the last of each expert.
    """

    tokens: Tensor
    weights: Tensor
    offs: Tensor


@frozen
class Layer:
    """A layer with random weights, a batch of tokens and its routing."""

    sizes: Sizes
    x: Tensor
    up: Projection
    down: Projection
    routing: Routing

    @classmethod
    def random(cls, sizes: Sizes, device: str, seed: int = 0) -> Layer:
        """Return a layer on `device` whose weights keep the size of what passes through them."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            values = torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
            return values.to(device)

        experts, hidden, intermediate = sizes.experts, sizes.hidden, sizes.intermediate
        x = normal(sizes.tokens, hidden) * math.sqrt(hidden)
        return cls(
            sizes=sizes,
            x=x,
            up=_projection(normal(experts, 2 * intermediate, hidden)),
            down=_projection(normal(experts, hidden, intermediate)),
            routing=route(x @ normal(experts, hidden).T, sizes.top),
        )

    def up_input(self) -> tuple[Tensor, Tensor]:
        """Return the permuted rows, quantised: (rows, hidden) float8_e4m3fn, and their scales."""
        return quantize.per_token_group(self.x[self.routing.tokens])

    def multiply(
        self,
        gemm: Gemm,
        projection: Projection,
        rows: tuple[Tensor, Tensor],
        out: Tensor | None = None,
    ) -> Tensor:
        """Return quantised `rows` times the experts' `projection`: (rows, N) bfloat16."""
        a, a_scale = rows
        offs = self.routing.offs
        return gemm(a, projection.weights, a_scale, projection.scales, offs=offs, out=out)

    def down_input(self, up: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of the up-projection gated and quantised, and its scales."""
        gate, value = up.float().chunk(2, dim=-1)
        return quantize.per_token_group(torch.nn.functional.silu(gate) * value)

    def combine(self, down: Tensor) -> Tensor:
        """Return the weighted sum of each token's rows: (tokens, hidden) float32."""
        weighted = down.float() * self.routing.weights
        out = torch.zeros_like(self.x)
        out.index_add_(0, self.routing.tokens, weighted)
        return out

    def forward(self, gemm: Gemm) -> Tensor:
        """Return the output of the layer: (tokens, hidden) float32."""
        up = self.multiply(gemm, self.up, self.up_input())
        return self.combine(self.multiply(gemm, self.down, self.down_input(up)))


def route(logits: Tensor, top: int) -> Routing:
    """Send each token to the `top` experts with the largest of `logits`: (tokens, E) float32."""
    tokens, experts = logits.shape
    weights, chosen = logits.softmax(dim=-1).topk(top, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    expert, order = chosen.flatten().sort(stable=True)
    return Routing(
        tokens=torch.arange(tokens, device=logits.device).repeat_interleave(top)[order],
        weights=weights.flatten()[order].unsqueeze(-1),
        offs=torch.bincount(expert, minlength=experts).cumsum(0).to(torch.int32),
    )


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a part of the largest expected value."""
    found, expected = found.float(), expected.float()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def _projection(weights: Tensor) -> Projection:
    quantised, scales = quantize.per_block(weights)
    return Projection(weights=quantised, scales=scales)
