# SPDX-License-Identifier: Apache-2.0
"""
Whether a layer whose second product has experts along K would be faster, by the cost models.

docs/moe-layer.md says why there is none. When one of these fails, that has to be thought of again.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.combine import CombineProblem
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.moe_fc2_dense import MoEFc2DenseProblem
from jitgen.config.permute_quantize import MOST_PLACES, PermuteQuantizeProblem, Walk
from jitgen.config.route import RouteProblem, Scoring
from jitgen.ops.moe_fc2_dense.ways import _OF_SHORT_K, _SHORT_K
from jitgen.targets import devices
from jitgen.targets.legality import rules
from jitgen.targets.sm_90a import cost

ARCH = Arch.SM_90A
TOKENS = (8, 16, 32, 48, 64, 96, 128)
ALPHA_LAUNCHES = 4
"""Of torch's operations, from experts and weights: zeros, who is here, their places, weights."""


class Layer(NamedTuple):
    """
    A layer with FP8 weights, as far as time depends on it.

    Attributes:
        experts: On all ranks.
        local: On this one.
        top_k: Number of experts of a token.
        hidden: Columns of a token.
        intermediate: Columns between the two products, on this rank.
    """

    experts: int
    local: int
    top_k: int
    hidden: int
    intermediate: int


WIDE = {
    "DeepSeek-V3, 8 here": Layer(256, 8, 8, 7168, 2048),
    "DeepSeek-V3, 32 here": Layer(256, 32, 8, 7168, 2048),
    "DeepSeek-V3": Layer(256, 256, 8, 7168, 2048),
    "Mixtral": Layer(8, 8, 2, 4096, 14336),
    "gpt-oss-120b's sizes": Layer(128, 128, 4, 2880, 2880),
    "gpt-oss-20b's sizes": Layer(32, 32, 4, 2880, 2880),
    "Qwen3-235B": Layer(128, 128, 8, 4096, 1536),
}
NARROW = {
    "DeepSeek-V3, an eighth of each": Layer(256, 256, 8, 7168, 256),
    "DeepSeek-V3, a sixteenth of each": Layer(256, 256, 8, 7168, 128),
    "Qwen3-235B, an eighth of each": Layer(128, 128, 8, 4096, 192),
    "Mixtral, an eighth of each": Layer(8, 8, 2, 4096, 1792),
    "everybody has all 8": Layer(8, 8, 8, 7168, 2048),
}


def us(problem: Any) -> float:
    """Return what the best candidate is predicted to take for exactly these sizes on an H200."""
    rules_of, device = rules(ARCH, problem.op), devices.find(ARCH, "h200")
    found = rules_of.candidates(problem)
    return min(rules_of.predict(problem, each, device, device.num_sms).cost for each in found)


def product_us(layout: Layout, groups: int, rows: int, n: int, k: int, *, is_even: bool) -> float:
    """Return that of a grouped GEMM, whose groups may be known to have the same rows."""
    problem = GroupedGemmProblem(layout=layout, groups=groups, m=rows, n=n, k=k)
    if not is_even:
        return us(problem)
    every = cost.row_distributions  # the first has the same rows for all
    with patch.object(cost, "row_distributions", lambda each: every(each)[:1]):
        return us(problem)


def sort_us(layer: Layer, tokens: int) -> float:
    """Return what it takes to sort pairs."""
    return us(
        RouteProblem(
            m=tokens,
            experts=layer.experts,
            top_k=layer.top_k,
            scoring=Scoring.GIVEN,
            local_experts=layer.local,
        )
    )


def gather_us(layer: Layer, tokens: int, places: int) -> float:
    """Return what it takes to bring each token to `places` rows, as many at once as may be."""
    at_once = min(places, MOST_PLACES)
    problem = PermuteQuantizeProblem(
        layout=Layout.RAGGED,
        m=tokens * places // at_once,
        k=layer.hidden,
        top_k=at_once,
        walk=Walk.SCATTER,
    )
    return us(problem)


