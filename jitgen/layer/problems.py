# SPDX-License-Identifier: Apache-2.0
"""
The problems of a chain's launches, each with one row or one token; callers fill in the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.config.activation_backward import ActivationBackwardProblem
from jitgen.config.activation_quantize import Activation, ActivationQuantizeProblem
from jitgen.config.combine import CombineProblem
from jitgen.config.combine_ranks import CombineRanksProblem
from jitgen.config.dispatch import DispatchProblem
from jitgen.config.format import Format
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradProblem
from jitgen.config.permute_quantize import TAKEN, PermuteQuantizeProblem, Walk
from jitgen.config.route import RouteProblem, Scoring
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import OF_TORCH
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights, Matrices
from jitgen.ops.grouped_gemm.gradients import BIAS_COLUMNS
from jitgen.ops.permute_quantize.validate import walk_of
from jitgen.selection.numerics import is_invariant
from jitgen.targets.early import joins


def of_tokens(config: MoEConfig, weights: ExpertWeights, arch: Arch) -> Iterator[Any]:
    """Yield the problems whose rows are tokens; each has one token, and a plan varies that."""
    form = Format(str(weights.activation_format))
    yield RouteProblem(
        m=1,
        experts=config.experts,
        top_k=config.top_k,
        scoring=Scoring.GIVEN,
        local_experts=config.local_experts,
    )
    yield PermuteQuantizeProblem(
        layout=Layout.RAGGED,
        m=1,
        k=config.hidden,
        top_k=config.top_k,
        format=form,
        walk=walk_of(form, Layout.RAGGED, torch.empty(0), arch),  # every call has an inverse
    )
    sums = CombineProblem(m=1, n=config.hidden, top_k=config.top_k)
    shared = replace(sums, has_shared=True)
    yield from (sums, shared, replace(shared, is_weighted=True))


def sent_as(config: MoEConfig, weights: ExpertWeights) -> Format:
    """
    Return the format in which ranks send tokens if they quantise them first: that of the first
    product's rows if these are float8 with float32 scales, and no expert returns the token itself.
    """
    form = Format(str(weights.activation_format))
    is_sent = form.has_float_scales and not config.zero_experts and config.hidden % 16 == 0
    return form if is_sent else Format.NONE


def copied(config: MoEConfig, form: Format) -> PermuteQuantizeProblem:
    """Return the problem of gathering rows of tokens that were sent as `form`, with one token."""
    kind = {"layout": Layout.RAGGED, "format": form, "walk": Walk.COPY}
    return PermuteQuantizeProblem(m=1, k=config.hidden, top_k=config.top_k, **kind)  # type: ignore[arg-type]


def between_ranks(
    config: MoEConfig,
    num_ranks: int,
    *,
    can_mask: bool,
    form: Format = Format.NONE,
    by_flags: bool = False,
) -> Iterator[Any]:
    """
    Yield the problems of exchanging rows between ranks, with one token of each rank, sent as
    `form`.
    """
    both: dict[str, Any] = {"m": 1, "ranks": num_ranks, "can_mask": can_mask}
    both["by_flags"] = by_flags
    yield DispatchProblem(k=config.hidden, top_k=config.top_k, format=form, **both)
    of_experts = is_invariant(config.numerics)
    sums = CombineRanksProblem(n=config.hidden, of_experts=of_experts, **both)
    shared = replace(sums, has_shared=True)
    yield from (sums, shared, replace(shared, is_weighted=True))


def taken_problem(config: MoEConfig, weights: ExpertWeights) -> PermuteQuantizeProblem | None:
    """
    Return the problem of gathering rows of tokens from an inbox, with one token; None if tokens
    must be in memory: where experts return the token itself, and for other formats of rows.
    """
    form = Format(str(weights.activation_format))
    if form not in TAKEN or config.zero_experts or config.hidden % 16:
        return None
    kind = {"layout": Layout.RAGGED, "format": form, "walk": Walk.TAKE}
    return PermuteQuantizeProblem(m=1, k=config.hidden, top_k=config.top_k, **kind)  # type: ignore[arg-type]


def sorted_problem(
    config: MoEConfig,
    weights: ExpertWeights,
    num_ranks: int,
    arch: Arch,
    *,
    can_mask: bool,
    form: Format = Format.NONE,
) -> DispatchProblem | None:
    """
    Return the problem of the launch that sends the tokens of ranks and sorts the received pairs,
    with one token of each rank; None on targets where another launch sorts: all but the one on
    which such launches were measured.
    """
    if not joins(arch):
        return None
    may_leave = form is Format.NONE and not can_mask
    return DispatchProblem(
        m=1,
        k=config.hidden,
        top_k=config.top_k,
        ranks=num_ranks,
        format=form,
        can_mask=can_mask,
        experts=config.groups,
        leaves=may_leave and taken_problem(config, weights) is not None,
    )


def joined_problem(
    config: MoEConfig, weights: ExpertWeights, arch: Arch
) -> PermuteQuantizeProblem | None:
    """
    Return the problem of the launch that sorts pairs and gathers their rows, with one token; None
    if two launches do it: for formats with scales in atoms, and on all targets except the one where
    a single launch was measured to be faster.
    """
    form = Format(str(weights.activation_format))
    if not joins(arch) or form.has_atoms:
        return None
    return PermuteQuantizeProblem(
        layout=Layout.RAGGED,
        m=1,
        k=config.hidden,
        top_k=config.top_k,
        format=form,
        walk=Walk.SORT,
    )


def of_matrices(config: MoEConfig, weights: ExpertWeights) -> Iterator[Any]:
    """Yield the problems of experts that have a matrix each, with one row in each of them."""
    form = Format(str(weights.activation_format))
    if form is not Format.NONE:  # for tokens that come in bfloat16
        yield PermuteQuantizeProblem(
            layout=Layout.MASKED, m=weights.groups, k=config.hidden, top_k=1, format=form
        )
    yield from of_rows(config, weights, Layout.MASKED)


def of_rows(
    config: MoEConfig, weights: ExpertWeights, layout: Layout = Layout.RAGGED
) -> Iterator[Any]:
    """Yield the problems whose rows belong to experts, in their order, with one row for each."""
    yield _product(config, weights, "w13", layout)
    yield ActivationQuantizeProblem(
        layout=layout,
        groups=weights.groups,
        m=weights.groups,
        n=weights.intermediate,
        scale_granularity=Format(str(weights.activation_format)),
        activation=Activation(config.activation),
        interleaved=config.interleaved,
        per_group=config.per_group,
    )
    yield _product(config, weights, "w2", layout)


def of_gradients(config: MoEConfig, weights: ExpertWeights) -> Iterator[Any]:
    """Yield the problems of the gradients of bfloat16 experts, with one row for each."""
    for name in ("w13", "w2"):
        product = _product(config, weights, name, Layout.RAGGED)
        is_plain = product.b_layout is BLayout.PLAIN
        yield replace(
            product,
            n=product.k,
            k=product.n,
            b_layout=BLayout.N_MAJOR if is_plain else BLayout.PLAIN,
            bias=False,
            min_latency=None,
        )
        of_weights = GroupedGemmWgradProblem(
            layout=Layout.RAGGED, groups=product.groups, m=product.m, n=product.n, k=product.k
        )
        yield of_weights
        if product.bias:
            yield replace(of_weights, k=BIAS_COLUMNS, out_dtype=DType.F32)
    yield ActivationBackwardProblem(
        layout=Layout.RAGGED,
        groups=weights.groups,
        m=weights.groups,
        n=weights.intermediate,
        activation=Activation(config.activation),
        interleaved=config.interleaved,
    )


def _product(
    config: MoEConfig, weights: ExpertWeights, name: str, layout: Layout
) -> GroupedGemmProblem:
    """Return the grouped GEMM with ``w13`` or ``w2``, with one row for each expert."""
    b: Matrices = getattr(weights, name)
    n, k = weights.between, weights.hidden
    if name == "w2":
        n, k = weights.hidden, weights.intermediate
    fields = _prepacked(b, weights) if isinstance(b, PrepackedWeights) else _plain(b, weights)
    return GroupedGemmProblem(
        layout=layout,
        groups=weights.groups,
        m=weights.groups,
        n=n,
        k=k,
        bias=getattr(weights, f"{name}_bias") is not None,
        min_latency=config.min_latency,
        numerics=config.numerics,  # type: ignore[arg-type]  # a text, which the field converts
        **fields,
    )


def _plain(b: Any, weights: ExpertWeights) -> dict[str, Any]:
    is_unscaled = weights.activation_format == NONE
    granularity = ScaleGranularity.TENSOR if is_unscaled else weights.activation_format
    is_plain = b.shape[2] == 1 or b.stride(2) == 1
    return {
        "a_dtype": OF_TORCH[b.dtype],
        "scale_granularity": granularity,
        "b_layout": BLayout.PLAIN if is_plain else BLayout.N_MAJOR,
    }


def _prepacked(b: PrepackedWeights, weights: ExpertWeights) -> dict[str, Any]:
    facts = b.format.facts
    return {
        "a_dtype": OF_TORCH[weights.a_dtype],
        "b_dtype": facts.b_dtype,
        "scale_granularity": facts.scale_granularity,
        "a_scale_granularity": weights.activation_format,
        "b_layout": b.layout,
    }
