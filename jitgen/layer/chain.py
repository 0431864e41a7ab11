# SPDX-License-Identifier: Apache-2.0
"""
The chain of launches. Each launch is a method, so that benchmarks can time them one by one.

A chain has the weights and sizes of a layer. It reads no value from the device and allocates by
torch's allocator, so it can run while a CUDA graph is captured, if its kernels are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config.format import Format
from jitgen.layer import one_launch as at_once
from jitgen.layer.config import MoEConfig
from jitgen.layer.early import ACTIVATION, ADAPTERS, JOINED, SHARED, WEIGHTED, configs_of
from jitgen.layer.lora import Adapters, ExpertLora, needs_activation
from jitgen.layer.weights import NONE, ExpertWeights, Matrices
from jitgen.layer.workspace import NEW, Buffers, Lease
from jitgen.ops.activation_quantize.call import activation_quantize
from jitgen.ops.combine.call import combine
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatcher import is_traced, require_plain
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.permute_quantize.call import permute_quantize
from jitgen.ops.permute_quantize.copying import copy_rows
from jitgen.ops.permute_quantize.sorting import sort_quantize
from jitgen.ops.permute_quantize.taking import take_rows
from jitgen.ops.route.call import sort_pairs
from jitgen.ops.route.results import Sorting
from jitgen.support.frozen import frozen

_PARTS = {"route", "permute_quantize"}
"""Operations: if one of them has an explicit config, sorting and quantising are two launches."""

Rows = tuple[Tensor, Tensor | None]
"""Input of a product, and its scales."""


class Counts(NamedTuple):
    """
    Numbers of valid rows of the experts in the masked layout, in which every expert has a matrix.

    Attributes:
        masked_m: (G,) int32, number of valid rows of each matrix.
        expected_m: Expected number of valid rows of a matrix, for choosing kernels; None: all rows.
    """

    masked_m: Tensor
    expected_m: int | None = None


@frozen
class Chain:
    """
    The launches of a call.

    Attributes:
        config: The layer.
        weights: Its experts on this rank.
        configs: Configs to use instead of those that the selector chooses: for products by the
            names ``gate_up`` and ``down``, for other launches by the name of their operation or a
            name in `jitgen.layer.early`.
        starts_early: Whether launches for few tokens start before the previous launch ends, where
            that is faster: see `jitgen.layer.early`.
        joins: Whether one launch sorts and gathers, where that is faster.
        one_launch: Whether calls of few tokens take one launch: see `jitgen.MoELayer`.
    """

    config: MoEConfig
    weights: ExpertWeights
    configs: Mapping[str, Any] = field(default_factory=dict)
    starts_early: bool = True
    joins: bool = True
    one_launch: bool | None = False

    def for_tokens(
        self, tokens: int, *, is_sorted: bool = False, lora: ExpertLora | None = None
    ) -> Chain:
        """
        Return the chain with the configs of its launches for `tokens` tokens, whose pairs may be
        sorted already, and which may have adapters.
        """
        if not self.starts_early:
            return self
        joins = self.may_join and not is_sorted
        found = configs_of(self.config, self.weights, tokens, joins=joins, lora=lora)
        return replace(self, configs={**found, **self.configs}) if found else self

    @property
    def may_join(self) -> bool:
        """Whether sorting may be part of another launch: no config for its own one is given."""
        return self.joins and not _PARTS & self.configs.keys()

    def sort(self, topk_ids: Tensor) -> Sorting:
        """Sort the pairs of `topk_ids`, (T, k) int32, by expert."""
        config = self.config
        return sort_pairs(
            topk_ids,
            experts=config.experts,
            first_expert=config.first_expert,
            local_experts=config.local_experts,
            config=self.configs.get("route"),
        )

    def gather(self, x: Tensor, pairs: Sorting, into: Buffers = NEW) -> Rows:
        """Return the token of each row, (T * k, H), quantised for the first product."""
        return permute_quantize(
            x,
            pairs.permutation,
            top_k=self.config.top_k,
            offs=pairs.offs,
            inverse=pairs.inverse,
            format=str(self.weights.activation_format),
            out=into.a,
            config=self.configs.get("permute_quantize"),
        )

    def sort_and_gather(
        self, x: Tensor, topk_ids: Tensor, into: Buffers = NEW
    ) -> tuple[Sorting, Rows]:
        """Return the results of `sort` and `gather`, computed in one launch if that is faster."""
        joined = self.configs.get(JOINED)
        if joined is None:
            pairs = self.sort(topk_ids)
            return pairs, self.gather(x, pairs, into)
        config = self.config
        found = sort_quantize(
            x,
            topk_ids,
            experts=config.experts,
            first_expert=config.first_expert,
            local_experts=config.local_experts,
            format=str(self.weights.activation_format),
            out=into.a,
            config=joined,
        )
        return found.order, (found.q, found.scale)

    def quantise(self, x: Tensor, counts: Counts, order: Tensor, into: Buffers = NEW) -> Rows:
        """
        Return matrices of tokens, (G, M, H) contiguous, quantised for the first product. `order` is
        (G, M) int32, the numbers from 0 on, because no row moves.
        """
        return permute_quantize(
            x.view(-1, self.weights.hidden),
            order,
            top_k=1,
            masked_m=counts.masked_m,
            expected_m=counts.expected_m,
            format=str(self.weights.activation_format),
            out=into.a,
        )

    def gate_up(self, rows: Rows, pairs: Sorting | Counts, into: Buffers = NEW) -> Tensor:
        """
        Return the first product: (T * k, 2 I) bfloat16, or (G, M, 2 I) of matrices; I columns
        without gates.
        """
        weights = self.weights
        bias = weights.w13_bias
        b = weights.w13, weights.w13_scale, bias
        return self._multiply(rows, b, pairs, into.h, "gate_up")

    def activate(self, h: Tensor, pairs: Sorting | Counts, into: Buffers = NEW) -> Rows:
        """Return the activation, quantised for the second product."""
        return activation_quantize(
            h,
            format=str(self.weights.activation_format),
            out=into.q,
            config=self.configs.get("activation_quantize"),
            **self._groups(pairs),
            **self.config.gate,
            group_numbers=self.weights.group_numbers,
        )

    def activation(self, h: Tensor, pairs: Sorting) -> Tensor:
        """Return the activation, not quantised: (T * k, I) bfloat16."""
        found, _ = activation_quantize(
            h,
            format=NONE,
            config=self.configs.get(ACTIVATION),
            **self._groups(pairs),
            **self.config.gate,
            group_numbers=self.weights.group_numbers,
        )
        return found

    def adapted(
        self,
        x: Tensor,
        rows: Rows,
        topk_ids: Tensor,
        pairs: Sorting,
        adapters: Adapters,
        into: Buffers = NEW,
    ) -> Tensor:
        """
        Run both products and the activation on quantised `rows`, and add the adapters to both
        products; return the result of the second one, (T * k, H) bfloat16.
        """
        of_pairs = topk_ids, pairs, self.config
        up, down = (self.configs.get(name) for name in ADAPTERS)
        h = adapters.add("w13", self.gate_up(rows, pairs, into), x, *of_pairs, up)
        exact = self.activation(h, pairs) if needs_activation(self.weights, adapters.lora) else None
        active = self.activate(h, pairs, into)
        y = self.down(active, pairs, into)
        exact = active[0] if exact is None else exact
        return adapters.add("w2", y, exact, *of_pairs, down)

    def down(self, rows: Rows, pairs: Sorting | Counts, into: Buffers = NEW) -> Tensor:
        """Return the second product: (T * k, H) bfloat16, or (G, M, H) of matrices."""
        weights = self.weights
        b = weights.w2, weights.w2_scale, weights.w2_bias
        return self._multiply(rows, b, pairs, into.y, "down")

    def combine(
        self,
        y: Tensor,
        pairs: Sorting,
        topk_weights: Tensor,
        shared: Tensor | None = None,
        out: Tensor | None = None,
        shared_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum of each token's rows: (T, H) bfloat16."""
        name = "combine" if shared is None else SHARED
        return combine(
            y,
            pairs.inverse,
            topk_weights,
            shared=shared,
            out=out,
            config=self.configs.get(name if shared_weights is None else WEIGHTED),
            shared_weights=shared_weights,
        )

    def run(  # noqa: PLR0913, PLR0917  # a token's way
        self,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared: Tensor | None,
        out: Tensor | None,
        into: Buffers = NEW,
        sorting: Sorting | None = None,
        shared_weights: Tensor | None = None,
        adapters: Adapters | None = None,
    ) -> Tensor:
        """
        Run every launch for tokens that fit in one pass; `sorting` is the sorting of their pairs,
        if known.
        """
        lora = None if adapters is None else adapters.lora
        chain = self.for_tokens(x.shape[0], is_sorted=sorting is not None, lora=lora)
        y, pairs = chain.expert_rows(x, topk_ids, into, sorting, adapters)
        if self.config.adds_tokens:
            shared, shared_weights = x, self.token_weights(topk_weights, topk_ids)
        return chain.combine(y, pairs, topk_weights, shared, out, shared_weights)

    def expert_rows(
        self,
        x: Tensor,
        topk_ids: Tensor,
        into: Buffers = NEW,
        sorting: Sorting | None = None,
        adapters: Adapters | None = None,
        scale: Tensor | None = None,
        link: Link | None = None,
    ) -> tuple[Tensor, Sorting]:
        """
        Return the results of the local experts for their tokens, and the sorting that says which
        rows these are. `scale` are the scales of `x` if that is quantised already. With `link`,
        tokens are in its inbox, sorted, and `x` is not used.
        """
        rows: Rows
        if link is not None and sorting is not None:
            pairs, form = sorting, Format(str(self.weights.activation_format))
            rows = take_rows(link, pairs.inverse, self.weights.hidden, form=form, out=into.a)
        elif scale is not None:
            pairs = self.sort(topk_ids) if sorting is None else sorting
            form = Format(str(self.weights.activation_format))
            order = pairs.inverse, pairs.permutation
            rows = copy_rows(x, scale, *order, form=form, out=into.a)
        elif sorting is None:
            pairs, rows = self.sort_and_gather(x, topk_ids, into)
        else:
            pairs, rows = sorting, self.gather(x, sorting, into)
        if adapters is not None:
            return self.adapted(x, rows, topk_ids, pairs, adapters, into), pairs
        h = self.gate_up(rows, pairs, into)
        return self.down(self.activate(h, pairs, into), pairs, into), pairs

    def token_weights(self, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        """
        Return for each token the sum of its router weights for experts without weights, (T,)
        float32. It is computed in float64, in which it is exact in every order.
        """
        config = self.config
        is_token = (topk_ids >= config.experts) & (topk_ids < config.every)
        return topk_weights.where(is_token, 0.0).sum(1, dtype=torch.float64).float()

    def run_in_chunks(  # noqa: PLR0913, PLR0917  # likewise
        self,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        shared: Tensor | None,
        out: Tensor | None,
        lease: Lease,
        sorting: Sorting | None = None,
        shared_weights: Tensor | None = None,
        adapters: Adapters | None = None,
    ) -> Tensor:
        """
        Run chunks of tokens one after another, each with as many tokens as the layer and its memory
        allow. A sorting of all tokens is not used for chunks.
        """
        exchange, added = lease.exchange, (shared, shared_weights, out)
        if exchange is not None and adapters is None and self._takes_one_launch(x, added, lease):
            first = self.config.first_expert
            return at_once.run(self.weights, x, topk_weights, topk_ids, exchange, first, added)
        tokens, most = x.shape[0], self.config.chunk_tokens
        if lease.tokens is not None:
            most = min(most, lease.tokens)
        if tokens and tokens <= most:  # without five views
            into = lease.buffers(tokens)
            more = into, sorting, shared_weights, adapters
            return self.run(x, topk_weights, topk_ids, shared, out, *more)
        out = x.new_empty(x.shape) if out is None else out
        given = {"x": x, "topk_weights": topk_weights, "topk_ids": topk_ids, "out": out}
        if not (is_compiling() or is_traced(given.values())):
            extra = {"shared": shared, "shared_weights": shared_weights}
            require_plain(given | {name: each for name, each in extra.items() if each is not None})
        for first in range(0, tokens, most):
            part = slice(first, min(first + most, tokens))
            self.run(
                x[part],
                topk_weights[part],
                topk_ids[part],
                None if shared is None else shared[part],
                out[part],
                lease.buffers(part.stop - part.start),
                shared_weights=None if shared_weights is None else shared_weights[part],
                adapters=None if adapters is None else adapters.part(part),
            )
        return out

    def _takes_one_launch(self, x: Tensor, added: at_once.Added, lease: Lease) -> bool:
        """Say whether a call takes one launch, for which the memory has room for all tokens."""
        if lease.tokens is not None and x.shape[0] > lease.tokens:
            return False
        always = self.one_launch is True
        return at_once.may_run(x, *added) and at_once.serves(
            self.config, self.weights, x.shape[0], added, always=always
        )

    def _multiply(
        self,
        rows: Rows,
        b: tuple[Matrices, Tensor | None, Tensor | None],
        pairs: Sorting | Counts,
        out: Tensor | None,
        launch: str,
    ) -> Tensor:
        """
        Multiply the rows of each expert by its matrix in `b`, which is weights, scales and bias.
        """
        (a, a_scale), (weights, scale, bias) = rows, b
        named: dict[str, Any] = {} if bias is None else {"bias": bias}
        return grouped_gemm(
            a,
            weights,
            a_scale,
            scale,
            out=out,
            min_latency=self.config.min_latency,
            numerics=self.config.numerics,
            config=self.configs.get(launch),
            **self._groups(pairs),
            **named,
        )

    def _groups(self, pairs: Sorting | Counts) -> dict[str, Any]:
        """Return the arguments of a launch that give groups their rows."""
        if isinstance(pairs, Counts):
            return pairs._asdict()
        expected = self.config.expected_rows(pairs.inverse.shape[0])
        return {"offs": pairs.offs, "expected_m": expected}
