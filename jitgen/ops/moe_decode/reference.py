# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `moe_decode`: the same roundings in the same places, and sums in
float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.block128 import per_token_group
from jitgen.ops.activation_quantize.reference import activated


class Parts(NamedTuple):
    """
    The result of a layer, and the magnitudes that bound the error of a kernel.

    Attributes:
        out: (T, H) float64.
        magnitude: (T, H) float64, the sum of the magnitudes of all products of the second GEMM.
        largest: (T, H) float64, the largest of these.
    """

    out: Tensor
    magnitude: Tensor
    largest: Tensor


def moe_decode(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    w13: Tensor,
    w13_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    first_expert: int = 0,
) -> Parts:
    """
    Compute a layer of experts as the kernels do; this waits for the device.

    Args:
        x: (T, H) bfloat16.
        topk_ids: (T, k) int32, numbers of the whole layer.
        topk_weights: (T, k) float32.
        w13: (E, 2 I, H) float8_e4m3fn, gates before ups.
        w13_scale: (E, 2 I / 128, H / 128) float32.
        w2: (E, H, I) float8_e4m3fn.
        w2_scale: (E, H / 128, I / 128) float32.
        first_expert: Number of the first of the E experts.
    """
    tokens = _numbers(*per_token_group(x))
    parts = Parts(*(torch.zeros_like(tokens) for _ in Parts._fields))
    for token, expert in _pairs(topk_ids, first_expert, len(w13)):
        is_own = topk_ids[token] == expert + first_expert
        weight = topk_weights[token][is_own].double().sum()
        gates = _matrix(w13[expert], w13_scale[expert]) @ tokens[token]
        h = activated(gates.float()[None]).bfloat16()
        products = _matrix(w2[expert], w2_scale[expert]) * _numbers(*per_token_group(h))
        products *= weight
        parts.out[token] += products.sum(1)
        parts.magnitude[token] += products.abs().sum(1)
        torch.maximum(parts.largest[token], products.abs().amax(1), out=parts.largest[token])
    return parts


def _pairs(topk_ids: Tensor, first: int, experts: int) -> list[tuple[int, int]]:
    """Return pairs of a token and a local expert that it chose, each once."""
    local = (topk_ids.long() - first).tolist()
    every = {(t, e) for t, chosen in enumerate(local) for e in chosen if 0 <= e < experts}
    return sorted(every)


def _numbers(values: Tensor, scale: Tensor) -> Tensor:
    """Return quantised rows, dequantised: (M, K) float64."""
    columns = values.shape[-1]
    return values.double() * scale.double().repeat_interleave(SCALE_BLOCK, -1)[..., :columns]


def _matrix(values: Tensor, scale: Tensor) -> Tensor:
    """Return the weights of one expert, dequantised: (N, K) float64."""
    return _numbers(values, scale.repeat_interleave(SCALE_BLOCK, 0)[: len(values)])
