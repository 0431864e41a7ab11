# SPDX-License-Identifier: Apache-2.0
"""vLLM's activations of experts as fields of `MoEConfig`."""

from __future__ import annotations

from typing import Any

from jitgen.config.activation_quantize import Activation

_PLAIN = {
    "silu": Activation.SWIGLU,
    "gelu": Activation.GEGLU,
    "gelu_tanh": Activation.GEGLU_TANH,
    "silu_no_mul": Activation.SILU,
    "gelu_no_mul": Activation.GELU,
    "gelu_tanh_no_mul": Activation.GELU_TANH,
    "relu2_no_mul": Activation.RELU2,
}
"""Values of vLLM's ``MoEActivation`` without numbers."""

NAMES = frozenset({*_PLAIN, "situ", "swigluoai", "swigluoai_uninterleave", "swiglustep"})
"""The activations that kernels compute if they support the numbers."""

_OAI_LIMIT, _OAI_ALPHA, _STEP_LIMIT = 7.0, 1.702, 7.0
"""Numbers that vLLM's kernels use if a layer gives none."""


def fields_of(moe: Any, quant: Any = None) -> dict[str, Any] | None:
    """
    Return the fields of `MoEConfig` for the activation of a layer; None if no kernel computes it.

    Args:
        moe: vLLM's config of the layer.
        quant: vLLM's config of quantisation, whose numbers take precedence; None if there is none.
    """
    limit, alpha, beta = (
        _number(quant, f"gemm1_{name}", getattr(moe, f"swiglu_{short}", None))
        for name, short in (("clamp_limit", "limit"), ("alpha", "alpha"), ("beta", "beta"))
    )
    name = str(moe.activation.value)
    if name == "situ":
        return _situ(moe.activation_situ_beta, moe.activation_situ_linear_beta)
    if name.startswith("swigluoai"):
        return _swigluoai(limit, alpha, beta, interleaved=name == "swigluoai")
    return _limited(name, limit) if (alpha, beta) == (None, None) else None


def _situ(gate: float | None, up: float | None) -> dict[str, Any] | None:
    return None if gate is None or up is None else _fields(Activation.SITU, gate=gate, up=up)


def _swigluoai(
    limit: float | None, alpha: float | None, beta: float | None, *, interleaved: bool
) -> dict[str, Any] | None:
    """
    Return the fields of gpt-oss's activation: SWIGLU_OAI for alternating gates and ups, with a beta
    of 1; SWIGLU_BIAS for packed ones, with a limit. None for other numbers.
    """
    if interleaved:
        limit = _OAI_LIMIT if limit is None else limit
        alpha = _OAI_ALPHA if alpha is None else alpha
        found = _fields(Activation.SWIGLU_OAI, limit=limit, alpha=alpha)
        return {**found, "interleaved": True} if beta in (None, 1) else None
    if limit is None:
        return None
    numbers = {"alpha": 1.0 if alpha is None else alpha, "beta": 0.0 if beta is None else beta}
    return _fields(Activation.SWIGLU_BIAS, limit=limit, **numbers)


def _limited(name: str, limit: float | None) -> dict[str, Any] | None:
    """
    Return the fields of an activation with no number or only a limit; None if no kernel computes
    it.
    """
    if name == "swiglustep":
        return _fields(Activation.SWIGLU_STEP, limit=_STEP_LIMIT if limit is None else limit)
    if limit is not None:
        return _fields(Activation.SWIGLU_CLAMP, limit=limit) if name == "silu" else None
    return {"activation": str(_PLAIN[name])} if name in _PLAIN else None


_ARGUMENTS = {
    **{name: f"swiglu_{name}" for name in ("limit", "alpha", "beta")},
    **{name: f"{name}_softcap" for name in ("gate", "up")},
}


def _fields(activation: Activation, **numbers: float) -> dict[str, Any]:
    found = {_ARGUMENTS[name]: float(value) for name, value in numbers.items()}
    return {"activation": str(activation), **found}


def _number(quant: Any, name: str, other: float | None) -> float | None:
    found = getattr(quant, name, None)
    return other if found is None else float(found)
