# SPDX-License-Identifier: Apache-2.0
"""
Early launches: kernels of a chain that start before the previous kernel has ended. They make calls
with few tokens faster, in which memory is idle longer between launches than during them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from jitgen.config import Arch
from jitgen.config.dispatch import MOST_SORTED, DispatchProblem
from jitgen.config.format import Format
from jitgen.errors import UnsupportedConfig
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.layer import lora as adapters
from jitgen.layer.config import MoEConfig
from jitgen.layer.lora import ExpertLora
from jitgen.layer.problems import (
    joined_problem,
    of_rows,
    of_tokens,
    sorted_problem,
    taken_problem,
)
from jitgen.layer.weights import ExpertWeights, Matrices
from jitgen.ops.dispatch.call import Local
from jitgen.runtime import devices
from jitgen.runtime.session import current
from jitgen.selection.choice import edges_of
from jitgen.settings import settings
from jitgen.targets.early import early

EARLY_TOKENS = 64
"""
Most tokens of a call whose launches start early. On an H200, measured on 2026-11-23, a chain with
early small launches is 1 to 2 % faster up to 64 tokens, and 2 to 4 % slower at 4096.
"""

_MOST_KEPT = 1024

PRODUCTS = ("gate_up", "down")
"""Names of the products' configs; other launches have the name of their operation."""

SHARED = "combine, shared"
"""Name of combine with the result of shared experts."""

WEIGHTED = "combine, weighted"
"""Name of combine with the result of shared experts, each row times a weight of its token."""

ADAPTERS = ("adapters, up", "adapters, down")
"""Names of the launches that add adapters to the two products."""

ACTIVATION = "activation"
"""Name of the launch that computes the activation for adapters, not quantised."""

JOINED = "sort, gather"
"""Name of the launch that both sorts pairs and gathers their rows."""

JOINED_PAIRS = 8
"""
Most pairs for which one launch sorts and gathers rows; in it, every warp sorts all pairs. On an
H200, measured on 2026-11-23, this makes a layer with the sizes of DeepSeek-V3 0.6 to 1.5 us faster
with 8 pairs, and 2 us slower with 16 and 64, because the first product cannot load its weights
early then.
"""


def combine_name(of: Any) -> str:
    """Return the name of the config of a combine, by its problem or config."""
    if of.is_weighted:
        return WEIGHTED
    return SHARED if of.has_shared else "combine"


def configs_of(
    config: MoEConfig,
    weights: ExpertWeights,
    tokens: int,
    *,
    joins: bool,
    lora: ExpertLora | None = None,
) -> Mapping[str, Any]:
    """
    Return those configs of the launches for `tokens` tokens that differ from the choice of the
    selector.

    The graph of a tracer may be used for any number of tokens, so it has the choice of the
    selector.

    Args:
        config: The layer.
        weights: Its experts.
        tokens: Number of tokens T.
        joins: Whether one launch may sort the pairs and gather their rows.
        lora: The adapters of the call.
    """
    if is_compiling() or type(tokens) is not int or not 0 < tokens <= EARLY_TOKENS:
        return {}
    session = current.get()
    forms = _form(weights.w13), _form(weights.w2)
    biases = weights.w13_bias is None, weights.w2_bias is None
    which = config, weights.groups, tokens, joins, weights.activation_format
    sizes = None if lora is None else tuple((k, x.shape) for k, x in lora.tensors.items())
    key = *which, *forms, *biases, weights.device, sizes
    found: Mapping[str, Any] | None = session.chains.get(key)
    if found is None:
        if len(session.chains) >= _MOST_KEPT:
            session.chains.clear()
        found = session.chains[key] = _chosen(config, weights, tokens, joins, lora)
    return found


def _chosen(
    config: MoEConfig, weights: ExpertWeights, tokens: int, joins: bool, lora: ExpertLora | None
) -> dict[str, Any]:
    session = current.get()
    arch = devices.find(weights.device, session, "w13").arch
    found: dict[str, Any] = {}

    def choose(launch: str, problem: Any) -> None:
        try:
            usual = session.select(problem, arch).config
        except UnsupportedConfig:  # which the launch says, of the argument that is to blame
            return
        chosen = early(usual, arch)
        if chosen != usual and may_be_asked_for(chosen, arch):
            found[launch] = chosen

    for problem in of_tokens(config, weights, arch):
        name = combine_name(problem) if problem.op == "combine" else problem.op
        choose(name, problem.with_mean(tokens))
    for launch, problem in _by_row(config, weights):
        choose(launch, problem.with_mean(mean_rows(config, tokens)))
    if lora is not None:
        for problem in adapters.problems(config, weights, lora):
            choose(ADAPTERS[problem.by_row], problem.with_mean(tokens))
        if adapters.needs_activation(weights, lora):
            problem = adapters.activation_problem(config, weights)
            choose(ACTIVATION, problem.with_mean(mean_rows(config, tokens)))
    joined = joined_problem(config, weights, arch) if joins else None
    if joined is not None and tokens <= joined_tokens(config):
        _join(found, joined.with_mean(tokens), arch)
    return found


