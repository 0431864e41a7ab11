# SPDX-License-Identifier: Apache-2.0
"""
The chains of transformers' modules of experts: the launches of `jitgen.moe` with their weights.

A chain refers to the weights of its module and to no copies of them: biases and scales that kernels
need in another type are converted at each call. So weights may change in any way, and a chain is
kept as long as they stay in place. The exception are the MXFP4 copies of gpt-oss's weights, which
are made where the user asks for them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from jitgen.errors import InputError
from jitgen.formats.block128 import per_token_group
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4_from
from jitgen.layer.chain import Chain, Counts, Rows
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
from jitgen.layer.workspace import NEW, Buffers
from jitgen.ops.route.results import Sorting
from jitgen.ops.versions import Places, Versions
from jitgen.support.frozen import frozen

NAMES = {"w13": "gate_up_proj", "w2": "down_proj"}
"""Names of a chain's weights in modules."""

_BLOCK = (128, 128)

_MX_BLOCK = 32
"""Values along K that share a scale in MXFP4."""

CHAINED = {
    "has_gate": True,
    "is_transposed": False,
    "has_bias": False,
    "has_post_expert_norm": False,
}
"""Attributes of a module that there is a chain for."""


@frozen
class _Kept:
    """
    Record of a module that was called.

    Attributes:
        places: Where its weights were.
        top_k: Experts of a token.
        activation: The fields of `MoEConfig` for its activation.
        config: Its layer.
        weights: Its weights, which are there still.
    """

    places: Places
    top_k: int
    activation: dict[str, Any] | None
    config: MoEConfig
    weights: ExpertWeights


_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()

_held: WeakKeyDictionary[nn.Module, tuple[Versions, dict[str, PrepackedWeights] | None]] = (
    WeakKeyDictionary()
)
"""
Requested MXFP4 copies of modules, with the weights they were made of; None for a module without
copies.
"""


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
        pairs: Sorting | Counts,
        into: Buffers = NEW,
    ) -> Rows:
        """
        Apply the module's activation to gates and ups, and quantise the result as the product reads
        it.
        """
        active = self.module._apply_gate(h).to(torch.bfloat16).contiguous()
        return (active, None) if self.weights.activation_format == NONE else per_token_group(active)


def has_chain(module: Any) -> bool:
    """Say whether a module of experts is of a kind that there is a chain for."""
    if is_gpt_oss(module):
        return module.gate_up_proj.dtype is torch.bfloat16
    is_usual = all(getattr(module, name, value) == value for name, value in CHAINED.items())
    return is_usual and module.gate_up_proj.dtype in (torch.bfloat16, torch.float8_e4m3fn)


def is_gpt_oss(module: nn.Module) -> bool:
    """Say whether a module has the experts of gpt-oss: (E, K, N), by turns, with a bias."""
    return type(module).__name__ == "GptOssExperts"


def chain_of(module: Any, top_k: int) -> Chain:
    """
    Return the chain of a module of experts; a new one if its weights have changed.

    Raises:
        InputError: It is of a kind that jitgen does not serve.
    """
    if is_gpt_oss(module):
        return _of_gpt_oss(module, top_k)
    activation = _activation(module)
    sources = _sources(module)
    kept = None if torch.compiler.is_compiling() else _kept.get(module)
    if (
        kept is None
        or kept.top_k != top_k
        or kept.activation != activation
        or not kept.places.hold(sources)
    ):
        kept = _made(module, top_k, activation, sources)
    if activation is None:  # this chain holds the module, so it is not kept beside it
        return GatedChain(config=kept.config, weights=kept.weights, module=module)
    return Chain(config=kept.config, weights=kept.weights)


def _made(
    module: Any, top_k: int, activation: dict[str, Any] | None, sources: tuple[Tensor, ...]
) -> _Kept:
    """Return the record of a module, and keep it while the weights stay in their memory."""
    _require_blocks(module)
    w13, w2, *scales = (each.detach() for each in sources)
    w13_scale, w2_scale = (each.float() for each in scales) if scales else (None, None)
    weights = ExpertWeights(w13=w13, w2=w2, w13_scale=w13_scale, w2_scale=w2_scale)
    found = _Kept(
        places=Places(sources),
        top_k=top_k,
        activation=activation,
        config=_config(weights, top_k, **(activation or {})),
        weights=weights,
    )
    # Computed weights, such as those that an adapter is added to, are others at each call; and
    # scales of another type were copied.
    own = module._parameters
    is_own = all(any(each is mine for mine in own.values()) for each in sources)
    if is_own and all(each.dtype is torch.float32 for each in scales) and not _is_traced(sources):
        _kept[module] = found
    return found


def _sources(module: Any) -> tuple[Tensor, ...]:
    """
    Return the tensors that a chain refers to: both weights, and their scales if they have some.
    """
    weights = module.gate_up_proj, module.down_proj
    if weights[0].dtype is not torch.float8_e4m3fn:
        return weights
    return *weights, module.gate_up_proj_scale_inv, module.down_proj_scale_inv


def _is_traced(sources: tuple[Tensor, ...]) -> bool:
    """Return whether tensors have no memory to refer to, or a tracer's tensors take their place."""
    kinds = Tensor, nn.Parameter
    return torch.compiler.is_compiling() or not all(type(each) in kinds for each in sources)


