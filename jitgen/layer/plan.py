# SPDX-License-Identifier: Apache-2.0
"""Which kernels a layer can ask for: its plan, whose rows follow from tokens and experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jitgen import plans
from jitgen.config import Arch, BLayout, Config, DType, Layout, ScaleGranularity
from jitgen.formats.prepared import PreparedWeights
from jitgen.formats.protocol import OF_TORCH
from jitgen.layer.chain import Chain
from jitgen.layer.weights import NONE, ExpertWeights, Matrices
from jitgen.ops.grouped_gemm.config import Problem
from jitgen.ops.silu_mul_quantize.config import Activation, Scales, SiluMulQuantizeProblem
from jitgen.plans import Plan
from jitgen.plans.sweep import Sweep
from jitgen.targets.devices import default_arch


def of(chain: Chain, max_tokens: int | None, *, name: str) -> Plan:
    """Return what `chain` can ask for with at most `max_tokens` tokens; None: with a chunk."""
    config, weights = chain.config, chain.weights
    tokens = min(max_tokens or config.chunk_tokens, config.chunk_tokens)
    most = max(1, -(-tokens * config.top_k // config.experts))
    problems = (
        _product(chain, weights.w13, 2 * weights.intermediate, weights.hidden, "w13"),
        SiluMulQuantizeProblem(
            layout=Layout.RAGGED,
            groups=weights.groups,
            m=weights.groups,
            n=weights.intermediate,
            scale_granularity=Scales(str(weights.activations)),
            activation=Activation(config.activation),
            interleaved=config.interleaved,
        ),
        _product(chain, weights.w2, weights.hidden, weights.intermediate, "w2"),
    )
    return Plan(
        name=name,
        description=f"{weights.groups} of {config.experts} experts, {config.top_k} for each token, "
        f"hidden size {config.hidden}, expert size {config.intermediate}",
        sweeps=tuple(Sweep(problem=problem, min_rows=1, max_rows=most) for problem in problems),
    )


def problems(plan: Plan, arch: Arch | str | None) -> Iterator[Any]:
    """Yield the problems of `plan` for a target."""
    yield from plan.problems(target(arch))


def configs(plan: Plan, arch: Arch | str | None) -> tuple[Config, ...]:
    """Return the configs of the kernels of `plan` for a target."""
    return plans.configs(plan, target(arch))


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
