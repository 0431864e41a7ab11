# SPDX-License-Identifier: Apache-2.0
"""
transformers: jitgen as an implementation of experts, for bfloat16 and FP8 models.

    from jitgen.integrations import transformers as integration

    integration.register()
    model = AutoModelForCausalLM.from_pretrained(name, experts_implementation="jitgen")

It serves every model whose experts go through transformers' interface with weights (E, N, K):
Mixtral, Qwen3-MoE, DeepSeek-V3 and most others; and gpt-oss, whose weights are MXFP4's. SwiGLU is a
kernel; another activation is computed by the model's own code between the two products. There are
no gradients.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from jitgen.config import Arch
from jitgen.errors import InputError, ToolchainError
from jitgen.formats.block128 import per_token_group
from jitgen.formats.prepared import prepare_mxfp4_from
from jitgen.frozen import frozen
from jitgen.layer import plan as plans
from jitgen.layer.call import run
from jitgen.layer.chain import Chain, Counts, Rows
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
from jitgen.layer.workspace import NEW, Buffers
from jitgen.ops.route.results import Sorting
from jitgen.plans import Plan
from jitgen.runtime.prewarm import PrewarmReport
from jitgen.runtime.prewarm import prewarm as prewarm_plan

IMPLEMENTATION = "jitgen"
"""What models call it."""

_BLOCK = (128, 128)

_chains: WeakKeyDictionary[nn.Module, tuple[Any, Chain]] = WeakKeyDictionary()
"""The chain of each module that was called, with what it was made of."""


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

    Args:
        self: The module: `gate_up_proj` (E, 2 I, H) and `down_proj` (E, H, I), bfloat16, or
            float8_e4m3fn with scales for each 128 x 128 in `gate_up_proj_scale_inv` and
            `down_proj_scale_inv`.
        hidden_states: (T, H) bfloat16.
        top_k_index: (T, k): experts of each token; those that are not here are skipped.
        top_k_weights: (T, k), any float type.

    Returns:
        (T, H) bfloat16.

    Raises:
        InputError: The module or a tensor is of another kind, or a gradient is asked for.
    """
    _refuse_gradients(self, hidden_states)
    chain = chain_of(self, top_k_index.shape[-1])
    ids = top_k_index.to(torch.int32)  # numbers of experts, or the one behind the last
    return run(chain, hidden_states.contiguous(), top_k_weights.float(), ids)


def plan(
    model: nn.Module,
    *,
    max_tokens: int | None = None,
    arch: Arch | str | None = None,
    name: str = "model",
) -> Plan:
    """
    Return every kernel that the experts of `model` can ask for.

    Args:
        model: A model of transformers'.
        max_tokens: Most tokens at once: those of a whole batch; None: of a chunk.
        arch: The target; None: the one that this process would use.
        name: What the plan is called.

    Raises:
        InputError: A module of experts is of a kind that jitgen does not serve, or there is none.
    """
    found = [plans.of(chain, max_tokens, arch, name=name) for chain in _all_chains(model)]
    if not found:
        raise InputError("model", f"{type(model).__name__} has no experts that jitgen knows")
    sweeps = dict.fromkeys(sweep for each in found for sweep in each.sweeps)
    return Plan(name=name, description=found[0].description, sweeps=tuple(sweeps))


def prewarm(
    model: nn.Module,
    *,
    max_tokens: int | None = None,
    arch: Arch | str | None = None,
    **options: Any,
) -> PrewarmReport:
    """Bring every kernel of `plan` into the store: `jitgen.prewarm`, with its options."""
    return prewarm_plan(plan(model, max_tokens=max_tokens, arch=arch), arch=arch, **options)


def chain_of(module: nn.Module, top_k: int) -> Chain:
    """
    Return the chain of a module of experts, made anew where its weights are others.

    Raises:
        InputError: It is of a kind that jitgen does not serve.
    """
    if torch.compiler.is_compiling():
        return _chain(module, top_k)
    # parameters() walks all modules below, for longer than the rest of this takes
    own = (each for each in module._parameters.values() if each is not None)
    state = (top_k, *((each.data_ptr(), each.dtype, each.shape) for each in own))
    kept = _chains.get(module)
    if kept is None or kept[0] != state:
        kept = _chains[module] = (state, _chain(module, top_k))
    return kept[1]


@frozen
class GatedChain(Chain):
    """
    A chain with the activation of a module's own code.

    Attributes:
        module: Whose.
    """

    module: Any

    def activate(
        self,
        h: Tensor,
        pairs: Sorting | Counts,  # noqa: ARG002
        into: Buffers = NEW,  # noqa: ARG002
    ) -> Rows:
        """Return what the module makes of gates and ups, quantised as the product reads it."""
        active = self.module._apply_gate(h).to(torch.bfloat16).contiguous()
        return (active, None) if self.weights.activations == NONE else per_token_group(active)


