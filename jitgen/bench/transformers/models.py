# SPDX-License-Identifier: Apache-2.0
"""The models that are measured, how each is made, and how its experts are converted to FP8."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from jitgen.config.config import SCALE_BLOCK
from jitgen.errors import ToolchainError
from jitgen.integrations import transformers as integration
from jitgen.integrations.transformers_chains import chain_of
from jitgen.layer import reference
from jitgen.quantize import per_block
from jitgen.support.frozen import frozen

REFERENCE = "float32"
"""The experts that others are compared with: of bfloat16 weights, rounded once at the end."""


@frozen
class Model:
    """
    A model with two layers.

    Attributes:
        name: Its name in tables.
        kind: Its class of configs in transformers.
        hidden: Columns of a token.
        intermediate: Columns between an expert's products.
        experts: Experts of a layer.
        top_k: Number of experts of a token.
        fields: Further fields of the config.
    """

    name: str
    kind: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    fields: dict[str, object]


_LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": 8192}

MODELS = {
    each.name: each
    for each in (
        Model(
            name="qwen3-moe",
            kind="Qwen3MoeConfig",
            hidden=2048,
            intermediate=768,
            experts=128,
            top_k=8,
            fields={
                **_LAYERS,
                "vocab_size": 151936,
                "intermediate_size": 6144,
                "moe_intermediate_size": 768,
                "num_experts": 128,
                "num_experts_per_tok": 8,
                "num_attention_heads": 32,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "norm_topk_prob": True,
            },
        ),
        Model(
            name="mixtral",
            kind="MixtralConfig",
            hidden=4096,
            intermediate=14336,
            experts=8,
            top_k=2,
            fields={
                **_LAYERS,
                "vocab_size": 32000,
                "intermediate_size": 14336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
            },
        ),
    )
}
"""Widths of Qwen3-30B-A3B and of Mixtral 8x7B."""


def make(model: Model, device: str) -> Any:
    """
    Return the model in bfloat16 with random weights. `Formats` rounds those of its experts.

    Raises:
        ToolchainError: transformers is not installed.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ToolchainError(
            f"transformers cannot be imported; run: pip install 'jitgen[transformers]' ({error})"
        ) from None
    torch.manual_seed(1)
    config = getattr(transformers, model.kind)(hidden_size=model.hidden, **model.fields)
    with torch.device(device):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return made.eval()


def register() -> None:
    """
    Make jitgen's experts known to transformers, and the float32 experts that all implementations
    are compared with.

    Raises:
        ToolchainError: transformers is not installed, or older than 5.
    """
    integration.register()
    moe = importlib.import_module("transformers.integrations.moe")
    moe.ExpertsInterface.register(REFERENCE, _in_float32)


def _in_float32(module: nn.Module, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    chain = chain_of(module, ids.shape[-1])
    found = reference.moe(x, chain.weights, weights.float(), ids, chain.config)
    return found.to(x.dtype)


class Formats:
    """
    The experts of a model in bfloat16 and in FP8, with the same values.

    Args:
        model: The model; its experts are rounded to values that FP8 with scales of 128 x 128 blocks
            can represent.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        names = [name for name, _ in model.named_modules() if name.endswith(".experts")]
        self._bf16: dict[str, nn.Module] = {name: model.get_submodule(name) for name in names}
        self._fp8: dict[str, nn.Module] = {
            name: _in_fp8(module) for name, module in self._bf16.items()
        }

    def take(self, implementation: str, *, is_fp8: bool) -> None:
        """Let the model compute with an implementation, in bfloat16 or FP8."""
        for name, module in (self._fp8 if is_fp8 else self._bf16).items():
            self._model.set_submodule(name, module)
        self._model.set_experts_implementation(implementation)


def _in_fp8(module: Any) -> Any:
    """Return FP8 experts with the weights of `module`; `module` gets the rounded weights."""
    fp8 = importlib.import_module("transformers.integrations.finegrained_fp8")
    moe = importlib.import_module("transformers.integrations.moe")
    kind = moe.use_experts_implementation(
        experts_class=type("Experts", (fp8.FP8Experts,), {}),  # it changes the class that it gets
        experts_interface=fp8.ALL_FP8_EXPERTS_FUNCTIONS,
        has_bias=False,
    )
    with torch.device("meta"):
        experts = kind(config=module.config, block_size=(SCALE_BLOCK, SCALE_BLOCK))
    for part in ("gate_up_proj", "down_proj"):
        weight = getattr(module, part)
        q, scale = per_block(weight.data)
        setattr(experts, part, nn.Parameter(q, requires_grad=False))
        setattr(experts, f"{part}_scale_inv", nn.Parameter(scale, requires_grad=False))
        for matrix, each, scales in zip(weight.data, q, scale, strict=True):
            n, k = matrix.shape
            every = scales.repeat_interleave(SCALE_BLOCK, 0).repeat_interleave(SCALE_BLOCK, 1)
            matrix.copy_(each.float() * every[:n, :k])
    return experts
