# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `moe_fc2_dense` that test a kernel, with their right results."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem, Operands
from jitgen.config.moe_fc2_dense import TOP_K, MoEFc2DenseConfig
from jitgen.config.operation import Excuse
from jitgen.formats import find_format
from jitgen.formats.block128 import kernel_layout
from jitgen.formats.protocol import TORCH, Rows
from jitgen.ops.edges import around, each_once
from jitgen.ops.grouped_gemm.draws import POISON, Draw
from jitgen.ops.moe_fc2_dense import reference
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.sums import SolvedSums
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

_NUM_CLUSTERS = 2
_IDLE = 5
"""One in this number of experts gets no token, and its weights are NaN."""

_SCALE_COLUMNS = 128
"""Columns of b that share a scale, where scales are those of blocks."""

VECTOR_BITS = 128
"""Rows of operands and results are a multiple of this."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        tokens: Number of tokens, the rows of a.
        experts: Number of experts, the matrices of b.
        n: Columns of the output.
        k: Length of one expert's sums.
        top_k: Number of experts of a token; 0: tokens have no experts.
    """

    numbers = (Number("E", "experts"), Number("T", "tokens"), Number("N", "N"), Number("I", "I"))
    words = "{tokens} tokens, {experts} experts, {top_k} of them each, N {n}, I {k}"

    tokens: int
    experts: int
    n: int
    k: int
    top_k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: MoEFc2DenseConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return the sizes that test `config`, which together execute all of a kernel.

        The first is wide: two clusters share four tiles, and the last tile has a single token.
        There are more k-blocks than the pipeline of operands has stages and than are handed over at
        once; N and the K of an expert have tails of 16 bytes.

        The second is deep: one tile that is not full, and more experts with tokens than the kernel
        lists at once, in each part of a split, each with less than a k-block.

        In the third no token has an expert, so that all sums are 0.
        """
        tile, cluster, types = config.tile, config.cluster, config.operands
        split_k = config.schedule.split_k
        derived = require(config, arch).derived
        vector = VECTOR_BITS // types.a_dtype.bits
        part = getattr(derived, "part_m", 0) or 1
        listed = getattr(derived, "listed_experts", 8)
        ctas = cluster.size * split_k
        wide = cls(
            tokens=tile.m * cluster.m + 1,
            experts=26 * split_k,
            n=tile.n * cluster.n + VECTOR_BITS // types.out_dtype.bits,
            k=tile.k + vector,
            top_k=2,
            num_sms=_NUM_CLUSTERS * ctas,
        )
        deep = cls(
            tokens=tile.m - (part if part < tile.m else 1),
            experts=(listed + 6) * _IDLE // (_IDLE - 1) * split_k,
            n=tile.n,
            k=vector,
            top_k=TOP_K * split_k,
            num_sms=ctas,
        )
        none = cls(tokens=3, experts=2, n=tile.n, k=vector, top_k=0, num_sms=ctas)
        return wide, deep, none

    @classmethod
    def edges(cls, config: MoEFc2DenseConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return a few sizes: tokens and columns around those of a tile and of a scale, the K of an
        expert around a k-block, and experts around the number that is listed at once and around the
        stages of the pipeline of operands. One problem has more tiles along M than the raster
        places one after another on the same tile of b.
        """
        tile, cluster, types = config.tile, config.cluster, config.operands
        split_k = config.schedule.split_k
        derived = require(config, arch).derived
        stages = getattr(derived, "num_ab_stage", 1)
        listed = getattr(derived, "listed_experts", 8)
        tokens = Number("T", "")
        columns = Number("N", "", multiple=VECTOR_BITS // types.out_dtype.bits)
        inner = Number("I", "", multiple=VECTOR_BITS // types.a_dtype.bits)
        height, width, vector = tile.m * cluster.m, tile.n * cluster.n, inner.multiple
        few = each_once(
            around(tokens, height),
            around(columns, width),
            around(inner, tile.k),
            around(Number("E", ""), stages * split_k, listed * split_k),
        )
        high = ((config.schedule.raster + 1) * height, width + columns.multiple, vector, 1)
        broad = (3, max(_SCALE_COLUMNS, 2 * width) + columns.multiple, tile.k, 3)
        return tuple(
            cls(
                tokens=t,
                experts=experts,
                n=n,
                k=k,
                top_k=min(experts, TOP_K * split_k),
                num_sms=_NUM_CLUSTERS * cluster.size * split_k,
            )
            for t, n, k, experts in (*few, high, broad)
        )

    @classmethod
    def of_numbers(cls, config: MoEFc2DenseConfig, *numbers: int) -> Self:
        experts, tokens, n, k = numbers
        num_sms = _NUM_CLUSTERS * config.cluster.size * config.schedule.split_k
        return cls(tokens=tokens, experts=experts, n=n, k=k, top_k=TOP_K, num_sms=num_sms)


def unreachable(config: MoEFc2DenseConfig) -> tuple[Excuse, ...]:
    """Return the branches of kernels of `config` that no problem reaches."""
    if config.tile.m != 64 or config.cluster.size > 1:
        return ()
    return (
        Excuse("m_blocks == 0", "a tile of 64 tokens is one warpgroup's, and has one at least"),
    )


def tile(config: MoEFc2DenseConfig) -> tuple[int, int]:
    """Return the rows and columns of the result that one CTA computes."""
    return config.tile.m, config.tile.n


def make(
    config: MoEFc2DenseConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> SolvedSums:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Some experts have no token, and their weights are NaN. `out` is NaN, so that unwritten values
    are found, and so is the memory between the columns of alpha. The scales of random numbers
    differ widely, except with the first seed.
    """
    return of_sizes(
        config.operands, sizes, is_exact=is_exact, is_extreme=seed > 0, seed=seed, device=device
    )


def of_sizes(
    types: Operands,
    sizes: Sizes,
    *,
    is_exact: bool,
    is_extreme: bool = False,
    seed: int = 0,
    device: str = "cpu",
    spoils_idle: bool = True,
    has_idle: bool = True,
) -> SolvedSums:
    """
    Return a call with its right results for operands of these types.

    Args:
        types: The types.
        sizes: The sizes.
        is_exact: Whether every sum is to be exact.
        is_extreme: Whether the scales of sums that are not exact differ widely.
        seed: Seed of the random numbers.
        device: Device of the tensors.
        spoils_idle: Whether weights of experts without tokens are NaN.
        has_idle: Whether some experts get no tokens on purpose, besides those that get none by
            chance.
    """
    chance = torch.Generator(device).manual_seed(seed)
    options: dict[str, Any] = {"generator": chance, "device": device}
    form = find_format(types.scale_granularity)
    experts, tokens, n, k = sizes.experts, sizes.tokens, sizes.n, sizes.k

    draw = Draw(chance, is_exact=is_exact, extreme_for=types.out_dtype if is_extreme else None)

    def values(*shape: int) -> Tensor:
        if types.a_dtype is DType.E2M1:
            return draw.values(shape, DType.E2M1)
        dtype = TORCH[types.a_dtype]
        if is_exact:
            return torch.randint(-2, 3, shape, **options).to(torch.float32).to(dtype)
        return torch.randn(shape, dtype=torch.bfloat16, **options).to(dtype)

    def scales(*shape: int) -> Tensor:
        if is_exact:
            return torch.exp2(torch.randint(-1, 2, shape, **options).float())
        return draw.floats(*shape)

    routed = _routed(sizes, options, has_idle=has_idle)
    is_idle = (~routed.any(0)).tolist()
    a, b = values(tokens, experts, k), values(experts, n, k)
    idle = [expert for expert in range(experts) if is_idle[expert]]
    if types.b_dtype is not DType.E2M1:
        b[idle] = torch.zeros((), device=device).to(b.dtype)
    rows = Rows((experts, tokens))
    if form.has_atoms:
        a_scale, b_scale = _atoms(draw, types, sizes, rows)
    else:
        a_scale = form.readable(scales(*form.a_shape(rows, k)))
        b_scale = scales(*form.b_shape(experts, n, k))
    memory = torch.full((experts, -(-tokens // 4) * 4), math.nan, device=device)
    alpha = memory.T[:tokens]
    alpha.copy_(scales(tokens, experts).where(routed, 0.0))
    out = torch.full((tokens, n), math.nan, device=device, dtype=TORCH[types.out_dtype])
    expected = _sums(a, b, a_scale, b_scale, alpha)
    if spoils_idle and types.b_dtype is DType.E2M1:  # which has no NaN
        b_scale.view(torch.uint8)[idle] = POISON[form.dtype]
    elif spoils_idle:
        b[idle] = torch.full((), math.nan, device=device).to(b.dtype)
    alpha = kernel_layout(alpha)
    return SolvedSums(
        arguments={
            "a": a,
            "b": b,
            "a_scale": a_scale,
            "b_scale": b_scale,
            "router_weights": alpha,
            "out": out,
        },
        is_exact=is_exact,
        expected=expected,
        magnitude=partial(_magnitude, a, b, a_scale, b_scale, alpha),
    )


def _atoms(draw: Draw, types: Operands, sizes: Sizes, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return scales of a and b in atoms, NaN for padding tokens and columns."""
    problem = GroupedGemmProblem(
        layout=Layout.MASKED,
        groups=sizes.experts,
        m=sizes.experts * sizes.tokens,
        n=sizes.n,
        k=sizes.k,
        a_dtype=types.a_dtype,
        scale_granularity=types.scale_granularity,
    )
    return draw.scales(problem, rows, torch.ones(rows.shape, dtype=torch.bool), None)


def _magnitude(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, alpha: Tensor) -> Tensor:
    """Return the sums over absolute values, without experts whose weights are NaN."""
    scales = _finite(a_scale), _finite(b_scale)
    return _sums(_magnitudes(a), _magnitudes(b), *scales, alpha.abs())


def _magnitudes(x: Tensor) -> Tensor:
    """Return the magnitudes of operands, of the same type, 0 for NaN."""
    if x.dtype is torch.uint8:  # two e2m1
        return x & 0x77
    return x.float().nan_to_num().abs().to(x.dtype)


def _finite(scale: Tensor) -> Tensor:
    """
    Return scales in atoms with NaN replaced by the smallest value of their type; others unchanged.
    """
    if scale.dtype not in POISON:
        return scale
    codes = scale.view(torch.uint8)
    return codes.masked_fill(codes == POISON[scale.dtype], 0).view(scale.dtype)


def _routed(sizes: Sizes, options: dict[str, Any], *, has_idle: bool) -> Tensor:
    """
    Return which experts each token has, (T, E) bool; with `has_idle` some experts have no token.
    """
    experts = torch.arange(sizes.experts, device=options["device"])
    busy = experts[experts % _IDLE != _IDLE - 1] if has_idle else experts
    routed = torch.zeros(sizes.tokens, sizes.experts, dtype=torch.bool, device=options["device"])
    if not sizes.top_k:
        return routed
    order = torch.rand(sizes.tokens, len(busy), **options).argsort(1)
    return routed.scatter_(1, busy[order[:, : sizes.top_k]], value=True)


def _sums(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, alpha: Tensor) -> Tensor:
    """Return the result of `moe_fc2_dense` in float64, not rounded."""
    if a_scale.dtype is torch.float32:
        a_scale, b_scale = a_scale.double(), b_scale.double()
    return reference.moe_fc2_dense(a, b, a_scale, b_scale, alpha.double(), out_dtype=torch.float64)


BLOCKS = Operands(scale_granularity=ScaleGranularity.BLOCK128)
"""Operands with block scales, as every target has them."""
