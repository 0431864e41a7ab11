# SPDX-License-Identifier: Apache-2.0
"""
FP8 quantisation, with scales in the layout that kernels read.

A scale is ``s = max(abs(x)) / 448`` over the values that share it, and ``q = x / s`` rounded to
float8_e4m3fn, whose largest value 448 is (OCP 8-bit Floating Point Specification, E4M3); ``q * s``
gives x back to 1/16 of a value, or to s / 1024 where q is subnormal. Values that are all zero have
scale 1. With ``power_of_two`` the scale is rounded up to a power of two, so that multiplying by it
is exact. An infinity or NaN makes its whole block NaN.

Everything runs on the device of its input and does not wait for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.errors import InputError
from jitgen.model.dtypes import SCALE_BLOCK
from jitgen.ops.dtypes import ceil_div

E4M3_MAX = 448.0
_TINY = torch.finfo(torch.float32).tiny
_ROWS_OF_STRIDE = 4


def per_token_group(
    x: Tensor, group: int = SCALE_BLOCK, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations: one scale for every `group` neighbours in a row.

    Args:
        x: (M, K) or (G, M, K), any float type; K need not be a multiple of `group`.
        group: Values along K that share a scale; kernels read 128.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (M, ceil(K / group)) or (G, M, ceil(K / group)) float32, M contiguous, the stride of
            the last dimension padded to a multiple of 4: what `grouped_gemm` reads without a copy.
            `x` is near ``q[m, k] * scale[m, k // group]``.

    Raises:
        InputError: `x` or `group` is not of this kind.
    """
    _check(x, "x", ranks=(2, 3))
    _check_block(group, "group")
    rows, size_k = x.shape[:-1], x.shape[-1]
    blocks = ceil_div(size_k, group)
    values = pad(x.float(), (0, blocks * group - size_k)).view(*rows, blocks, group)
    scale = _scale(values.abs().amax(-1), power_of_two=power_of_two)
    q = _to_e4m3(values / scale.unsqueeze(-1)).view(*rows, blocks * group)
    return q[..., :size_k].contiguous(), kernel_layout(scale)


