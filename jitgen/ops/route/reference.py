# SPDX-License-Identifier: Apache-2.0
"""
References of `route` and `sort_pairs`, in torch: slow and simple.

Kernels compute exp() with other roundings. So their weights may differ in the last bits, and so may
the choice between experts whose scores are that close.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.route import COMPUTED, GroupScoring, Scoring
from jitgen.errors import InputError
from jitgen.ops.route.results import Routing, Sorting
from jitgen.support.moved import MISSING, with_new_names

SMALLEST_SUM = 1e-20
"""
Added to a sum of scores before weights are divided by it, because all scores except those of
softmax may be 0.
"""


def route(  # noqa: PLR0913  # the arguments of the real one
    logits: Tensor = MISSING,
    *,
    top_k: int,
    scoring: str = "softmax",
    correction_bias: Tensor | None = None,
    expert_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    first_expert: int = 0,
    local_experts: int | None = None,
    group_scoring: str = "top2",
    softcap: float | None = None,
    token_ids: Tensor | None = None,
    hash_table: Tensor | None = None,
    load: Tensor | None = None,
    **old: Any,
) -> Routing:
    """
    Compute the result of `jitgen.route` for the same arguments, for any float type.

    Raises:
        InputError: `scoring` is not known.
    """
    if old:
        return route(**with_new_names(route, locals()))
    logits = softcapped(logits, softcap)
    local = logits.shape[1] if local_experts is None else local_experts
    if token_ids is not None and hash_table is not None:
        topk_ids, weights = _hashed(scored(logits, scoring), token_ids, hash_table)
        if renormalize:
            weights = weights / (weights.sum(1, keepdim=True) + SMALLEST_SUM)
        _count(topk_ids, load)
        sorting = sort_pairs(
            topk_ids, experts=local, first_expert=first_expert, local_experts=local
        )
        return Routing(weights.float() * routed_scaling_factor, topk_ids, *sorting)
    ranks = by_rank(logits, scoring, correction_bias, expert_groups)
    ids = chosen(ranks, top_k, expert_groups, top_groups, group_scoring)
    weights = scored(logits, scoring).gather(1, ids)
    if renormalize and scoring == "softmax" and correction_bias is None and expert_groups == 1:
        weights = (
            logits.float().gather(1, ids).softmax(1)
        )  # a NaN that is not chosen spoils no weight
    elif renormalize:
        least = 0.0 if scoring == "softmax" else SMALLEST_SUM
        weights = weights / (weights.sum(1, keepdim=True) + least)
    topk_ids = ids.to(torch.int32)
    _count(topk_ids, load)
    sorting = sort_pairs(topk_ids, experts=local, first_expert=first_expert, local_experts=local)
    return Routing(weights.float() * routed_scaling_factor, topk_ids, *sorting)


def _hashed(scores: Tensor, token_ids: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """
    Return the experts that `table` has for each token, -1 for those out of range, and their scores.

    The same as ``DeepseekV4HashRouter`` of transformers, which does not handle wrong ids.
    """
    rows = token_ids.long()
    has_row = (rows >= 0) & (rows < len(table))
    ids = table[torch.where(has_row, rows, 0)].long()
    is_one = has_row[:, None] & (ids >= 0) & (ids < scores.shape[1])
    weights = scores.gather(1, torch.where(is_one, ids, 0))
    ids = torch.where(is_one, ids, -1).to(torch.int32)
    return ids, torch.where(is_one, weights, 0.0)


def _count(topk_ids: Tensor, load: Tensor | None) -> None:
    """Add to each expert's load how often it was chosen."""
    if load is not None:
        chosen = topk_ids[topk_ids >= 0].long()
        load += torch.bincount(chosen, minlength=len(load)).to(load)


def softcapped(logits: Tensor, cap: float | None) -> Tensor:
    """Return logits bounded by `cap`, in float32 or float64; None: unchanged."""
    if cap is None:
        return logits
    values = logits if logits.dtype is torch.float64 else logits.float()
    return cap * torch.tanh(values / cap)


def scored(logits: Tensor, scoring: str) -> Tensor:
    """
    Return the score of every expert, in float32, or in float64 for float64 logits.

    The formulas are those of transformers: `modeling_qwen3_moe`, `modeling_deepseek_v3` and
    `modeling_deepseek_v4`.
    """
    values = logits if logits.dtype is torch.float64 else logits.float()
    match scoring:
        case Scoring.SOFTMAX:
            return values.softmax(1)
        case Scoring.SIGMOID:
            return values.sigmoid()
        case Scoring.SQRTSOFTPLUS:
            return torch.nn.functional.softplus(values).sqrt()
        case Scoring.IDENTITY:
            return values
    raise InputError("scoring", f"must be one of {', '.join(COMPUTED)} (got {scoring!r})")


def by_rank(logits: Tensor, scoring: str, bias: Tensor | None, expert_groups: int = 1) -> Tensor:
    """
    Return the values by which experts are chosen: scores with the bias.

    For a softmax without bias these are the logits: they have the same order, and rounding makes
    fewer of them equal.
    """
    if scoring == "softmax" and bias is None and expert_groups == 1:
        return logits if logits.dtype is torch.float64 else logits.float()
    values = scored(logits, scoring)
    return values if bias is None else values + bias


def chosen(
    ranks: Tensor, top_k: int, expert_groups: int, top_groups: int, group_scoring: str = "top2"
) -> Tensor:
    """Return the experts of each token, (T, top_k), by their `ranks`."""
    if expert_groups == 1:
        return _ranked(ranks)[:, :top_k]
    grouped = ranks.view(len(ranks), expert_groups, -1)
    counted = 1 if group_scoring == GroupScoring.MAX else 2
    best = grouped.gather(-1, _ranked(grouped)[..., :counted]).sum(-1)
    kept = _ranked(best)[:, :top_groups]
    mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
    return _ranked(ranks, mask.repeat_interleave(grouped.shape[-1], 1))[:, :top_k]


def _ranked(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """
    Return indices, best first; equal values in order, then NaN, then those whose `mask` is False.
    """
    key = values.double()
    order = torch.where(key.isnan(), -1.0, torch.where(key.isneginf(), 0.0, 1.0))
    if mask is not None:
        order = torch.where(mask, order, -2.0)
    places = torch.where(key.isnan() | key.isneginf(), 0.0, key).argsort(
        dim=-1, descending=True, stable=True
    )
    return places.gather(-1, order.gather(-1, places).argsort(dim=-1, descending=True, stable=True))


def sort_pairs(
    topk_ids: Tensor,
    *,
    experts: int,
    first_expert: int = 0,
    local_experts: int | None = None,
) -> Sorting:
    """Compute the result of `jitgen.sort_pairs` for the same arguments."""
    groups = experts if local_experts is None else local_experts
    local = topk_ids.flatten().long() - first_expert
    local = torch.where((local >= 0) & (local < groups), local, groups)
    places = local.argsort(dim=0, stable=True)
    counts = torch.bincount(local, minlength=groups + 1)[:groups]
    offs = counts.cumsum(0)
    rows = torch.empty_like(places).scatter_(0, places, torch.arange(len(places)).to(places))
    is_local = local < groups
    permutation = torch.where(is_local[places], places, -1)
    inverse = torch.where(is_local, rows, -1).view(topk_ids.shape)
    return Sorting(offs.to(torch.int32), permutation.to(torch.int32), inverse.to(torch.int32))
