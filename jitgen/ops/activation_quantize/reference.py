# SPDX-License-Identifier: Apache-2.0
"""
Reference for the kernels of `activation_quantize`, in float32 torch.

`jitgen.config.activation_quantize.Activation` has the formulas of y, which is float32.
`jitgen.quantize` quantises it, so scales and values are the same bits as it gives for y. Kernels
compute exp() with other roundings: their y may differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitgen.config.activation_quantize import Activation
from jitgen.config.format import IN_ROWS
from jitgen.errors import InputError
from jitgen.formats.block128 import per_token_group
from jitgen.formats.e4m3 import MAX
from jitgen.formats.row import per_row
from jitgen.ops.activation_quantize.numbers import require_numbers
from jitgen.ops.tensors import owned_rows
from jitgen.support.moved import renamed, with_new_names


def activated(  # noqa: PLR0913  # the arguments of the real one
    x: Tensor,
    *,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
    row_numbers: Tensor | None = None,
) -> Tensor:
    """
    Return the activated values of every row.

    Args:
        x: (M, 2 I) or (G, M, 2 I), any float type: gates in columns 0 to I - 1, ups in the others;
            (M, I) or (G, M, I) for activations without a gate.
        activation: One of `jitgen.config.activation_quantize.Activation`.
        interleaved: Gates are in the even columns of x instead, and ups in the odd ones.
        swiglu_limit: As for `jitgen.activation_quantize`, for activations that have it.
        swiglu_alpha: Likewise.
        swiglu_beta: Likewise.
        gate_softcap: Likewise.
        up_softcap: Likewise.
        row_numbers: (M, n) or (G, M, n) float32, the numbers of each row, instead of the numbers
            above.

    Returns:
        (M, I) or (G, M, I) float32.

    Raises:
        InputError: `activation` is not known, or its numbers are missing or others are given, or
            `interleaved` is set for an activation without gates.
    """
    if activation not in tuple(Activation):
        allowed = ", ".join(Activation)
        raise InputError("activation", f"must be one of {allowed} (got {activation!r})")
    given = {
        "swiglu_limit": swiglu_limit,
        "swiglu_alpha": swiglu_alpha,
        "swiglu_beta": swiglu_beta,
        "gate_softcap": gate_softcap,
        "up_softcap": up_softcap,
    }
    numbers: tuple[Any, ...] = require_numbers(
        Activation(activation), given, per_group=row_numbers is not None
    )
    if row_numbers is not None:
        numbers = row_numbers.unsqueeze(-2).unbind(-1)
    if not Activation(activation).is_gated:
        if interleaved:
            raise InputError("interleaved", f"must be False for {activation}, which has no gate")
        return of_gate(Activation(activation), x.float(), None, *numbers)
    columns = x.shape[-1] // 2
    gate = (x[..., 0::2] if interleaved else x[..., :columns]).float()
    up = (x[..., 1::2] if interleaved else x[..., columns:]).float()
    return of_gate(Activation(activation), gate, up, *numbers)


def of_gate(  # noqa: PLR0911  # one formula for each activation
    activation: Activation, gate: Tensor, up: Tensor | None, *numbers: Any
) -> Tensor:
    """
    Apply the activation to gates and ups, tensors of one shape and one float type, or to values
    without a gate; return the result in that type.

    Args:
        activation: The activation.
        gate: The gates; the values, where there are no gates.
        up: The ups; None without gates.
        numbers: The numbers of the activation, in the order of its `numbers`: one for all values,
            or a tensor with one for each row.
    """
    if up is None:
        return _WITHOUT_GATE[activation](gate)
    match activation:
        case Activation.SWIGLU:
            return gate / (1 + torch.exp(-gate)) * up
        case Activation.SWIGLU_OAI:
            limit, alpha = numbers
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return gate / (1 + torch.exp(-alpha * gate)) * (up + 1)
        case Activation.SWIGLU_CLAMP:
            (limit,) = numbers
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return _silu(gate) * up
        case Activation.SWIGLU_BIAS:
            limit, alpha, beta = numbers
            gate, right = gate.clamp(max=limit), torch.add(up.clamp(-limit, limit), beta)
            return gate / (1 + torch.exp(-alpha * gate)) * right
        case Activation.SWIGLU_STEP:
            (limit,) = numbers
            return _silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
        case Activation.SITU:
            gate_cap, up_cap = numbers
            sigmoid = 1 / (1 + torch.exp(-gate))
            return _softcap(gate, gate_cap) * sigmoid * _softcap(up, up_cap)
        case Activation.GEGLU:
            return _gelu(gate) * up
        case Activation.GEGLU_TANH:
            return _gelu_tanh(gate) * up
    raise InputError("activation", f"must be one with a gate, or without ups (got {activation})")


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _softcap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def _gelu(x: Tensor) -> Tensor:
    """Return x times the normal distribution function, exact in its tail, unlike 1 + erf()."""
    return x * (0.5 * torch.erfc(-(0.5**0.5) * x))


def _gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu's approximation by tanh; (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u))."""
    return x / (1 + torch.exp(-2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


_WITHOUT_GATE: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.RELU2: lambda x: x.clamp(min=0) * x.clamp(min=0),
    Activation.RELU: lambda x: x.clamp(min=0),
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.IDENTITY: lambda x: x,
}


def activation_quantize(  # noqa: PLR0913  # the arguments of the real one
    x: Tensor,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    format: str = "block128",  # noqa: A002  # as of the real one
    global_scale: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
    group_numbers: Tensor | None = None,
    power_of_two: bool = False,
    **old: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    Return activated and quantised rows, computed slowly and plainly.

    Waits for the device. Rows of no group are 0, their scales 1.

    Args:
        x: (M, 2 I) bfloat16, or (G, M, 2 I) with `masked_m`; I columns without gates.
        offs: (G,) int32: where the rows of each group end. Exactly one of these three is given.
        m_indices: (M,) int32: the group of each row, -1 for padding.
        masked_m: (G,) int32: how many rows of each matrix count.
        format: ``block128``, ``row``, ``tensor`` or ``none``.
        global_scale: (1,) float32, by which values are divided; for ``tensor`` only.
        activation: As for `activated`.
        interleaved: As for `activated`.
        swiglu_limit: As for `activated`.
        swiglu_alpha: As for `activated`.
        swiglu_beta: As for `activated`.
        gate_softcap: As for `activated`.
        up_softcap: As for `activated`.
        group_numbers: (G, n) float32, the numbers of each group, instead of the numbers above.
        power_of_two: Round scales up to powers of two.
        **old: Arguments by their old names.

    Returns:
        q: (M, I) or (G, M, I) float8_e4m3fn, row-major; bfloat16 for ``none``.
        scale: For ``block128`` (M, ceil(I / 128)) or (G, M, ceil(I / 128)) float32 with M
            contiguous, as `jitgen.quantize.per_token_group` gives it; for ``row`` (M,) or (G, M)
            float32; for ``tensor`` the one given; None for ``none``.

    Raises:
        InputError: The arguments do not fit each other.
    """
    if old:
        return activation_quantize(**with_new_names(activation_quantize, locals()))
    row_numbers = None
    if group_numbers is not None:
        row_numbers = group_numbers[_groups_of_rows(x, offs, m_indices, masked_m)]
    y = activated(
        x,
        activation=activation,
        interleaved=interleaved,
        swiglu_limit=swiglu_limit,
        swiglu_alpha=swiglu_alpha,
        swiglu_beta=swiglu_beta,
        gate_softcap=gate_softcap,
        up_softcap=up_softcap,
        row_numbers=row_numbers,
    )
    if format not in IN_ROWS:
        allowed = ", ".join(IN_ROWS)
        raise InputError("format", f"must be one of {allowed}")
    if (global_scale is not None) != (format == "tensor"):
        raise InputError("global_scale", "is given for scales of a whole tensor, and only there")
    y = y.where(owned_rows(x.shape[-2], offs, m_indices, masked_m).unsqueeze(-1), 0.0)
    if format == "block128":
        return per_token_group(y, power_of_two=power_of_two)
    if format == "row":
        return per_row(y, power_of_two=power_of_two)
    if global_scale is not None:
        return (y / global_scale).clamp(-MAX, MAX).to(torch.float8_e4m3fn), global_scale
    return y.to(torch.bfloat16), None


def _groups_of_rows(
    x: Tensor, offs: Tensor | None, m_indices: Tensor | None, masked_m: Tensor | None
) -> Tensor:
    """
    Return the group of each row, (M,), or of each matrix, (G, 1); an arbitrary group for rows of no
    group.
    """
    if masked_m is not None:
        return torch.arange(len(masked_m), device=x.device)[:, None]
    if m_indices is not None:
        return m_indices.clamp(min=0)
    rows = torch.arange(x.shape[-2], device=x.device)
    return torch.searchsorted(offs, rows, right=True).clamp(max=len(offs) - 1)  # type: ignore[arg-type]


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
