# SPDX-License-Identifier: Apache-2.0
"""
transformers: jitgen as an implementation of experts, for inference and for training.

    from jitgen.integrations import transformers as integration

    integration.register()
    model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="jitgen")

It serves every module of experts behind transformers' interface. Without gradients, bfloat16 and
FP8 weights go through the launches of `jitgen.moe`; an activation that no kernel has, and a norm
behind each expert, are the model's own code. Weights of other types, and all that trains, are
products with torch's operations between them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from jitgen.config import Arch
from jitgen.errors import InputError, ToolchainError
from jitgen.integrations import transformers_products as products
from jitgen.integrations.transformers_chains import (
    OwnChain,
    chain_of,
    drop_mxfp4,
    has_chain,
    hold_mxfp4,
    is_gpt_oss,
    names_of,
)
from jitgen.layer import plan as plans
from jitgen.layer.call import run
from jitgen.layer.config import CHUNK_TOKENS
from jitgen.ops.tensors import needs_gradient
from jitgen.plans.plan import Plan
from jitgen.plans.prewarm import PrewarmReport
from jitgen.plans.prewarm import prewarm as prewarm_plan
from jitgen.plans.sweep import Sweep

IMPLEMENTATION = "jitgen"
"""Name of the implementation in models."""


def register() -> None:
    """
    Make ``experts_implementation="jitgen"`` known to transformers; again is as well.

    Raises:
        ToolchainError: transformers is not installed, or older than 5.
    """
    for module, name in (("moe", "ExpertsInterface"), ("finegrained_fp8", "FP8ExpertsInterface")):
        try:
            found = importlib.import_module(f"transformers.integrations.{module}")
            interface = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise ToolchainError(
                "transformers has no interface for experts here; run: pip install "
                f"'jitgen[transformers]' ({error})"
            ) from None
        interface.register(IMPLEMENTATION, experts_forward)


def experts_forward(
    self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """
    Compute a module of experts, as transformers calls its implementations.

    Products are computed in the type of the weights, and under torch.autocast in autocast's; FP8
    weights are multiplied with tokens that are quantised as they come.

    Args:
        self: The module: `gate_up_proj` (E, 2 I, H) and `down_proj` (E, H, I) of a float type, or
            float8_e4m3fn with scales for each 128 x 128 in `gate_up_proj_scale_inv` and
            `down_proj_scale_inv`; or of the other kinds that transformers has.
        hidden_states: (T, H), any float type.
        top_k_index: (T, k): experts of each token; those that are not here are skipped.
        top_k_weights: (T, k), any float type.

    Returns:
        (T, H) of the type of `hidden_states`.

    Raises:
        InputError: The module or a tensor is of another kind, there are no kernels for the type, or
            a gradient is asked for that FP8 experts have not.
    """
    if _is_chained(self, hidden_states, top_k_weights):
        chain = chain_of(self, top_k_index.shape[-1])
        ids = top_k_index.to(torch.int32)  # numbers of experts, or the one behind the last
        x = hidden_states.to(torch.bfloat16).contiguous()
        return run(chain, x, top_k_weights.float(), ids).to(hidden_states.dtype)
    return products.forward(self, hidden_states, top_k_index, top_k_weights)


def _is_chained(module: nn.Module, hidden_states: Tensor, top_k_weights: Tensor) -> bool:
    """Say whether a call goes through the launches of `jitgen.moe`."""
    if not has_chain(module):
        return False
    weight = getattr(module, names_of(module)[0])
    if weight.dtype is torch.bfloat16 and products.computed_in(weight) is not torch.bfloat16:
        return False
    if not torch.is_grad_enabled():
        return True
    return not needs_gradient((hidden_states, top_k_weights, *module.parameters()))


def use_mxfp4(model: nn.Module, use: bool = True) -> int:
    """
    Let the experts of gpt-oss be multiplied in MXFP4, as its checkpoint has them.

    transformers turns that checkpoint into bfloat16, and without this call those weights are read.
    This makes copies of them, of 4.25 bits a weight beside the model's own, which calls without
    gradients multiply; where MXFP4 has not all of a layer's values, as after training, its weights
    are read as they lie. It waits for the device. Call it before `prewarm`.

    The copies are made anew where a weight is another tensor, has other memory, or was written to,
    as far as torch counts that: `copy_`, `load_state_dict`, an optimiser's step. Not counted are
    writes through ``.data``, as merging an adapter does, those of FSDP, of kernels that got an
    address and of a CUDA graph that is replayed: call this again after them. A captured graph, too,
    keeps the copies that it was captured with, and what torch.compile makes reads bfloat16.

    Args:
        model: A model of transformers'.
        use: False gives the copies back.

    Returns:
        How many of its layers have copies now.

    Raises:
        InputError: It has no such experts, or weights of which nothing may be kept.
    """
    modules = [each for each in model.modules() if is_gpt_oss(each)]
    if not modules:
        raise InputError("model", f"{type(model).__name__} has no experts of gpt-oss")
    if use:
        return sum(hold_mxfp4(module) for module in modules)
    for module in modules:
        drop_mxfp4(module)
    return 0


def plan(
    model: nn.Module,
    *,
    max_tokens: int | None = None,
    arch: Arch | str | None = None,
    name: str = "model",
) -> Plan:
    """
    Return every kernel that the experts of `model` can ask for without gradients.

    Args:
        model: A model of transformers'.
        max_tokens: Most tokens at once: those of a whole batch; None: of a chunk.
        arch: The target; None: the one that this process would use.
        name: What the plan is called.

    Raises:
        InputError: A module of experts is of a kind that jitgen does not serve, or there is none.
    """
    plans.require_tokens(max_tokens)
    target = plans.target(arch)
    sweeps: dict[Sweep, None] = {}
    for module in _experts(model):
        top_k = _top_k(module.config)
        if not has_chain(module):
            tokens = max_tokens or CHUNK_TOKENS
            sweeps |= dict.fromkeys(products.sweeps(module, top_k, tokens, target))
            continue
        chain = chain_of(module, top_k)
        found = plans.of(chain, max_tokens, target, name=name).sweeps
        if isinstance(chain, OwnChain) and not chain.has_activation:
            found = tuple(each for each in found if each.problem.op != "silu_mul_quantize")
        sweeps |= dict.fromkeys(found)
    if not sweeps:
        raise InputError("model", f"{type(model).__name__} has no experts that jitgen knows")
    description = f"the experts of {type(model).__name__}"
    return Plan(name=name, description=description, sweeps=tuple(sweeps))


def prewarm(
    model: nn.Module,
    *,
    max_tokens: int | None = None,
    arch: Arch | str | None = None,
    **options: Any,
) -> PrewarmReport:
    """Bring every kernel of `plan` into the store: `jitgen.prewarm`, with its options."""
    return prewarm_plan(plan(model, max_tokens=max_tokens, arch=arch), arch=arch, **options)


def _experts(model: nn.Module) -> Iterator[nn.Module]:
    """Yield every module of experts behind transformers' interface."""
    for module in model.modules():
        if hasattr(module, "down_proj") and hasattr(module, "_is_expert_parallel"):
            yield module


def _top_k(config: object) -> int:
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise InputError("model", "its config has no num_experts_per_tok")
