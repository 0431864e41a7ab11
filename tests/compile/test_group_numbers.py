# SPDX-License-Identifier: Apache-2.0
"""Activations whose numbers, such as limits, differ from group to group: call, layer, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.ops.activation_quantize import samples
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

NUMBERED = [each for each in Activation if each.numbers]
EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 6, 2, 256, 128


def layer_of(activation: Activation, numbers: Tensor) -> tuple[Any, Any, tuple[Tensor, ...]]:
    """Return a config, weights of bfloat16, and the tokens and experts of a call."""
    chance = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance)

    config = jitgen.MoEConfig(
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        experts=EXPERTS,
        top_k=TOP_K,
        activation=activation,
        per_group=True,
    )
    weights = jitgen.ExpertWeights(
        w13=(random(EXPERTS, 2 * INTERMEDIATE, HIDDEN) / 4).bfloat16(),
        w2=(random(EXPERTS, HIDDEN, INTERMEDIATE) / 11).bfloat16(),
        group_numbers=numbers,
    )
    chosen = random(9, EXPERTS).softmax(-1).topk(TOP_K)
    return config, weights, (random(9, HIDDEN).bfloat16(), *chosen)


def numbers_of(activation: Activation, groups: int) -> Tensor:
    """Return other numbers for each group, around those of samples."""
    usual = torch.tensor([*samples.numbers_of(activation, is_exact=False).values()])
    return usual * torch.linspace(0.5, 2, groups)[:, None]


@pytest.mark.parametrize("activation", NUMBERED, ids=str)
def test_each_group_has_the_results_of_a_call_of_its_own(activation: Activation) -> None:
    """A group without rows among them; bits of calls with one group and its numbers alone."""
    ends = [4, 4, 5, 12]
    x = (torch.randn(12, 2 * 72, generator=torch.Generator().manual_seed(0)) * 4).bfloat16()
    numbers = numbers_of(activation, len(ends))

    found, _ = jitgen.activation_quantize(
        *(x,),
        offs=int32(*ends),
        activation=activation,
        format="none",
        group_numbers=numbers,
    )

    first = 0
    for end, of_group in zip(ends, numbers.tolist(), strict=True):
        alone, _ = jitgen.activation_quantize(
            x[first:end],
            offs=int32(end - first),
            activation=activation,
            format="none",
            **dict(zip(activation.numbers, of_group, strict=True)),
        )
        assert torch.equal(found[first:end], alone)
        first = end


def test_a_layer_gives_every_expert_its_limit() -> None:
    config, weights, call = layer_of(
        Activation.SWIGLU_CLAMP, torch.linspace(0.2, 3, EXPERTS)[:, None]
    )
    layer = jitgen.MoELayer(config, weights, max_tokens=16)

    out = layer(*call)

    x, *chosen = call
    assert reference.relative_error(out, reference.moe(x, weights, *chosen, config)) < 0.01
    assert torch.equal(layer.state_dict()["group_numbers"], weights.group_numbers)
    names = [each.name("sm_90a") for each in layer.configs("sm_90a")]
    assert any("_swiglu_clamp_pergroup_" in name for name in names)
    layer.group_numbers = torch.full((EXPERTS, 1), 0.75)
    plain = jitgen.moe(
        x, weights.w13, weights.w2, *chosen, activation="swiglu_clamp", swiglu_limit=0.75
    )
    assert torch.equal(layer(*call), plain)


def test_a_layer_of_matrices_has_limits_of_experts() -> None:
    config, weights, _ = layer_of(Activation.SWIGLU_OAI, numbers_of(Activation.SWIGLU_OAI, EXPERTS))
    x = torch.randn(EXPERTS, 3, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    masked_m = int32(3, 0, 1, 2, 3, 3)

    out = jitgen.MoELayer(config, weights).experts(x, masked_m)

    expected = reference.moe_experts(x, weights, masked_m, config)
    for group, rows in enumerate(masked_m.tolist()):
        assert reference.relative_error(out[group, :rows], expected[group, :rows]) < 0.01


def call_with(**named: Any) -> Any:
    x = torch.zeros(4, 64).bfloat16()
    return jitgen.activation_quantize(x, offs=int32(2, 4), **named)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: call_with(
                activation="swiglu_clamp", swiglu_limit=1.0, group_numbers=ones(2, 1)
            ),
            "swiglu_limit: must be left out beside group_numbers",
        ),
        (lambda: call_with(group_numbers=ones(2, 1)), "group_numbers: belongs to swiglu_oai"),
        (
            lambda: call_with(activation="swiglu_oai", group_numbers=ones(2, 1)),
            r"group_numbers: must have shape \(2, 2\), swiglu_limit and swiglu_alpha of each group",
        ),
        (
            lambda: call_with(activation="swiglu_clamp", group_numbers=ones(3, 1)),
            r"group_numbers: must have shape \(2, 1\)",
        ),
        (
            lambda: call_with(activation="swiglu_oai", group_numbers=ones(2, 2).T),
            "group_numbers: must be contiguous",
        ),
        (
            lambda: call_with(activation="swiglu_clamp", group_numbers=ones(2, 1).double()),
            "group_numbers: must be float32",
        ),
        (
            lambda: jitgen.MoELayer(
                *layer_of(Activation.SWIGLU_CLAMP, None)[:2]  # type: ignore[arg-type]
            ),
            "group_numbers: is required for a config with per_group",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_gradients_are_refused_by_name() -> None:
    config, weights, (x, *chosen) = layer_of(Activation.SWIGLU_CLAMP, torch.ones(EXPERTS, 1))

    with pytest.raises(InputError, match="numbers of each group have none"):
        jitgen.MoELayer(config, weights)(x.requires_grad_(), *chosen)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape) * torch.arange(1.0, shape[-1] + 1)
