# SPDX-License-Identifier: Apache-2.0
"""
The chains of transformers' modules of experts: the launches of `jitgen.moe` with their weights.

A chain refers to the weights of its module and to no copies of them: biases and scales that kernels
need in another type are converted at each call. So values of weights may change in any way, and a
chain is kept as long as the weights stay in the same memory. The exception are the MXFP4 copies of
gpt-oss's weights, which are made on request (`hold_mxfp4`).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.formats.block128 import per_token_group
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4_from
from jitgen.integrations.transformers_activations import activation_of
from jitgen.layer.chain import Chain, Counts, Rows
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import NONE, ExpertWeights
from jitgen.layer.workspace import NEW, Buffers
from jitgen.ops.route.results import Sorting
from jitgen.ops.versions import Places, Versions
from jitgen.support.frozen import frozen

_BLOCK = (128, 128)

_MX_BLOCK = 32
"""Values along K that share a scale in MXFP4."""

_FP8: dict[str, bool] = {
    "is_transposed": False,
    "has_bias": False,
    "has_post_expert_norm": False,
}
"""Attributes that FP8 experts must have for a chain."""


@frozen
class _Kept:
    """
    Record of a module that was called.

    Attributes:
        places: Memory, shape and type of the module's weights at the call.
        top_k: Number of experts of a token.
        activation: The fields of `MoEConfig` for its activation.
        config: Config of its MoE layer.
        weights: Its weights, which this record keeps alive.
    """

    places: Places
    top_k: int
    activation: dict[str, Any] | None
    config: MoEConfig
    weights: ExpertWeights


_OURS = ("w13", "w2")

_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()

_held: WeakKeyDictionary[nn.Module, tuple[Versions, dict[str, PrepackedWeights] | None]] = (
    WeakKeyDictionary()
)
"""
Requested MXFP4 copies of modules, with the weights they were made of; None for a module without
copies.
"""


@frozen
class OwnChain(Chain):
    """
    A chain that runs some of a module's own code: its activation, a norm after each expert, or
    both.

    Attributes:
        module: The module whose code runs.
        has_activation: Whether a kernel computes its activation.
    """

    module: Any
    has_activation: bool

    def activate(
        self,
        h: Tensor,
        pairs: Sorting | Counts,
        into: Buffers = NEW,
    ) -> Rows:
        """
        Apply the activation, by a kernel or by the module's code, to gates and ups, or to values
        without gates, and quantise the result if the second product needs it.
        """
        if self.has_activation:
            return Chain.activate(self, h, pairs, into)
        own = self.module._apply_gate if has_gate(self.module) else self.module.act_fn
        active = own(h).to(torch.bfloat16).contiguous()
        return (active, None) if self.weights.activation_format == NONE else per_token_group(active)

    def down(self, rows: Rows, pairs: Sorting | Counts, into: Buffers = NEW) -> Tensor:
        """Return the second product, followed by the module's norm if it has one; (T * k, H)."""
        y = Chain.down(self, rows, pairs, into)
        if not _has_norm(self.module):
            return y
        found: Tensor = self.module.post_expert_norm(y)
        return found.to(torch.bfloat16).contiguous()


def has_gate(module: Any) -> bool:
    """Return whether experts have gates in addition to ups."""
    return bool(getattr(module, "has_gate", True))


def _has_norm(module: Any) -> bool:
    return bool(getattr(module, "has_post_expert_norm", False))


def names_of(module: Any) -> tuple[str, str]:
    """Return the names of the weights of both products."""
    return "gate_up_proj" if has_gate(module) else "up_proj", "down_proj"


def has_chain(module: Any) -> bool:
    """Return whether there is a chain for a module of experts of this kind."""
    dtype = getattr(module, names_of(module)[0]).dtype
    return dtype is torch.bfloat16 or (dtype is torch.float8_e4m3fn and not beyond_fp8(module))


def beyond_fp8(module: Any) -> dict[str, bool]:
    """Return the attributes of a module of FP8 experts that prevent a chain."""
    have = {name: getattr(module, name, usual) for name, usual in _FP8.items()}
    return {name: value for name, value in have.items() if value != _FP8[name]}


def is_gpt_oss(module: nn.Module) -> bool:
    """
    Return whether a module has the experts of gpt-oss: weights (E, K, N) with alternating gates and
    ups, and a bias.
    """
    return type(module).__name__ == "GptOssExperts"


