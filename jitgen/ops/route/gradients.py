# SPDX-License-Identifier: Apache-2.0
"""
The gradient of `route` with respect to logits, through the weights of the chosen experts. The
choice itself has no gradient, so a correction bias has none either.

    v = scores of the chosen    w = scale * v / (the sum of v)    score = softmax, sigmoid, ...
    dv[j] = scale * (dw[j] - the sum over i of dw[i] v[i] / (the sum of v)) / (the sum of v)

If weights are not renormalised, dv is scale * dw. The gradient is computed by torch's operations,
in float32, in a fixed order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.route import Scoring
from jitgen.ops.route.reference import SMALLEST_SUM, softcapped


def of_logits(
    dweights: Tensor,
    logits: Tensor,
    topk_ids: Tensor,
    *,
    scoring: str,
    renormalize: bool,
    routed_scaling_factor: float,
    softcap: float | None,
    is_hashed: bool,
) -> Tensor:
    """
    Return the gradient of logits, in their type.

    Args:
        dweights: (T, k) float32, the gradient of `topk_weights`.
        logits: (T, E), as `jitgen.route` got them.
        topk_ids: (T, k) int32, the chosen experts; -1 where a token has no expert.
        scoring: As of `jitgen.route`.
        renormalize: Whether weights were divided by their sum.
        routed_scaling_factor: The factor of the weights.
        softcap: The bound of the logits.
        is_hashed: Whether a table gave the experts; a table may have an expert twice.
    """
    values = softcapped(logits, softcap)
    values = values if values.dtype is torch.float64 else values.float()
    is_one, ids = topk_ids >= 0, topk_ids.clamp(min=0).long()
    dw = (dweights * routed_scaling_factor).masked_fill(~is_one, 0.0).to(values.dtype)
    if scoring == Scoring.SOFTMAX and not renormalize:
        every = values.softmax(1)
        # the sum over experts of score times its gradient, of which only the chosen have one
        mean = (dw * every.gather(1, ids)).sum(1, keepdim=True)
        dvalues = every * (_placed(dw, ids, values, is_hashed) - mean)
    else:
        chosen = values.gather(1, ids)
        dvalues = _placed(
            _of_chosen(dw, chosen, is_one, scoring, renormalize), ids, values, is_hashed
        )
    if softcap is not None:
        bounded = values / softcap
        dvalues = dvalues * (1 - bounded * bounded)
    return dvalues.to(logits.dtype)


def _of_chosen(
    dw: Tensor, chosen: Tensor, is_one: Tensor, scoring: str, renormalize: bool
) -> Tensor:
    """
    Return the gradient of the chosen experts' logits, for scores that depend only on these logits.
    """
    if scoring == Scoring.SOFTMAX:  # renormalised: a softmax of the chosen
        weights = chosen.masked_fill(~is_one, -torch.inf).softmax(1).where(is_one, 0.0)
        return weights * (dw - (dw * weights).sum(1, keepdim=True))
    scores, slopes = _scored(chosen, scoring)
    if renormalize:
        scores = scores.masked_fill(~is_one, 0.0)
        total = scores.sum(1, keepdim=True) + SMALLEST_SUM
        dw = (dw - (dw * scores / total).sum(1, keepdim=True)) / total
    return (dw * slopes).masked_fill(~is_one, 0.0)


def _scored(values: Tensor, scoring: str) -> tuple[Tensor, Tensor]:
    """Return scores of logits and their derivatives."""
    if scoring == Scoring.IDENTITY:
        return values, torch.ones_like(values)
    open_ = torch.sigmoid(values)
    if scoring == Scoring.SIGMOID:
        return open_, open_ * torch.sigmoid(-values)
    scores = torch.nn.functional.softplus(values).sqrt()
    return scores, (open_ / (2 * scores)).masked_fill(scores == 0, 0.0)


def _placed(of_chosen: Tensor, ids: Tensor, like: Tensor, is_hashed: bool) -> Tensor:
    """
    Return the values of the chosen experts in the columns of these experts, and 0 in other columns.
    If a table has an expert twice, both values are added, in the order of places.
    """
    found = torch.zeros_like(like)
    if not is_hashed:
        return found.scatter(1, ids, of_chosen)
    for place in range(ids.shape[1]):
        column = slice(place, place + 1)
        found = found.scatter_add(1, ids[:, column], of_chosen[:, column])
    return found
