# SPDX-License-Identifier: Apache-2.0
"""Every class of experts behind transformers' interface, small and with random weights."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import jitgen

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 64, 48, 6, 2, 20

_SIZES = {
    **dict.fromkeys(("hidden_size", "moe_hidden_size"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), INTERMEDIATE),
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), EXPERTS
    ),
    "num_experts_per_tok": TOP_K,
    "moe_latent_size": None,
    "hidden_act": "silu",
    "hidden_activation": "gelu_pytorch_tanh",
    "mlp_hidden_act": "relu2",
    "post_norm_eps": 1e-5,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "mlp_gate_softcap": 10.0,
    "mlp_up_softcap": 10.0,
}
"""What the classes read of a model's config."""

_DECORATED = re.compile(
    r"^@use_experts_implementation\b(?:(?!^class ).*\n)*?class (\w+)", re.MULTILINE
)
"""A class of experts. Not read from syntax trees, which take 20 times as long to make."""


@cache
def classes() -> dict[str, str]:
    """Return the module of every class, by its name, as the sources of transformers tell it."""
    import transformers

    models = Path(str(transformers.__file__)).parent / "models"
    return {
        name: module
        for path in sorted(models.glob("*/modeling_*.py"))
        for name, module in _of(path)
    }


def _of(path: Path) -> Iterator[tuple[str, str]]:
    text = path.read_text(encoding="utf-8")
    found = _DECORATED.findall(text)
    assert len(found) == text.count("\n@use_experts_implementation"), path
    for name in found:
        yield name, f"transformers.models.{path.parent.name}.{path.stem}"


def make(name: str, dtype: torch.dtype, **sizes: Any) -> Any:
    """Return a module of experts whose implementation is ``eager``; some sizes may be others."""
    kind = getattr(importlib.import_module(classes()[name]), name)
    made = kind(SimpleNamespace(**_SIZES | sizes, _experts_implementation="eager"))
    chance = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=chance) * 0.2
    return made.to(dtype)


def call(dtype: torch.dtype, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, their experts, and the routing weights of these experts."""
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, HIDDEN, generator=chance).to(dtype)
    ids = torch.rand(tokens, EXPERTS, generator=chance).topk(TOP_K, 1).indices
    return x, ids, torch.rand(tokens, TOP_K, generator=chance).to(dtype)


def step(module: Any, implementation: str, given: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Return the result, and gradients of tokens, routing weights and every parameter."""
    module.config._experts_implementation = implementation
    module.zero_grad()
    x, ids, weights = given
    x, weights = x.clone().requires_grad_(), weights.clone().requires_grad_()
    y = module(x, ids, weights)
    y.backward(torch.linspace(-1, 1, y.shape[1]).to(y).expand(y.shape))
    return [
        y.detach(),
        *(each.grad for each in (x, weights)),
        *(each.grad for each in module.parameters() if each.requires_grad),
    ]


def errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return how far tensors are from others, as parts of their norms."""
    return [
        float((mine.double() - right.double()).norm() / right.double().norm().clamp(min=1e-30))
        for mine, right in zip(found, expected, strict=True)
    ]


def fp8_experts(*, has_gate: bool = True, **changes: Any) -> Any:
    """Return frozen FP8 experts with scales for each 128 x 128; some attributes may be others."""
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
    from transformers.integrations.moe import use_experts_implementation

    kind = use_experts_implementation(
        experts_class=type("Experts", (FP8Experts,), {}),
        experts_interface=ALL_FP8_EXPERTS_FUNCTIONS,
        has_bias=False,
        has_gate=has_gate,
    )
    of = make("MixtralExperts", torch.bfloat16).config
    fields = {
        **dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 128),
        "hidden_activation": of.hidden_act,
        **dict.fromkeys(("swiglu_alpha", "swiglu_limit", "mlp_gate_softcap", "mlp_up_softcap")),
    }
    for name, value in fields.items():
        setattr(of, name, value)
    made = kind(config=of, block_size=(128, 128), has_gate=has_gate)
    chance = torch.Generator().manual_seed(3)
    for part in ("gate_up_proj" if has_gate else "up_proj", "down_proj"):
        weight = torch.randn(getattr(made, part).shape, generator=chance) * 0.2
        q, scale = jitgen.quantize.per_block(weight)
        getattr(made, part).data = q
        getattr(made, f"{part}_scale_inv").data = scale
    made.requires_grad_(False)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
