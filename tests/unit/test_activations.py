# SPDX-License-Identifier: Apache-2.0
"""Activations: their formulas in other words, their numbers, and what templates say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from jitgen import templates
from jitgen.codegen.render import environment
from jitgen.config.activation_quantize import NUMBERS, Activation
from jitgen.errors import InputError
from jitgen.ops.activation_quantize.numbers import require_numbers
from jitgen.ops.activation_quantize.reference import activated

GIVEN = {
    "swiglu_limit": 10.0,
    "swiglu_alpha": 1.702,
    "swiglu_beta": 0.5,
    "gate_softcap": 4.0,
    "up_softcap": 25.0,
}


def limited(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return gate.clamp(max=10.0), up.clamp(-10.0, 10.0)


def steep(gate: Tensor, up: Tensor, beta: float) -> Tensor:
    gate, up = limited(gate, up)
    return (up + beta) * gate * torch.sigmoid(gate * 1.702)


def stepped(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate).clamp(max=10.0) * up.clamp(-10.0, 10.0)


def capped(gate: Tensor, up: Tensor) -> Tensor:
    """As transformers' Inkling2SoftcappedSwiGLU: the sigmoid sees the gate without its cap."""
    return torch.tanh(gate / 4) * 4 * torch.sigmoid(gate) * torch.tanh(up / 25) * 25


FORMULAS: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    Activation.SWIGLU: lambda gate, up: functional.silu(gate) * up,
    Activation.SWIGLU_OAI: lambda gate, up: steep(gate, up, 1.0),
    Activation.SWIGLU_CLAMP: lambda gate, up: (
        functional.silu(limited(gate, up)[0]) * limited(gate, up)[1]
    ),
    Activation.SWIGLU_BIAS: lambda gate, up: steep(gate, up, 0.5),
    Activation.SWIGLU_STEP: stepped,
    Activation.SITU: capped,
    Activation.GEGLU: lambda gate, up: functional.gelu(gate) * up,
    Activation.GEGLU_TANH: lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
    Activation.RELU2: lambda x, _: functional.relu(x) ** 2,
    Activation.RELU: lambda x, _: functional.relu(x),
    Activation.SILU: lambda x, _: functional.silu(x),
    Activation.GELU: lambda x, _: functional.gelu(x),
    Activation.GELU_TANH: lambda x, _: functional.gelu(x, approximate="tanh"),
    Activation.IDENTITY: lambda x, _: x,
}
"""With torch's own functions."""


def numbers(activation: Activation) -> dict[str, float]:
    return {name: GIVEN[name] for name in activation.numbers}


@pytest.mark.parametrize("activation", Activation)
def test_formulas(activation: Activation) -> None:
    chance = torch.Generator().manual_seed(0)
    gate, up = 8 * torch.randn(2, 50, 64, generator=chance, dtype=torch.float64)
    gate, up = gate.float(), up.float()
    x = torch.cat((gate, up), -1) if activation.is_gated else gate

    found = activated(x, activation=str(activation), **numbers(activation))

    expected = FORMULAS[activation](gate.double(), up.double())
    assert (found.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("activation", Activation)
def test_numbers(activation: Activation) -> None:
    """Each is needed where a formula has it, and refused where not; none is another thing."""
    assert require_numbers(activation, numbers(activation)) == (*numbers(activation).values(),)
    for name in NUMBERS:
        given: dict[str, Any] = numbers(activation)
        if name not in given:
            with pytest.raises(InputError, match=f"{name}: belongs to"):
                require_numbers(activation, {**given, name: 1.0})
            continue
        for wrong in (None, "1", True, float("inf"), float("nan"), 1e39, 10**400):
            with pytest.raises(InputError, match=f"^{name}: "):
                require_numbers(activation, {**given, name: wrong})
        for wrong in {
            "swiglu_limit": (-1,),
            "gate_softcap": (0, -1),
            "up_softcap": (0.0, 1e-60),
        }.get(name, ()):
            with pytest.raises(InputError, match=f"^{name}: must be "):
                require_numbers(activation, {**given, name: wrong})


def test_templates_know_every_activation() -> None:
    """Their words and the numbers that kernels take."""
    name = "shared/activation_quantize/activations.py.jinja"
    said = environment(templates.ROOT).get_template(name).module

    assert set(said.ungated) == {  # type: ignore[attr-defined]
        str(each) for each in Activation if not each.is_gated
    }
    assert said.words.keys() == {str(each) for each in Activation}  # type: ignore[attr-defined]
    short = {each: each.removeprefix("swiglu_").replace("softcap", "cap") for each in NUMBERS}
    assert said.numbers == {  # type: ignore[attr-defined]
        str(each): ", ".join(short[name] for name in each.numbers)
        for each in Activation
        if each.numbers
    }