def chain_of(module: Any, top_k: int) -> Chain:
    """
    Return the chain of a module of experts; a new one if its weights have changed.

    Raises:
        InputError: The module is of a kind that jitgen does not serve.
    """
    activation = activation_of(module)
    sources = _sources(module)
    copies = _held_by(module) if is_gpt_oss(module) else None
    kept = None if torch.compiler.is_compiling() or copies else _kept.get(module)
    if (
        kept is None
        or kept.top_k != top_k
        or kept.activation != activation
        or not kept.places.hold(sources)
    ):
        kept = _made(module, top_k, activation, sources, copies)
    if activation is not None and not _has_norm(module):
        return Chain(config=kept.config, weights=kept.weights)
    return OwnChain(  # which holds the module, so it is not kept beside it
        config=kept.config,
        weights=kept.weights,
        module=module,
        has_activation=activation is not None,
    )


def _made(
    module: Any,
    top_k: int,
    activation: dict[str, Any] | None,
    sources: tuple[Tensor, ...],
    copies: dict[str, PrepackedWeights] | None,
) -> _Kept:
    """
    Return a new record of a module, with `copies` instead of its weights if they are given. The
    record is kept for later calls if its tensors are the module's own parameters and none of them
    was converted.
    """
    _require_blocks(module)
    scales = [each.detach() for each in sources[2:]]
    w13_scale, w2_scale = (each.float() for each in scales) if scales else (None, None)
    biases = {
        f"{ours}_bias": getattr(module, f"{theirs}_bias").detach().float()
        for ours, theirs in zip(_OURS, names_of(module), strict=True)
        if getattr(module, "has_bias", False)
    }
    weights = ExpertWeights(
        **(copies or _plain(module)), w13_scale=w13_scale, w2_scale=w2_scale, **biases
    )
    usual = {"activation": str(Activation.SWIGLU if has_gate(module) else Activation.IDENTITY)}
    found = _Kept(
        places=Places(sources),
        top_k=top_k,
        activation=activation,
        config=_config(weights, top_k, **(activation or usual)),
        weights=weights,
    )
    # Computed weights, such as those that an adapter is added to, are others at each call; and
    # biases, and scales of another type, were copied.
    own = module._parameters
    is_own = all(any(each is mine for mine in own.values()) for each in sources)
    is_copied = bool(biases or copies) or any(each.dtype is not torch.float32 for each in scales)
    if is_own and not is_copied and not _is_traced(sources):
        _kept[module] = found
    return found


def _sources(module: Any) -> tuple[Tensor, ...]:
    """
    Return the tensors that a chain refers to: the weights of both products, and of FP8 weights the
    scales.
    """
    names = names_of(module)
    weights = tuple(getattr(module, name) for name in names)
    if weights[0].dtype is not torch.float8_e4m3fn:
        return weights
    return *weights, *(getattr(module, f"{name}_scale_inv") for name in names)


def _is_traced(sources: tuple[Tensor, ...]) -> bool:
    """Return whether a tensor has no memory to refer to, or is a tensor of a tracer."""
    kinds = Tensor, nn.Parameter
    return torch.compiler.is_compiling() or not all(type(each) in kinds for each in sources)


def _plain(module: Any) -> dict[str, Any]:
    """Return the weights of a module as views (E, N, K)."""
    found = (getattr(module, name).detach() for name in names_of(module))
    if getattr(module, "is_transposed", False):
        found = (each.transpose(1, 2) for each in found)
    return dict(zip(_OURS, found, strict=True))


def hold_mxfp4(module: Any) -> bool:
    """
    Make MXFP4 copies of gpt-oss's weights for later calls; waits for the device.

    Returns:
        Whether MXFP4 can represent all of their values; otherwise there are no copies, and later
        calls read the weights.

    Raises:
        InputError: No copies of these weights may be kept.
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
    """Free the copies of a module's weights, if there are any."""
    _held.pop(module, None)


def _held_by(module: Any) -> dict[str, PrepackedWeights] | None:
    """
    Return the up-to-date MXFP4 copies of a module's weights, made again if the weights have
    changed; None if there are none.
    """
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
    """Return weights in MXFP4; None if a weight has a value or a size that MXFP4 does not have."""
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
    """Check that FP8 experts have blocks of 128 x 128 and quantise tokens dynamically."""
    if getattr(module, names_of(module)[0]).dtype is not torch.float8_e4m3fn:
        return
    scheme, block = module.activation_scheme, module.block_size
    if scheme != "dynamic" or block is None or tuple(block) != _BLOCK:
        raise InputError(
            "experts_implementation",
            f"jitgen quantises tokens itself, for blocks of 128 x 128 (got {scheme} activations "
            f"and blocks of {block} in {type(module).__name__})",
        )
