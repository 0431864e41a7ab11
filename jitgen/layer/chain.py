# SPDX-License-Identifier: Apache-2.0
"""
The chain of launches: each one a method, so that a bench can time them one by one.

A chain knows its weights and sizes. It looks at no value on the device and allocates as torch does,
so that it runs inside the capture of a CUDA graph, once its kernels are loaded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from jitgen.frozen import frozen
from jitgen.layer import steps
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights, Matrices
from jitgen.layer.workspace import NEW, Buffers, Workspace
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.silu_mul_quantize.call import silu_mul_quantize


class Sorted(NamedTuple):
    """
    Pairs of token and slot by expert.

    Attributes:
        offs: (G,) int32, the row behind the last of each expert.
        permutation: (T * k,) int32, the pair in each row, -1 behind the last expert.
        inverse: (T, k) int32, the row of each pair, -1 where its expert is elsewhere.
    """

    offs: Tensor
    permutation: Tensor
    inverse: Tensor


Rows = tuple[Tensor, Tensor | None]
"""What a product reads, and its scales."""


@frozen
class Chain:
    """
    What runs for the tokens of a call.

    Attributes:
        config: The layer.
        weights: Its experts on this rank.
    """

    config: MoEConfig
    weights: ExpertWeights

    def sort(self, topk_ids: Tensor) -> Sorted:
        """Return which rows belong to which expert: `topk_ids` are (T, k) int32."""
        config = self.config
        return Sorted(
            *steps.sort_pairs(
                topk_ids,
                experts=config.experts,
                first_expert=config.first_expert,
                local_experts=config.local_experts,
            )
        )

    def gather(self, x: Tensor, pairs: Sorted) -> Rows:
        """Return the token of each row, (T * k, H), quantised as the first product reads it."""
        return steps.permute_quantize(
            x,
            pairs.permutation,
            top_k=self.config.top_k,
            offs=pairs.offs,
            scale_granularity=str(self.weights.activations),
        )

    def gate_up(self, rows: Rows, pairs: Sorted, into: Buffers = NEW) -> Tensor:
        """Return the first product: (T * k, 2 I) bfloat16."""
        weights = self.weights
        bias = weights.w13_bias
        return self._multiply(rows, (weights.w13, weights.w13_scale, bias), pairs, into.h)

    def activate(self, h: Tensor, pairs: Sorted, into: Buffers = NEW) -> Rows:
        """Return gates times ups, (T * k, I), quantised as the second product reads them."""
        return silu_mul_quantize(
            h,
            offs=pairs.offs,
            scale_granularity=str(self.weights.activations),
            out=into.q,
            expected_m=self._expected(pairs),
            **self.config.gate,
        )

    def down(self, rows: Rows, pairs: Sorted, into: Buffers = NEW) -> Tensor:
        """Return the second product: (T * k, H) bfloat16."""
        weights = self.weights
        return self._multiply(rows, (weights.w2, weights.w2_scale, weights.w2_bias), pairs, into.y)

    def combine(
        self,
        y: Tensor,
        pairs: Sorted,
        topk_weights: Tensor,
        shared: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of each token's rows: (T, H) bfloat16."""
        return steps.combine(y, pairs.inverse, topk_weights, shared=shared, out=out)

    def run(  # a token's way
        self,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared: Tensor | None,
        out: Tensor,
        into: Buffers = NEW,
    ) -> Tensor:
        """Run every launch for tokens that go through at once."""
        pairs = self.sort(topk_ids)
        h = self.gate_up(self.gather(x, pairs), pairs, into)
        y = self.down(self.activate(h, pairs, into), pairs, into)
        return self.combine(y, pairs, topk_weights, shared, out)

    def run_in_chunks(  # likewise
        self,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared: Tensor | None,
        out: Tensor,
        workspace: Workspace | None,
    ) -> Tensor:
        """Run chunk after chunk, as many tokens at once as the layer and the workspace allow."""
        tokens, most = x.shape[0], self.config.chunk_tokens
        if workspace is not None:
            most = min(most, workspace.tokens)
        for first in range(0, tokens, most):
            part = slice(first, min(first + most, tokens))
            size = part.stop - part.start
            self.run(
                x[part],
                topk_weights[part],
                topk_ids[part],
                None if shared is None else shared[part],
                out[part],
                NEW if workspace is None else workspace.buffers(size),
            )
        return out

    def _multiply(
        self,
        rows: Rows,
        b: tuple[Matrices, Tensor | None, Tensor | None],
        pairs: Sorted,
        out: Tensor | None,
    ) -> Tensor:
        """Multiply the rows of each expert with its matrix of `b`: weights, scales, bias."""
        (a, a_scale), (weights, scale, bias) = rows, b
        named: dict[str, Any] = {} if bias is None else {"bias": bias}
        return grouped_gemm(
            a,
            weights,
            a_scale,
            scale,
            offs=pairs.offs,
            out=out,
            expected_m=self._expected(pairs),
            min_latency=self.config.min_latency,
            **named,
        )

    def _expected(self, pairs: Sorted) -> int | None:
        return self.config.expected_rows(pairs.inverse.shape[0])