def _of_gpt_oss(module: Any, top_k: int) -> Chain:
    """
    Return the chain of gpt-oss's experts: bfloat16 weights (E, K, N), read as they lie, or the
    MXFP4 copies that `use_mxfp4` made; and a bias, which kernels take in float32.
    """
    biases = {
        f"{ours}_bias": getattr(module, f"{theirs}_bias").detach().float()
        for ours, theirs in NAMES.items()
    }
    weights = ExpertWeights(**(_held_by(module) or _plain(module)), **biases)
    gate = {"swiglu_limit": float(module.limit), "swiglu_alpha": float(module.alpha)}
    config = _config(weights, top_k, activation="swiglu_oai", interleaved=True, **gate)
    return Chain(config=config, weights=weights)


def _plain(module: Any) -> dict[str, Any]:
    return {
        ours: getattr(module, theirs).detach().transpose(1, 2) for ours, theirs in NAMES.items()
    }


def hold_mxfp4(module: Any) -> bool:
    """
    Make MXFP4 copies of gpt-oss's weights for the calls to come; waits for the device.

    Returns:
        Whether MXFP4 has all of their values; else they are read as they lie, as before.

    Raises:
        InputError: Nothing that is made of them may be kept.
    """
    sources = module.gate_up_proj, module.down_proj
    versions = Versions.of(sources)
    if versions is None:
        raise InputError(
            "model",
            "its weights were made under torch.inference_mode(), where torch does not count what "
            "is written to them, or are traced or captured: nothing may be kept of them",
        )
    if sources[0].is_cuda:  # calls on any stream may be reading the copies that this replaces
        torch.cuda.synchronize(sources[0].device)
    found = _in_mxfp4(_plain(module))
    _held[module] = (versions, found)
    return found is not None


def drop_mxfp4(module: Any) -> None:
    """Give the copies of a module's weights back, if there are any."""
    _held.pop(module, None)


def _held_by(module: Any) -> dict[str, PrepackedWeights] | None:
    """Return the copies of a module's weights that are up to date; None if there are none."""
    if torch.compiler.is_compiling() or module not in _held:
        return None
    sources = module.gate_up_proj, module.down_proj
    versions, found = _held[module]
    if versions.hold(sources):
        return found
    if Versions.of(sources) is None:  # a graph is captured, say: nothing can wait, or be kept
        return None
    hold_mxfp4(module)
    return _held[module][1]


def _in_mxfp4(weights: dict[str, Any]) -> dict[str, PrepackedWeights] | None:
    """Return weights as MXFP4 has them; None where any has a value or a size that it has not."""
    if any(matrices.shape[2] % _MX_BLOCK for matrices in weights.values()):
        return None
    if not all(_is_exact(matrices[:1]) for matrices in weights.values()):  # most that are not
        return None
    found: dict[str, PrepackedWeights] = {}
    for name, matrices in weights.items():
        found[name] = prepack_mxfp4_from(matrices, layout="wide1")
        for group, each in enumerate(matrices):
            part = found[name].part(slice(group, group + 1))
            if not torch.equal(part.weights()[0], each.float()):
                return None
    return found


def _is_exact(matrices: Tensor) -> bool:
    return torch.equal(prepack_mxfp4_from(matrices, layout="wide1").weights(), matrices.float())


def _config(weights: ExpertWeights, top_k: int, **activation: Any) -> MoEConfig:
    """Return the layer config of a module, or of its share of experts."""
    return MoEConfig(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=max(weights.groups, top_k),  # of a share, whose ids end with its own
        local_experts=weights.groups,
        top_k=top_k,
        **activation,
    )


def _require_blocks(module: Any) -> None:
    """Require FP8 experts with blocks of 128 x 128 that quantise tokens dynamically."""
    if module.gate_up_proj.dtype is not torch.float8_e4m3fn:
        return
    scheme, block = module.activation_scheme, module.block_size
    if scheme != "dynamic" or block is None or tuple(block) != _BLOCK:
        raise InputError(
            "experts_implementation",
            f"jitgen quantises tokens itself, for blocks of 128 x 128 (got {scheme} activations "
            f"and blocks of {block} in {type(module).__name__})",
        )


def _activation(module: Any) -> dict[str, Any] | None:
    """Return the fields of `MoEConfig` for the activation; None where no kernel computes it."""
    gate = type(module)._apply_gate
    is_default = gate.__name__ == "_default_apply_gate"
    is_fp8 = gate.__qualname__ == "FP8Experts._apply_gate"
    act_fn = getattr(module, "act_fn", None)
    is_silu = isinstance(act_fn, nn.SiLU) or type(act_fn).__name__ == "SiLUActivation"
    if is_default and is_silu:
        return {}
    if not is_fp8 or getattr(module, "gate_softcap", None) is not None:  # which older ones lack
        return None
    if module.swiglu_alpha is not None:
        limits = {name: float(getattr(module, name)) for name in ("swiglu_limit", "swiglu_alpha")}
        return {"activation": "swiglu_oai", **limits}
    return {} if is_silu and module.limit is None else None