def live_experts(layer: Layer, tokens: int) -> int:
    """Return how many experts here any token chooses, if all choose at random."""
    return max(1, round(layer.local * (1 - (1 - layer.top_k / layer.experts) ** tokens)))


def chain_us(layer: Layer, tokens: int) -> float:
    """Return what the chain's launches take one after the other: for the chosen pairs."""
    live, width = live_experts(layer, tokens), layer.intermediate
    rows = max(1, tokens * layer.top_k * layer.local // layer.experts)
    is_even = layer.top_k == layer.experts
    down = product_us(Layout.RAGGED, live, rows, layer.hidden, width, is_even=is_even)
    return (
        sort_us(layer, tokens)
        + gather_us(layer, tokens, layer.top_k)
        + product_us(Layout.RAGGED, live, rows, 2 * width, layer.hidden, is_even=is_even)
        + us(ActivationQuantizeProblem(layout=Layout.RAGGED, groups=live, m=rows, n=width))
        + down * (_OF_SHORT_K if width <= _SHORT_K else 1)
        + us(CombineProblem(m=tokens, n=layer.hidden, top_k=layer.top_k, has_shared=False))
    )


def fc2_us(layer: Layer, tokens: int) -> float:
    """Return what the last launch takes; where few tokens have an expert here, of live ones."""
    chosen = layer.top_k * layer.local // layer.experts
    groups = layer.local if chosen else live_experts(layer, tokens)
    return us(
        MoEFc2DenseProblem(
            groups=groups,
            m=tokens,
            n=layer.hidden,
            k=layer.intermediate,
            top_k=chosen or groups,
        )
    )


def dense_us(layer: Layer, tokens: int, *, copies: bool) -> float:
    """
    Return what launches take whose last one has experts along K, so that each expert has each row.

    Args:
        layer: The layer.
        tokens: T.
        copies: Whether rows are copied for every expert and alpha is made by torch's operations;
            else all experts read the same rows, and one launch that takes as long as sorting makes
            alpha.
    """
    groups, rows, width = layer.local, layer.local * tokens, layer.intermediate
    alpha = ALPHA_LAUNCHES * sort_us(layer, 1) if copies else sort_us(layer, tokens)
    return (
        alpha
        + gather_us(layer, tokens, groups if copies else 1)
        + product_us(Layout.MASKED, groups, rows, 2 * width, layer.hidden, is_even=True)
        + us(ActivationQuantizeProblem(layout=Layout.MASKED, groups=groups, m=rows, n=width))
        + fc2_us(layer, tokens)
    )


@pytest.mark.parametrize("name", WIDE)
def test_a_layer_of_wide_experts_is_faster_without(name: str) -> None:
    """
    Or level: activations of pairs that no token chose cost as much as shared rows would gain, and
    more with the launches that there are.
    """
    for tokens in TOKENS:
        ours = chain_us(WIDE[name], tokens)

        assert dense_us(WIDE[name], tokens, copies=False) > 0.99 * ours
        assert dense_us(WIDE[name], tokens, copies=True) > 1.03 * ours


@pytest.mark.parametrize("name", NARROW)
def test_narrow_experts_gain_next_to_nothing(name: str) -> None:
    """With the launches that there are."""
    gains = [
        chain_us(NARROW[name], tokens) / dense_us(NARROW[name], tokens, copies=True)
        for tokens in TOKENS
    ]

    assert max(gains) < 1.05


@pytest.mark.parametrize(
    ("name", "gain"), list(zip(NARROW, (1.02, 1.16, 1.09, 1.02, 1.09), strict=True))
)
def test_what_shared_rows_would_gain(name: str, gain: float) -> None:
    """By the model, which was not fitted to experts so narrow."""
    gains = [
        chain_us(NARROW[name], tokens) / dense_us(NARROW[name], tokens, copies=False)
        for tokens in TOKENS
    ]

    assert max(gains) == pytest.approx(gain, abs=0.02)