def _chain(module: Any, top_k: int) -> Chain:
    if type(module).__name__ == "GptOssExperts":
        return gpt_oss_chain(module, top_k)
    _require_kind(module)
    fields = {}
    for ours, theirs in (("w13", "gate_up_proj"), ("w2", "down_proj")):
        weight = getattr(module, theirs).detach()
        fields[ours] = weight
        if weight.dtype is torch.float8_e4m3fn:
            fields[f"{ours}_scale"] = getattr(module, f"{theirs}_scale_inv").detach().float()
    weights = ExpertWeights(**fields)
    activation = _activation(module)
    if activation is None:
        return GatedChain(config=_config(weights, top_k), weights=weights, module=module)
    return Chain(config=_config(weights, top_k, **activation), weights=weights)


def gpt_oss_chain(module: Any, top_k: int) -> Chain:
    """
    Return the chain of gpt-oss's experts: bfloat16 weights (E, K, N) with a bias.

    Where their values are those of an MXFP4 checkpoint, they go back into MXFP4 without a loss, for
    4.25 bits a weight besides the model's own; others, as after training, are read as they lie.
    """
    pairs = (("w13", "gate_up_proj"), ("w2", "down_proj"))
    plain = {ours: getattr(module, theirs).detach().transpose(1, 2) for ours, theirs in pairs}
    biases = {
        f"{ours}_bias": getattr(module, f"{theirs}_bias").detach().float().contiguous()
        for ours, theirs in pairs
    }
    weights = ExpertWeights(**(_in_mxfp4(plain) or plain), **biases)
    gate = {"limit": float(module.limit), "alpha": float(module.alpha)}
    config = _config(weights, top_k, activation="swiglu_oai", interleaved=True, **gate)
    return Chain(config=config, weights=weights)


def _in_mxfp4(weights: dict[str, Any]) -> dict[str, Any] | None:
    """Return weights as MXFP4 has them; None where any has a value that it has not."""
    found: dict[str, Any] = {}
    for name, matrices in weights.items():
        found[name] = prepare_mxfp4_from(matrices, layout="wide1")
        for group, each in enumerate(matrices):
            part = found[name].part(slice(group, group + 1))
            if not torch.equal(part.weights()[0], each.float()):
                return None
    return found


def _config(weights: ExpertWeights, top_k: int, **activation: Any) -> MoEConfig:
    """Return the layer of a module, or of the share of experts that it is."""
    return MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=max(weights.groups, top_k),  # of a share, whose ids end with its own
        local_experts=weights.groups,
        top_k=top_k,
        **activation,
    )


def _require_kind(module: Any) -> None:
    """Require experts of a kind that there is a chain for."""
    name = type(module).__name__
    wanted = {"has_gate": True, "is_transposed": False, "has_bias": False}
    for attribute, value in {**wanted, "has_post_expert_norm": False}.items():
        if getattr(module, attribute, value) != value:
            raise InputError(
                "experts_implementation",
                f"jitgen computes experts with {attribute} = {value}, and {name} has another; "
                "take grouped_mm for this model",
            )
    if module.gate_up_proj.dtype is not torch.float8_e4m3fn:
        return
    scheme, block = module.activation_scheme, module.block_size
    if scheme != "dynamic" or block is None or tuple(block) != _BLOCK:
        raise InputError(
            "experts_implementation",
            f"jitgen quantises tokens itself, for blocks of 128 x 128 (got {scheme} activations "
            f"and blocks of {block} in {name})",
        )


def _activation(module: Any) -> dict[str, Any] | None:
    """Return the fields of `MoEConfig` for the activation; None where no kernel computes it."""
    gate = type(module)._apply_gate
    is_default = gate.__name__ == "_default_apply_gate"
    is_fp8 = gate.__qualname__ == "FP8Experts._apply_gate"
    is_silu = isinstance(getattr(module, "act_fn", None), nn.SiLU) or (
        type(getattr(module, "act_fn", None)).__name__ == "SiLUActivation"
    )
    if is_default and is_silu:
        return {}
    if not is_fp8 or module.gate_softcap is not None:
        return None
    if module.swiglu_alpha is not None:
        limits = {"limit": float(module.swiglu_limit), "alpha": float(module.swiglu_alpha)}
        return {"activation": "swiglu_oai", **limits}
    return {} if is_silu and module.limit is None else None


def _all_chains(model: nn.Module) -> Iterator[Chain]:
    """Yield the chain of every module of experts, with the model's number of experts a token."""
    for module in model.modules():
        if hasattr(module, "gate_up_proj") and hasattr(module, "_is_expert_parallel"):
            yield chain_of(module, _top_k(module.config))


def _top_k(config: Any) -> int:
    for name in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"):
        if isinstance(found := getattr(config, name, None), int):
            return found
    raise InputError("model", "its config has no num_experts_per_tok")


def _refuse_gradients(module: nn.Module, hidden_states: Tensor) -> None:
    if not torch.is_grad_enabled():
        return
    if hidden_states.requires_grad or any(each.requires_grad for each in module.parameters()):
        raise InputError(
            "experts_implementation",
            "jitgen has no gradients for experts: call the model under torch.no_grad(), as "
            "generate() does, or take grouped_mm to train it",
        )
