# SPDX-License-Identifier: Apache-2.0
"""Which kernels a layer can ask for: its plan, whose rows follow from tokens and experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
from jitgen.errors import InputError
from jitgen.formats.prepared import PreparedWeights
from jitgen.formats.protocol import OF_TORCH
from jitgen.layer.chain import Chain
from jitgen.layer.weights import NONE, ExpertWeights, Matrices
from jitgen.ops.combine.config import CombineProblem
from jitgen.ops.grouped_gemm.config import Problem
from jitgen.ops.permute_quantize.config import Format, PermuteQuantizeProblem
from jitgen.ops.permute_quantize.validate import walk_of
from jitgen.ops.route.config import RouteProblem, Scoring
from jitgen.ops.silu_mul_quantize.config import Activation, Scales, SiluMulQuantizeProblem
from jitgen.plans import Plan
from jitgen.plans.sweep import Sweep
from jitgen.targets.devices import default_arch


def of(chain: Chain, max_tokens: int | None, arch: Arch | str | None, *, name: str) -> Plan:
    """
    Return what `chain` can ask for on a target.

    Args:
        chain: The chain.
        max_tokens: Most tokens of a call; None: those of a chunk.
        arch: The target, which says who gathers by what; None: the one at hand.
        name: What the plan is called.

    Raises:
        InputError: `max_tokens` is no such number.
    """
    config, weights = chain.config, chain.weights
    require_tokens(max_tokens)
    tokens = min(max_tokens or config.chunk_tokens, config.chunk_tokens)
    most = max(1, -(-tokens * config.top_k // config.experts))
    by_token = _of_tokens(chain, target(arch))
    return Plan(
        name=name,
        description=f"{weights.groups} of {config.experts} experts, {config.top_k} for each token, "
        f"hidden size {config.hidden}, expert size {config.intermediate}",
        sweeps=(
            *(Sweep(problem=each, min_rows=1, max_rows=tokens) for each in by_token),
            *(Sweep(problem=each, min_rows=1, max_rows=most) for each in _of_rows(chain)),
        ),
    )


def require_tokens(max_tokens: object) -> None:
    """Require a number of tokens, or None."""
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise InputError(
            "max_tokens", f"must be an integer of at least 1, or None (got {max_tokens!r})"
        )


def _of_tokens(chain: Chain, arch: Arch) -> Iterator[Any]:
    """Yield the problems whose rows are tokens, with one of them."""
    config, form = chain.config, Format(str(chain.weights.activations))
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
    for has_shared in (False, True):
        yield CombineProblem(m=1, n=config.hidden, top_k=config.top_k, has_shared=has_shared)


def _of_rows(chain: Chain) -> Iterator[Any]:
    """Yield the problems whose rows belong to experts, with one for each of them."""
    config, weights = chain.config, chain.weights
    yield _product(chain, weights.w13, 2 * weights.intermediate, weights.hidden, "w13")
    yield SiluMulQuantizeProblem(
        layout=Layout.RAGGED,
        groups=weights.groups,
        m=weights.groups,
        n=weights.intermediate,
        scale_granularity=Scales(str(weights.activations)),
        activation=Activation(config.activation),
        interleaved=config.interleaved,
    )
    yield _product(chain, weights.w2, weights.hidden, weights.intermediate, "w2")


def target(arch: Arch | str | None) -> Arch:
    """Return the target: the one that this process would use where none is named."""
    return default_arch() if arch is None else Arch.parse(arch)


def _product(chain: Chain, b: Matrices, n: int, k: int, name: str) -> Problem:
    """Return the grouped GEMM with `b`, with one row for each expert."""
    weights = chain.weights
    fields = _prepared(weights) if isinstance(b, PreparedWeights) else _plain(b, weights)
    return Problem(
        layout=Layout.RAGGED,
        groups=weights.groups,
        m=weights.groups,
        n=n,
        k=k,
        bias=getattr(weights, f"{name}_bias") is not None,
        min_latency=chain.config.min_latency,
        **fields,
    )


def _plain(b: Any, weights: ExpertWeights) -> dict[str, Any]:
    is_unscaled = weights.activations == NONE
    granularity = ScaleGranularity.TENSOR if is_unscaled else weights.activations
    return {"a_dtype": OF_TORCH[b.dtype], "scale_granularity": granularity}


def _prepared(weights: ExpertWeights) -> dict[str, Any]:
    b = weights.w13
    layout = b.layout if isinstance(b, PreparedWeights) else BLayout.PLAIN
    return {
        "a_dtype": OF_TORCH[weights.a_dtype],
        "b_dtype": DType.E2M1,
        "scale_granularity": ScaleGranularity.MX32,
        "a_scale_granularity": weights.activations,
        "b_layout": layout,
    }
