# SPDX-License-Identifier: Apache-2.0
"""
Activations of transformers' modules of experts as fields of `MoEConfig`.

A module defines its activation in code: by `act_fn`, and in some classes by a special gate. The
activations that kernels compute are listed here by name, and tests compare each with the module's
code. For any other activation the module's code runs between its products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitgen.config.activation_quantize import Activation
from jitgen.ops.numbers import is_number, is_softcap
from jitgen.support.frozen import frozen

_GELUS, _TANH_GELUS = ("GELUActivation",), ("GELUTanh", "PytorchGELUTanh", "NewGELUActivation")
_SILUS = ("SiLU", "SiLUActivation", "silu")

_GATED = {
    **dict.fromkeys(_SILUS, Activation.SWIGLU),
    **dict.fromkeys(_GELUS, Activation.GEGLU),
    **dict.fromkeys(_TANH_GELUS, Activation.GEGLU_TANH),
}
"""Classes of `act_fn`, or its name, and the activation of `MoEConfig` with a gate."""

_ALONE = {
    **dict.fromkeys(_SILUS, Activation.SILU),
    **dict.fromkeys(_GELUS, Activation.GELU),
    **dict.fromkeys(_TANH_GELUS, Activation.GELU_TANH),
    "ReLU": Activation.RELU,
    "ReLUSquaredActivation": Activation.RELU2,
    **dict.fromkeys(("LinearActivation", "Identity"), Activation.IDENTITY),
}
"""Classes of `act_fn`, or its name, and the activation of `MoEConfig` without a gate."""


@frozen
class _Gate:
    """
    The special gate of a class.

    Attributes:
        activation: The activation of `MoEConfig`. The module's `act_fn` must be SiLU, except for
            SITU.
        numbers: The attributes of a module with the activation's numbers, by their names in
            `MoEConfig`.
        interleaved: Whether gates and ups alternate.
    """

    activation: Activation
    numbers: Mapping[str, str]
    interleaved: bool = False


_LIMIT, _ALPHA = {"swiglu_limit": "limit"}, {"swiglu_alpha": "alpha"}
_LONG = {name: name for name in ("swiglu_limit", "swiglu_alpha")}
_CAPS = {name: f"act_fn.{name}.softcap" for name in ("gate_softcap", "up_softcap")}
_OWN = {
    "DeepseekV4Experts": _Gate(activation=Activation.SWIGLU_CLAMP, numbers=_LIMIT),
    **dict.fromkeys(
        ("Glm5NextTextExperts", "HYV4Experts", "HYV4VLExperts"),
        _Gate(activation=Activation.SWIGLU_CLAMP, numbers={"swiglu_limit": "swiglu_limit"}),
    ),
    "GptOssExperts": _Gate(
        activation=Activation.SWIGLU_OAI, numbers=_LIMIT | _ALPHA, interleaved=True
    ),
    "OpenAIPrivacyFilterExperts": _Gate(activation=Activation.SWIGLU_OAI, numbers=_LIMIT | _ALPHA),
    "MiniMaxM3VLExperts": _Gate(activation=Activation.SWIGLU_OAI, numbers=_LONG),
    **dict.fromkeys(
        ("Inkling2Experts", "Inkling2LoopExperts"),
        _Gate(activation=Activation.SITU, numbers=_CAPS),
    ),
}
"""Classes with a special gate."""

_PLAIN = ("_default_apply_gate", "BeamExperts._apply_gate")
"""Gates that are ``act_fn(gate) * up``; Beam's in float32, as kernels compute all of them."""


def activation_of(module: Any) -> dict[str, Any] | None:
    """Return the fields of `MoEConfig` for a module's activation; None if no kernel computes it."""
    act_fn = getattr(module, "act_fn", None)
    name = getattr(act_fn, "__name__", type(act_fn).__name__)
    if not getattr(module, "has_gate", True):
        return _named(_ALONE.get(name))
    gate = type(module)._apply_gate.__qualname__
    if gate in _PLAIN:
        return _named(_GATED.get(name))
    if gate == "FP8Experts._apply_gate":
        return _of_fp8(module, name)
    own = _OWN.get(gate.partition(".")[0])
    is_silu = act_fn is None or name in _SILUS
    if own is None or not (is_silu or own.activation is Activation.SITU):
        return None
    found = _numbered(module, own.activation, own.numbers)
    return found and {**found, "interleaved": own.interleaved}


def _of_fp8(module: Any, name: str) -> dict[str, Any] | None:
    """
    Return the fields of `MoEConfig` for FP8 experts, whose class has the gates of several models;
    None if no kernel computes the activation.
    """
    if getattr(module, "gate_softcap", None) is not None:  # which older ones lack
        return _numbered(module, Activation.SITU, {each: each for each in _CAPS})
    if module.swiglu_alpha is not None:
        return _numbered(module, Activation.SWIGLU_OAI, _LONG)
    if module.limit is None:
        return _named(_GATED.get(name))
    return _numbered(module, Activation.SWIGLU_CLAMP, _LIMIT) if name in _SILUS else None


def _named(activation: Activation | None) -> dict[str, Any] | None:
    return None if activation is None else {"activation": str(activation)}


def _numbered(
    module: Any, activation: Activation, numbers: Mapping[str, str]
) -> dict[str, Any] | None:
    """
    Return the fields of an activation with its numbers; None if kernels do not support one of
    these.
    """
    found = {name: _at(module, place) for name, place in numbers.items()}
    if not all(
        is_softcap(each) if name in _CAPS else is_number(each) and each > 0
        for name, each in found.items()
    ):
        return None
    return {"activation": str(activation), **{name: float(each) for name, each in found.items()}}


def _at(module: Any, place: str) -> Any:
    for name in place.split("."):
        module = getattr(module, name)
    return module