def _join(found: dict[str, Any], problem: Any, arch: Arch) -> None:
    """
    Use one launch to sort and gather. The selector chooses the product after it, which cannot load
    weights early: it does not know yet which weights it needs.
    """
    session = current.get()
    try:
        joined = session.select(problem, arch).config
    except UnsupportedConfig:  # likewise
        return
    if may_be_asked_for(joined, arch):
        found[JOINED] = joined
        found.pop("gate_up", None)


def _by_row(config: MoEConfig, weights: ExpertWeights) -> Iterator[tuple[str, Any]]:
    """
    Yield the launches whose rows belong to experts, with their problems; products only if K of
    their weights is contiguous and they are not prepacked.
    """
    products = zip(PRODUCTS, (weights.w13, weights.w2), strict=True)
    for problem in of_rows(config, weights):
        launch = problem.op
        if launch == "grouped_gemm":
            launch, b = next(products)
            if not _is_plain(b):
                continue
        yield launch, problem


def sorted_tokens(problem: DispatchProblem, arch: Arch) -> int:
    """
    Return the most tokens of a rank for which `dispatch` sorts the pairs: the largest number at
    which the selector changes kernels and for which a CTA has enough threads; 0 if there is none.
    """
    edges = (problem.with_mean(edge) for edge in edges_of(problem, arch))
    return max((each.m for each in edges if each.most_in_a_cta <= MOST_SORTED), default=0)


def sorts_on_arrival(
    config: MoEConfig,
    weights: ExpertWeights,
    ranks: int,
    room: int,
    *,
    can_mask: bool,
    form: Format,
) -> Local | None:
    """
    Return the local experts by which `dispatch` sorts the pairs of `room` tokens of each rank, and
    whether it leaves rows in the inbox; None if another launch sorts.
    """
    arch = devices.find(weights.device, current.get(), "w13").arch
    problem = sorted_problem(config, weights, ranks, arch, can_mask=can_mask, form=form)
    if problem is None or room > sorted_tokens(problem, arch):
        return None
    taken = taken_problem(config, weights) if problem.leaves else None
    if taken is not None and ranks * room <= config.chunk_tokens:
        both = problem.with_mean(room), taken.with_mean(ranks * room)
        if all(_is_there(each, arch) for each in both):
            return Local(config.first_expert, config.groups, leaves=True)
    if not _is_there(replace(problem, leaves=False).with_mean(room), arch):
        return None
    return Local(config.first_expert, config.groups)


def _is_there(problem: Any, arch: Arch) -> bool:
    """Say whether there is a kernel for a problem, which calls may use."""
    try:
        return may_be_asked_for(current.get().select(problem, arch).config, arch)
    except UnsupportedConfig:  # another launch is used
        return False


def joined_tokens(config: MoEConfig) -> int:
    """Return the most tokens for which one launch sorts the pairs and gathers the rows."""
    return min(EARLY_TOKENS, JOINED_PAIRS // config.top_k)


def may_be_asked_for(config: Any, arch: Arch) -> bool:
    """
    Say whether calls may use the kernel of `config`, for which no other kernel can substitute. If
    calls must not wait for the compiler, they may use it only if it is compiled already.
    """
    if settings.on_miss != "fallback":
        return True
    return current.get().loader.find(config, arch) is not None


def mean_rows(config: MoEConfig, tokens: int) -> int:
    """Return the mean rows of a group for which launches are chosen: at least 1."""
    return max(1, -(-tokens * config.top_k // config.every))


def _form(b: Matrices) -> tuple[Any, ...]:
    """Return the properties of a matrix that configs depend on."""
    if isinstance(b, PrepackedWeights):
        return b.format, b.layout, b.n, b.k
    return b.dtype, b.shape, _is_plain(b)


def _is_plain(b: Matrices) -> bool:
    """Return whether weights are a tensor, not prepacked, with K contiguous."""
    return isinstance(b, Tensor) and (b.shape[2] == 1 or b.stride(2) == 1)
