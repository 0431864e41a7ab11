# SPDX-License-Identifier: Apache-2.0
"""
Derivatives of activations in torch, by the formulas of the kernels of `activation_backward`.

Beyond its limit, the derivative of a gate or an up is 0. The derivative of ``relu`` at 0 is 0, as
in torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError

Parts = tuple[Tensor, Tensor, Tensor | None]
"""
An activation, its derivative with respect to gates or values, and its derivative with respect to
ups.
"""


def of_gate(  # noqa: PLR0911  # one formula for each activation
    activation: Activation, gate: Tensor, up: Tensor | None, *numbers: float
) -> Parts:
    """
    Return the activation of gates and ups, or of values without a gate, and its derivatives.

    Args:
        activation: The activation.
        gate: The gates, of any float type; the values, where there are no gates.
        up: The ups, of the same shape and type; None without gates.
        numbers: The numbers of the activation, in the order of its `numbers`.

    Returns: The activation; its derivative with respect to each gate, or value; and its derivative
    with respect to each up, None without gates.
    """
    if up is None:
        return *_WITHOUT_GATE[activation](gate), None
    match activation:
        case Activation.SWIGLU:
            left, slope = _silu(gate)
            return left * up, slope * up, left
        case Activation.SWIGLU_CLAMP:
            (limit,) = numbers
            return _limited(gate, up, limit, 1.0, 0.0)
        case Activation.SWIGLU_OAI:
            limit, alpha = numbers
            return _limited(gate, up, limit, alpha, 1.0)
        case Activation.SWIGLU_BIAS:
            return _limited(gate, up, *numbers)
        case Activation.SWIGLU_STEP:
            (limit,) = numbers
            (left, slope), right = _silu(gate), up.clamp(-limit, limit)
            slope = torch.where(left > limit, 0.0, slope)
            left = left.clamp(max=limit)
            return left * right, slope * right, torch.where(up.abs() > limit, 0.0, left)
        case Activation.SITU:
            gate_cap, up_cap = numbers
            left, left_slope = _softcap(gate, gate_cap)
            right, right_slope = _softcap(up, up_cap)
            open_, shut = torch.sigmoid(gate), torch.sigmoid(-gate)
            slope = open_ * (left_slope + left * shut)
            return left * open_ * right, slope * right, left * open_ * right_slope
        case Activation.GEGLU:
            left, slope = _gelu(gate)
            return left * up, slope * up, left
        case Activation.GEGLU_TANH:
            left, slope = _gelu_tanh(gate)
            return left * up, slope * up, left
    raise InputError("activation", f"must be one with a gate, or without ups (got {activation})")


def _limited(gate: Tensor, up: Tensor, limit: float, alpha: float, beta: float) -> Parts:
    """
    Return gate * sigmoid(alpha gate) * (up + beta) of a limited gate and a limited up, and the
    derivatives.
    """
    left, slope = _silu(gate.clamp(max=limit), alpha)
    right = up.clamp(-limit, limit) + beta
    slope = torch.where(gate > limit, 0.0, slope)
    return left * right, slope * right, torch.where(up.abs() > limit, 0.0, left)


def _silu(x: Tensor, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return x * sigmoid(alpha x) and its derivative."""
    open_, shut = torch.sigmoid(alpha * x), torch.sigmoid(-alpha * x)
    return x * open_, open_ * (1 + alpha * x * shut)


def _softcap(x: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    bounded = torch.tanh(x / cap)
    return cap * bounded, 1 - bounded * bounded


def _gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x times the normal distribution function, and the derivative of this product."""
    below = 0.5 * torch.erfc(-(0.5**0.5) * x)
    density = torch.exp(-0.5 * x * x) * (2 * torch.pi) ** -0.5
    return x * below, below + x * density


def _gelu_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    factor = 2 * (2 / torch.pi) ** 0.5
    u, du = factor * (x + 0.044715 * x**3), factor * (1 + 3 * 0.044715 * x * x)
    open_, shut = torch.sigmoid(u), torch.sigmoid(-u)
    return x * open_, open_ * (1 + x * shut * du)


def _relu(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clamp(min=0), (x > 0).to(x.dtype)


def _relu2(x: Tensor) -> tuple[Tensor, Tensor]:
    positive = x.clamp(min=0)
    return positive * positive, 2 * positive


_WITHOUT_GATE: dict[Activation, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    Activation.RELU2: _relu2,
    Activation.RELU: _relu,
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.IDENTITY: lambda x: (x, torch.ones_like(x)),
}
