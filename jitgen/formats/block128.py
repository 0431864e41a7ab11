# SPDX-License-Identifier: Apache-2.0
"""``block128``: one float32 for each 1x128 of a and each 128x128 of b."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.nn.functional import pad

from jitgen.config import ScaleGranularity
from jitgen.config.config import SCALE_BLOCK
from jitgen.formats.e4m3 import check, check_block, rounded, scale_of
from jitgen.formats.protocol import Index, Rows, Shape, at, ceil_div

_ROWS_OF_STRIDE = 4
"""Scales in 16 bytes; the TMA unit needs strides that are multiples of this."""


def per_token_group(
    x: Tensor, group: int = SCALE_BLOCK, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Quantise activations, with one scale for every `group` consecutive values in a row.

    Args:
        x: (M, K) or (G, M, K), any float type; K need not be a multiple of `group`.
        group: Values along K that share a scale; kernels read 128.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `x`, float8_e4m3fn, row-major.
        scale: (M, ceil(K / group)) or (G, M, ceil(K / group)) float32, M contiguous, with the
            stride of the last dimension padded to a multiple of 4, so that `grouped_gemm` reads it
            without a copy. `x` is near ``q[m, k] * scale[m, k // group]``.

    Raises:
        InputError: `x` has a wrong type or shape, or `group` is not a positive integer.
    """
    check(x, "x", ranks=(2, 3))
    check_block(group, "group")
    rows, size_k = x.shape[:-1], x.shape[-1]
    blocks = ceil_div(size_k, group)
    values = pad(x.float(), (0, blocks * group - size_k)).view(*rows, blocks, group)
    scale = scale_of(values.abs().amax(-1), power_of_two=power_of_two)
    q = rounded(values / scale.unsqueeze(-1)).view(*rows, blocks * group)
    return q[..., :size_k].contiguous(), kernel_layout(scale)


def per_block(
    w: Tensor, block: int = SCALE_BLOCK, *, power_of_two: bool = False
) -> tuple[Tensor, Tensor]:
    """
    Quantise weights, with one scale for every square of `block` x `block`.

    Args:
        w: (N, K) or (G, N, K), any float type; neither size need be a multiple of `block`.
        block: Side of the square; kernels read 128.
        power_of_two: Round scales up to powers of two.

    Returns:
        q: Shape of `w`, float8_e4m3fn, row-major.
        scale: (ceil(N / block), ceil(K / block)) float32, row-major, with a leading G if `w` has
            one. `w` is near ``q[n, k] * scale[n // block, k // block]``.

    Raises:
        InputError: `w` has a wrong type or shape, or `block` is not a positive integer.
    """
    check(w, "w", ranks=(2, 3))
    check_block(block, "block")
    front, (size_n, size_k) = w.shape[:-2], w.shape[-2:]
    rows, columns = ceil_div(size_n, block), ceil_div(size_k, block)
    padded = pad(w.float(), (0, columns * block - size_k, 0, rows * block - size_n))
    values = padded.view(*front, rows, block, columns, block)
    scale = scale_of(values.abs().amax((-3, -1)), power_of_two=power_of_two)
    q = rounded(values / scale[..., :, None, :, None]).view(padded.shape)
    return q[..., :size_n, :size_k].contiguous(), scale


def kernel_layout(scale: Tensor) -> Tensor:
    """
    Return scales of a with the values and shape of `scale`, in the layout that kernels read.

    Args:
        scale: (M, KB) or (G, M, KB) float32, any strides.

    Returns:
        The same values, with M contiguous and the strides of KB (and G) multiples of 4 elements,
        which the TMA unit needs: `scale` itself if it has this layout, otherwise a copy. While
        torch.export traces, `scale` itself is always returned, because torch cannot distinguish
        padded strides from unknown sizes; the operation that reads it makes the copy.
    """
    rows, blocks = scale.shape[-2:]
    if is_kernel_layout(scale):
        return scale
    if is_exporting():
        return scale
    return _new(scale, tuple(scale.shape[:-2]), rows, blocks).copy_(scale)


def _new(like: Tensor, front: Shape, rows: int, blocks: int) -> Tensor:
    stride = ceil_div(max(rows, 1), _ROWS_OF_STRIDE) * _ROWS_OF_STRIDE
    steps = (blocks * stride, 1, stride)[-len(front) - 2 :]
    # One operation of torch's: a warm call of `activation_quantize` waits for it.
    return like.new_empty_strided((*front, rows, blocks), steps, dtype=torch.float32)


def is_kernel_layout(scale: Tensor) -> bool:
    """Say whether kernels of every target can read `scale` (M, KB) or (G, M, KB) without a copy."""
    *front, along_m, along_k = scale.stride()
    rows, blocks = scale.shape[-2:]
    return (
        (along_m == 1 or rows == 1)
        and (along_k % _ROWS_OF_STRIDE == 0 or blocks == 1)
        and all(
            step % _ROWS_OF_STRIDE == 0 or size == 1
            for step, size in zip(front, scale.shape, strict=False)
        )
        # A launch asks again: the address of a tracer's tensor is not known yet.
        and (not _has_memory(scale) or scale.data_ptr() % (4 * _ROWS_OF_STRIDE) == 0)
    )


def _has_memory(scale: Tensor) -> bool:
    """Return whether `scale` is a real tensor, not a tracer's."""
    return not is_dynamo_compiling() and type(scale) in (Tensor, torch.nn.Parameter)


class Block128:
    """The format ``block128``; implements `jitgen.formats.protocol.ScaleFormat`."""

    name = ScaleGranularity.BLOCK128
    dtype = torch.float32
    b_rank = 3
    has_alpha = False
    has_atoms = False
    has_readable_orders = True
    words = "for each 128 x 128 values"

    def a_shape(self, rows: Rows, k: int) -> Shape:
        """Return the shape of a's scales: (M, KB) or (G, M, KB), where KB is ceil(K / 128)."""
        return (*rows.shape, ceil_div(k, SCALE_BLOCK))

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """Return the shape of b's scales: (G, ceil(N / 128), ceil(K / 128))."""
        return groups, ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK)

    def is_readable(self, a_scale: Tensor) -> bool:
        """Say whether kernels of every target can read `a_scale` without a copy."""
        return is_kernel_layout(a_scale)

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return `a_scale`, or a copy with M contiguous and padded strides; see `kernel_layout`."""
        return kernel_layout(a_scale)

    def new_a(self, like: Tensor, rows: Rows, k: int) -> Tensor:
        """Return new scales of a, (M, KB) or (G, M, KB), M contiguous."""
        return _new(like, rows.shape[:-1], rows.shape[-1], ceil_div(k, SCALE_BLOCK))

    def part_of_a(self, scale: Tensor, rows: Rows, k: int, *where: Index) -> Tensor:
        """Return the scales of the rows at `where`, as a view."""
        return at(scale, *where)

    def repeated_a(self, scale: Tensor, rows: Rows, k: int) -> Tensor:
        """Return a's scale of each value, (M, K) or (G, M, K)."""
        return scale.repeat_interleave(SCALE_BLOCK, -1)[..., :k]

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """Return one group's scale of each value of b, (N, K)."""
        rows = scale.repeat_interleave(SCALE_BLOCK, 0)
        return rows.repeat_interleave(SCALE_BLOCK, 1)[:n, :k]


FORMAT = Block128()
