# SPDX-License-Identifier: Apache-2.0
"""SGLang's activations of experts as fields of `MoEConfig`."""

from __future__ import annotations

from typing import Any

from jitgen.config.activation_quantize import Activation

_SITU_CAP = 4.0
"""The cap of gates of ``situ`` if a layer gives none."""

_PLAIN = {
    ("silu", True): Activation.SWIGLU,
    ("gelu", True): Activation.GEGLU,
    ("gelu_tanh", True): Activation.GEGLU_TANH,
    ("silu", False): Activation.SILU,
    ("gelu", False): Activation.GELU,
    ("relu2", False): Activation.RELU2,
}
"""Activations without numbers, by SGLang's name and whether there is a gate."""


def fields_of(layer: Any) -> dict[str, Any] | None:
    """
    Return the fields of `MoEConfig` for the activation of a layer; None if no kernel computes it.

    Args:
        layer: SGLang's config of a runner.
    """
    alpha, limit, clamp = layer.gemm1_alpha, layer.gemm1_clamp_limit, layer.swiglu_limit
    name = str(layer.activation), bool(layer.is_gated)
    if name == ("situ", True):
        gate = _SITU_CAP if alpha is None else float(alpha)
        caps = None if limit is None else {"gate_softcap": gate, "up_softcap": float(limit)}
        return None if caps is None else {"activation": str(Activation.SITU), **caps}
    if (alpha, limit, clamp) == (None, None, None):
        return {"activation": str(_PLAIN[name])} if name in _PLAIN else None
    return _limited(layer, alpha, limit, clamp) if name == ("silu", True) else None


def _limited(
    layer: Any, alpha: float | None, limit: float | None, clamp: float | None
) -> dict[str, Any] | None:
    """
    Return the fields of a gated SiLU with numbers: gpt-oss's, with the gates and ups of a column
    side by side or in halves; limits after the SiLU; or limits before it.
    """
    if alpha is None:
        kind = Activation.SWIGLU_CLAMP if limit is None else Activation.SWIGLU_STEP
        number = clamp if limit is None else limit
        return None if number is None else {"activation": str(kind), "swiglu_limit": float(number)}
    if limit is None:
        return None
    numbers = {"swiglu_limit": float(limit), "swiglu_alpha": float(alpha)}
    if layer.gate_up_interleaved:
        return {"activation": str(Activation.SWIGLU_OAI), "interleaved": True, **numbers}
    return {"activation": str(Activation.SWIGLU_BIAS), "swiglu_beta": 1.0, **numbers}
