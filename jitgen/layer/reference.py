# SPDX-License-Identifier: Apache-2.0
"""
Reference of a layer of experts, in float32 torch, with the quantised weights.

Intermediate values are not rounded, so a chain differs by the rounding of its formats: tokens and
activations to e4m3 (some 4 % of the norm), or to bfloat16 (0.4 %).
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.formats.prepacked import PrepackedWeights
from jitgen.layer.config import MoEConfig
from jitgen.layer.lora import Adapters
from jitgen.layer.weights import ExpertWeights, Matrices
from jitgen.ops.activation_quantize.reference import activated

_BLOCK = 128

TOLERANCE = {"none": 0.01, "block128": 0.07, "row": 0.07}
"""Largest `relative_error` of a correct chain, by the format of activations."""


def moe(
    x: Tensor,
    weights: ExpertWeights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    config: MoEConfig,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    adapters: Adapters | None = None,
) -> Tensor:
    """
    Compute the result of `jitgen.moe` expert by expert; this waits for the device.

    Args:
        x: (T, H), any float type.
        weights: The experts of this rank.
        topk_weights: (T, k) float32.
        topk_ids: (T, k): experts, numbered over the whole layer.
        config: The layer.
        shared: (T, H), added at the end.
        shared_weights: (T,) float32, factors of its rows; None: 1.
        adapters: Low-rank adapters, and the adapter of each token.

    Returns:
        (T, H) float32.
    """
    tokens = x.float()
    total = torch.zeros_like(tokens) if shared is None else shared.float().clone()
    if shared_weights is not None:
        total *= shared_weights[:, None]
    if config.adds_tokens:
        is_token = (topk_ids >= config.experts) & (topk_ids < config.every)
        total += tokens * topk_weights.where(is_token, 0.0).sum(1, keepdim=True)
    local = topk_ids.long() - config.first_expert
    here = local[(local >= 0) & (local < weights.groups)]
    for group in sorted(set(here.tolist())):
        token, slot = (local == group).nonzero(as_tuple=True)
        y = _expert(tokens[token], weights, group, config, adapters, token)
        total.index_add_(0, token, y * topk_weights[token, slot, None])
    return total


def moe_experts(x: Tensor, weights: ExpertWeights, masked_m: Tensor, config: MoEConfig) -> Tensor:
    """
    Compute the result of `jitgen.moe_experts` expert by expert; this waits for the device.

    Args:
        x: (G, M, H), any float type; dequantised values of float8 tokens.
        weights: The experts here.
        masked_m: (G,) int32.
        config: The layer.

    Returns:
        (G, M, H) float32; rows that are no tokens are zero.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for group, rows in enumerate(masked_m.tolist()):
        total[group, :rows] = _expert(x[group, :rows].float(), weights, group, config)
    return total


def _expert(
    tokens: Tensor,
    weights: ExpertWeights,
    group: int,
    config: MoEConfig,
    adapters: Adapters | None = None,
    numbers: Tensor | None = None,
) -> Tensor:
    """
    Return the output of one expert for float32 rows, (R, H); `numbers` are the tokens of the rows.
    """
    h = tokens @ matrix(weights.w13, weights.w13_scale, group).T
    if weights.w13_bias is not None:
        h += weights.w13_bias[group]
    if adapters is not None:
        h += _adapted(tokens, adapters, "w13", group, numbers)
    of_groups = weights.group_numbers
    of_rows = None if of_groups is None else of_groups[group].expand(len(h), -1)
    active = activated(h, **config.gate, row_numbers=of_rows)
    y = active @ matrix(weights.w2, weights.w2_scale, group).T
    if weights.w2_bias is not None:
        y += weights.w2_bias[group]
    return y if adapters is None else y + _adapted(active, adapters, "w2", group, numbers)


def _adapted(
    rows: Tensor, adapters: Adapters, name: str, group: int, numbers: Tensor | None
) -> Tensor | float:
    """Return the sum that the adapters of these tokens add to the product of their rows."""
    tensors = adapters.lora.tensors
    if f"{name}_a" not in tensors:
        return 0.0
    b = tensors[f"{name}_b"]
    added = rows.new_zeros(len(rows), b.shape[2])
    ids = adapters.ids[numbers]
    for adapter in range(adapters.lora.adapters):
        a_e, b_e = (tensors[f"{name}_{each}"][adapter, group].float() for each in "ab")
        parts = b_e.unflatten(0, (len(a_e) // b_e.shape[1], -1))
        between = (rows @ a_e.T).unflatten(1, (len(parts), -1))
        product = torch.einsum("tpr,pnr->tpn", between, parts).flatten(1)
        added += product * tensors["scales"][adapter] * (ids == adapter)[:, None]
    return added


def matrix(each: Matrices, scale: Tensor | None, group: int) -> Tensor:
    """Return the numbers that one expert's weights represent: (N, K) float32."""
    if isinstance(each, PrepackedWeights):
        return each.part(slice(group, group + 1)).weights()[0]
    values = each[group].float()
    if scale is None:
        return values
    factors = scale[group]
    if factors.dim() == 1:
        return values * factors[:, None]
    n, k = values.shape
    repeated = factors.repeat_interleave(_BLOCK, 0)[:n].repeat_interleave(_BLOCK, 1)[:, :k]
    return values * repeated


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference, relative to the norm of the expected values."""
    expected = expected.float()
    norm = expected.norm().clamp_min(1e-30)
    return float((found.float() - expected).norm() / norm)
