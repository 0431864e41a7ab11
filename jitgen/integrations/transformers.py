# SPDX-License-Identifier: Apache-2.0
"""
transformers: jitgen as an implementation of experts, for inference and for training.

    from jitgen.integrations import transformers as integration

    integration.register()
    model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="jitgen")

It serves every module of experts that uses transformers' interface. Without gradients, layers with
bfloat16 and FP8 weights run as the launches of `jitgen.moe`; an activation that no kernel computes,
and a norm after each expert, run as the model's own code. Layers with weights of other types, and
all training, run as jitgen's products with torch's operations between them.
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
    Register ``experts_implementation="jitgen"`` with transformers. Further calls have no effect.

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
    Compute a module of experts; transformers calls this function as an implementation.

    Products are computed in the type of the weights, or under torch.autocast in autocast's type.
    FP8 weights are multiplied with tokens that this call quantises.

    Args:
        self: The module: `gate_up_proj` (E, 2 I, H) and `down_proj` (E, H, I) of a float type, or
            float8_e4m3fn with scales for each 128 x 128 in `gate_up_proj_scale_inv` and
            `down_proj_scale_inv`; or a module of the other kinds in transformers.
        hidden_states: (T, H), any float type.
        top_k_index: (T, k): experts of each token; experts that are not on this device are skipped.
        top_k_weights: (T, k), any float type.

    Returns:
        (T, H) of the type of `hidden_states`.

    Raises:
        InputError: The module or a tensor is of another kind, there are no kernels for the type, or
            a gradient is needed that FP8 experts do not have.
    """
    if _is_chained(self, hidden_states, top_k_weights):
        chain = chain_of(self, top_k_index.shape[-1])
        ids = top_k_index.to(torch.int32)  # numbers of experts, or the one behind the last
        x = hidden_states.to(torch.bfloat16).contiguous()
        return run(chain, x, top_k_weights.float(), ids).to(hidden_states.dtype)
    return products.forward(self, hidden_states, top_k_index, top_k_weights)


def _is_chained(module: nn.Module, hidden_states: Tensor, top_k_weights: Tensor) -> bool:
    """Return whether a call runs as the launches of `jitgen.moe`."""
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
    Multiply the experts of gpt-oss as MXFP4, the format of its checkpoint.

    transformers converts the weights of that checkpoint to bfloat16, and by default kernels read
    these bfloat16 weights. This function makes MXFP4 copies of them, which take 4.25 bits per
    weight in addition to the model's weights, and calls without gradients read the copies. If MXFP4
    cannot represent all values of a layer, for example after training, the layer has no copies and
    its bfloat16 weights are read. The function waits for the device. Call it before `prewarm`.

    The copies are made again if a weight becomes another tensor, has other memory, or was written
    in a way that torch counts: `copy_`, `load_state_dict`, an optimiser's step. torch does not
    count writes through ``.data`` (for example when an adapter is merged), writes of FSDP, of
    kernels that received an address, and of a replayed CUDA graph: call this function again after
    them. A captured graph keeps reading the copies with which it was captured. Code that
    torch.compile makes reads the bfloat16 weights.

    Args:
        model: A model of transformers'.
        use: False frees the copies.

    Returns:
        The number of layers that have copies now.

    Raises:
        InputError: The model has no experts of gpt-oss, or weights of which no copies may be kept.
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
    Return a plan of every kernel that the experts of `model` can need without gradients.

    Args:
        model: A model of transformers'.
        max_tokens: Largest number of tokens of a call: those of a whole batch; None: those of a
            chunk.
        arch: The target; None: the target of this process.
        name: Name of the plan.

    Raises:
        InputError: A module of experts is of a kind that jitgen does not serve, or the model has no
            such module.
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
            found = tuple(each for each in found if each.problem.op != "activation_quantize")
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
    """Compile every kernel of `plan` into the store, with `jitgen.prewarm` and its options."""
    return prewarm_plan(plan(model, max_tokens=max_tokens, arch=arch), arch=arch, **options)


def _experts(model: nn.Module) -> Iterator[nn.Module]:
    """
    Yield every module of experts behind transformers' interface; raises InputError if `model` is no
    module.
    """
    if not isinstance(model, nn.Module):
        raise InputError("model", f"must be a torch.nn.Module (got {type(model).__name__})")
    for module in model.modules():
        if hasattr(module, "down_proj") and hasattr(module, "_is_expert_parallel"):
            yield module


def _top_k(config: object) -> int:
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise InputError("model", "its config has no num_experts_per_tok")
