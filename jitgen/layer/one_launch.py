# SPDX-License-Identifier: Apache-2.0
"""
Calls with few tokens that make one launch instead of a chain of launches, if the layer requests it.

The CTAs of this launch wait for each other. So two such launches must not run on a GPU at the same
time. A layer cannot detect that, so it must be requested explicitly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config import Arch, Numerics
from jitgen.config.activation_quantize import Activation
from jitgen.config.moe_decode import MOST_EXPERTS, MOST_PAIRS, MOST_TOKENS, MoeDecodeProblem
from jitgen.errors import UnsupportedConfig
from jitgen.layer.config import MoEConfig
from jitgen.layer.early import may_be_asked_for
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.dispatcher import is_traced
from jitgen.ops.moe_decode.call import moe_decode
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.moe_decode.validate import COLUMNS_OF_CTA, Experts
from jitgen.runtime import devices
from jitgen.runtime.session import current
from jitgen.settings import settings
from jitgen.targets.legality import target

FASTER_TOKENS = 4
"""
Most tokens for which one launch is chosen automatically. On an H200, measured on 2026-11-29, it
took 0.61 to 0.95 of the chain's time for 1, 2 and 4 tokens of five layers, of 25 MB to 1.3 GB of
chosen weights, and 0.83 to 1.02 of it for 8 tokens.
"""


def most_tokens(config: MoEConfig) -> int:
    """Return the most tokens of a call in one launch: those of 64 pairs, and at most 8."""
    return min(MOST_TOKENS, MOST_PAIRS // config.top_k)


def problem_of(config: MoEConfig, weights: ExpertWeights, tokens: int) -> MoeDecodeProblem | None:
    """
    Return the problem of a call in one launch; None if no kernel supports the layer. Kernels
    support FP8 weights with scales of blocks, gates before ups, and SwiGLU, without biases, and
    fast numerics.
    """
    tensors = weights.tensors
    is_plain = (
        str(weights.activation_format) == "block128"
        and tensors.keys() == set(Experts._fields)
        and tensors["w13"].dtype is torch.float8_e4m3fn
        and all(each.stride(-1) == 1 for each in tensors.values())
    )
    is_usual = config.activation == Activation.SWIGLU and not config.interleaved
    is_fast = Numerics(config.numerics or settings.numerics) is Numerics.FAST
    is_few = 0 < tokens <= most_tokens(config) and weights.groups <= MOST_EXPERTS
    if not (is_plain and is_usual and is_fast and is_few) or config.zero_experts:
        return None
    return MoeDecodeProblem(
        m=tokens,
        experts=weights.groups,
        top_k=min(config.top_k, weights.groups),
        hidden=config.hidden,
        intermediate=config.intermediate,
    )


Added = tuple[Tensor | None, Tensor | None, Tensor | None]
"""The output of a shared expert, its weights, and the tensor for the result."""


def is_chosen(problem: MoeDecodeProblem, *, always: bool) -> bool:
    """Say whether one launch is used: because it is faster than the chain, or always."""
    return always or problem.m <= FASTER_TOKENS


def serves(
    config: MoEConfig, weights: ExpertWeights, tokens: int, added: Added, *, always: bool
) -> bool:
    """Say whether a call uses one launch on the device of the weights."""
    problem = problem_of(config, weights, tokens)
    if problem is None or not is_chosen(problem, always=always):
        return False
    problem = replace(problem, has_shared=added[0] is not None, is_weighted=added[1] is not None)
    session = current.get()
    device = devices.find(weights.device, session, "w13")
    if problem.op not in target(device.arch).operations:
        return False
    if problem.hidden > COLUMNS_OF_CTA * device.tail[0]:
        return False
    try:
        chosen = session.select(problem, device.arch).config
    except UnsupportedConfig:  # sizes that no kernel takes
        return False
    return may_be_asked_for(chosen, device.arch)


def run(
    weights: ExpertWeights,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    exchange: Exchange,
    first_expert: int,
    added: Added,
) -> Tensor:
    """Compute a call for which one launch `serves`."""
    tensors = weights.tensors
    experts = Experts(*(tensors[name] for name in Experts._fields))
    shared, shared_weights, out = added
    return moe_decode(
        x,
        topk_ids,
        topk_weights,
        experts,
        exchange,
        first_expert=first_expert,
        shared=shared,
        shared_weights=shared_weights,
        out=out,
    )


def may_run(*given: Tensor | None) -> bool:
    """Say whether no tracer records the call; the graph of a tracer has the chain."""
    return not (is_compiling() or is_traced([each for each in given if each is not None]))


def in_plan(config: MoEConfig, weights: ExpertWeights, arch: Arch) -> Iterator[MoeDecodeProblem]:
    """Yield the problems for a plan, with one token, if the target has such kernels."""
    problem = problem_of(config, weights, 1)
    if problem is not None and problem.op in target(arch).operations:
        shared = replace(problem, has_shared=True)
        yield from (problem, shared, replace(shared, is_weighted=True))