def per_block(
    w: Tensor, block: int = SCALE_BLOCK, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Quantise weights: one scale for every square of `block` x `block`.

    Args:
        w: (N, K) or (G, N, K), any float type; neither size need be a multiple of `block`.
        block: Side of the square; kernels read 128.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `w`, float8_e4m3fn, row-major.
        scale: (ceil(N / block), ceil(K / block)) float32, row-major, with G in front where `w` has
            it. `w` is near ``q[n, k] * scale[n // block, k // block]``.

    Raises:
        InputError: `w` or `block` is not of this kind.
    """
    _check(w, "w", ranks=(2, 3))
    _check_block(block, "block")
    front, (size_n, size_k) = w.shape[:-2], w.shape[-2:]
    rows, columns = ceil_div(size_n, block), ceil_div(size_k, block)
    padded = pad(w.float(), (0, columns * block - size_k, 0, rows * block - size_n))
    values = padded.view(*front, rows, block, columns, block)
    scale = _scale(values.abs().amax((-3, -1)), power_of_two=power_of_two)
    q = _to_e4m3(values / scale[..., :, None, :, None]).view(padded.shape)
    return q[..., :size_n, :size_k].contiguous(), scale


def per_row(x: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise activations or weights: one scale for every row along K.

    Args:
        x: (M, K) or (G, M, K), any float type.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (M,) or (G, M) float32.
    """
    _check(x, "x", ranks=(2, 3))
    scale = _scale(x.float().abs().amax(-1), power_of_two=power_of_two)
    return _to_e4m3(x.float() / scale.unsqueeze(-1)), scale


def per_matrix(w: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise weights: one scale for every group's matrix.

    Args:
        w: (G, N, K), any float type.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: (G, N, K) float8_e4m3fn, row-major.
        scale: (G,) float32.
    """
    _check(w, "w", ranks=(3,))
    scale = _scale(w.float().abs().amax((-2, -1)), power_of_two=power_of_two)
    return _to_e4m3(w.float() / scale[:, None, None]), scale


def per_tensor(x: Tensor, *, power_of_two: bool = False) -> tuple[Tensor, Tensor]:
    """
    Quantise activations: one scale for all of them.

    Args:
        x: (M, K) or (G, M, K), any float type.
        power_of_two: Round the scale up to a power of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (1,) float32.
    """
    _check(x, "x", ranks=(2, 3), may_be_empty=True)
    largest = x.float().abs().amax() if x.numel() else torch.zeros((), device=x.device)
    scale = _scale(largest, power_of_two=power_of_two)
    return _to_e4m3(x.float() / scale), scale.reshape(1)


def kernel_layout(scale: Tensor) -> Tensor:
    """
    Return scales of a with the values and shape of `scale`, in the layout that kernels read.

    Args:
        scale: (M, KB) or (G, M, KB) float32, any strides.

    Returns:
        The same values, M contiguous, the stride of KB (and G) a multiple of 4 elements, which the
        TMA unit asks for. `scale` itself if it is so already, else a copy.
    """
    rows, blocks = scale.shape[-2:]
    if is_kernel_layout(scale):
        return scale
    stride = ceil_div(max(rows, 1), _ROWS_OF_STRIDE) * _ROWS_OF_STRIDE
    front = scale.shape[:-2]
    copy = scale.new_empty((*front, blocks, stride))[..., :rows].transpose(-1, -2)
    return copy.copy_(scale)


def is_kernel_layout(scale: Tensor) -> bool:
    """Say whether kernels of every target can read `scale` (M, KB) or (G, M, KB) as it is."""
    *front, along_m, along_k = scale.stride()
    rows, blocks = scale.shape[-2:]
    return (
        (along_m == 1 or rows == 1)
        and (along_k % _ROWS_OF_STRIDE == 0 or blocks == 1)
        and all(
            step % _ROWS_OF_STRIDE == 0 or size == 1
            for step, size in zip(front, scale.shape, strict=False)
        )
        and scale.data_ptr() % (4 * _ROWS_OF_STRIDE) == 0
    )


def _scale(largest: Tensor, *, power_of_two: bool) -> Tensor:
    """
    Return the scale of values up to `largest`; never 0 and never subnormal, so that dividing by it
    is safe.
    """
    scale = torch.where(largest == 0, 1.0, (largest / E4M3_MAX).clamp_min(_TINY))
    if not power_of_two:
        return scale
    mantissa, exponent = torch.frexp(scale)
    # frexp's mantissa is in [0.5, 1): 0.5 means a power of two already.
    rounded = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    return torch.where(scale.isfinite(), rounded, scale)  # frexp says nothing of the others


def _to_e4m3(values: Tensor) -> Tensor:
    """
    Round to float8_e4m3fn; the division may exceed 448 by one rounding, which would become a NaN.
    """
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).contiguous()


def _check(x: Tensor, argument: str, *, ranks: tuple[int, ...], may_be_empty: bool = False) -> None:
    wanted = " or ".join(f"{rank}" for rank in ranks)
    if not isinstance(x, Tensor):
        raise InputError(argument, f"must be a torch tensor (got {type(x).__name__})")
    if x.dim() not in ranks:
        raise InputError(argument, f"must have {wanted} dimensions (got shape {tuple(x.shape)})")
    if not x.is_floating_point():
        raise InputError(argument, f"must be of a float type (got {x.dtype})")
    if not may_be_empty and x.shape[-1] == 0:
        raise InputError(argument, f"must have K of at least 1 (got shape {tuple(x.shape)})")


def _check_block(size: int, argument: str) -> None:
    if type(size) is not int or size < 1:
        raise InputError(argument, f"must be an integer of at least 1 (got {size!r})")
