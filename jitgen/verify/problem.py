# SPDX-License-Identifier: Apache-2.0
"""
Problems that put a kernel to the test: large enough to wrap every ring, with every kind of edge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.errors import ConfigError
from jitgen.model import Arch, KernelConfig, Layout, ScaleGranularity, require
from jitgen.model.dtypes import SCALE_BLOCK
from jitgen.ops import quantize, reference
from jitgen.ops.dtypes import TORCH
from jitgen.select.menu import GROUP_ALIGNMENT

ACCUMULATOR_BITS = 22
"""Bits that sums keep: float32's 24, less its roundings."""

_SIZES = re.compile(r"(\d+):(\d+):(\d+):(\d+)")
_NUM_CLUSTERS = 2
_UNROLLED = 8
"""Blocks of K that kernels do in one pass of their loop."""

VECTOR_BITS = 128
"""What rows of operands and results have in multiples."""

WARP = 32
"""Lanes that look at groups together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of the output.
        k: Length of the sums.
        num_sms: SMs of the GPU: few, so that a CTA gets several tiles.
    """

    rows: tuple[int, ...]
    n: int
    k: int
    num_sms: int

    @classmethod
    def of(cls, config: KernelConfig, arch: Arch) -> Self:
        """
        Return sizes that test `config`: two clusters share a dozen tiles, each deeper than the ring
        of operands and than an unrolled loop over K; more groups than lanes, which are empty, tiny,
        one row short of a tile and one row beyond it; and tails of N and K, of 16 bytes each.
        """
        tile, cluster, types = config.tile, config.cluster, config.operands
        stages = getattr(require(config, arch).derived, "num_ab_stage", 1)
        height = tile.m * cluster.m
        return cls(
            rows=(3, 0, height + 1, *[0] * WARP, height - 1),
            n=2 * tile.n * cluster.n + VECTOR_BITS // types.out_dtype.bits,
            k=max(stages, _UNROLLED) * tile.k + tile.k + VECTOR_BITS // types.a_dtype.bits,
            num_sms=_NUM_CLUSTERS * cluster.size * config.schedule.split_k,
        )

    @classmethod
    def parse(cls, text: str, config: KernelConfig) -> Self:
        """
        Return the sizes that ``G:M:N:K`` stands for: M rows in G groups, as unequal as it goes.

        Raises:
            ConfigError: `text` is something else.
        """
        match = _SIZES.fullmatch(text)
        groups, m, n, k = map(int, match.groups()) if match else (0, 0, 0, 0)
        if min(groups, n, k) < 1:
            raise ConfigError(f"problem {text!r} is not G:M:N:K: groups, rows in all, N, K")
        ends = [m * (i * i) // (groups * groups) for i in range(1, groups + 1)]
        rows = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
        num_sms = _NUM_CLUSTERS * config.cluster.size * config.schedule.split_k
        return cls(rows=rows, n=n, k=k, num_sms=num_sms)

    def __str__(self) -> str:
        """Return the sizes in words."""
        runs = [(count, len([*equal])) for count, equal in groupby(self.rows)]
        rows = " + ".join(
            f"{times} x {count}" if times > 1 else f"{count}" for count, times in runs
        )
        return f"rows {rows}, N {self.n}, K {self.k}, {self.num_sms} SMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """
    One call with its answer.

    Attributes:
        is_exact: Small integers and scales that are powers of two: every sum is exact, whatever its
            order.
        arguments: a, b, a_scale, b_scale, groups and out, as kernels take them; out is all NaN.
        expected: Shape of out, float32: what float32 arithmetic gives.
        magnitude: The same sums over absolute values: what rounding errors are relative to.
        is_owned: Shape of out, bool: false in rows that no group owns.
    """

    is_exact: bool
    arguments: tuple[Tensor, ...]
    expected: Tensor
    magnitude: Tensor
    is_owned: Tensor

    @property
    def out(self) -> Tensor:
        """Where the result goes."""
        return self.arguments[-1]

    def wrong(self) -> int:
        """
        Return how many values of the result are wrong.

        Exact problems want the rounded sum, bit for bit. Others allow half a unit in the last place
        of the output, and what rounding the sums can do. Rows that no group owns stay as they were.
        """
        out, owned = self.out, self.is_owned
        touched = ~out.isnan() & ~owned
        if self.is_exact:
            differ = out != self.expected.to(out.dtype)
        else:
            half_unit = torch.finfo(out.dtype).eps / 2 * 1.01
            allowed = self.expected.abs() * half_unit + self.magnitude * 2.0**-ACCUMULATOR_BITS
            differ = ~((out.float() - self.expected).abs() <= allowed)  # a NaN is wrong
        return int((touched | differ & owned).sum())

    def errors(self) -> tuple[float, float]:
        """
        Return the error relative to the float32 result: in the Frobenius norm, and the largest one
        over the largest value.
        """
        want = self.expected[self.is_owned]
        error = self.out[self.is_owned].float() - want
        if not error.numel():
            return 0.0, 0.0
        largest = float(want.abs().max()) or 1.0
        return float(error.norm()) / (float(want.norm()) or 1.0), float(error.abs().max()) / largest


def make(config: KernelConfig, sizes: Sizes, *, is_exact: bool, seed: int = 0) -> Problem:
    """Return a call of `config` with `sizes`, the same for the same `seed`."""
    chance = torch.Generator().manual_seed(seed)
    owned, named = _rows(config, sizes.rows)
    lead, groups = tuple(owned.shape), len(sizes.rows)
    a_scale, b_scale = _scales(config, lead, (groups, sizes.n, sizes.k), chance, is_exact)
    operands = (
        _values((*lead, sizes.k), config, chance, is_exact),
        _values((groups, sizes.n, sizes.k), config, chance, is_exact),
    )
    a, b = operands
    out = torch.full((*lead, sizes.n), float("nan"), dtype=TORCH[config.operands.out_dtype])
    want = {"a_scale": a_scale, "b_scale": b_scale, **named, "out_dtype": torch.float32}
    plus_a, plus_b = (x.float().abs().to(x.dtype) for x in operands)
    return Problem(
        is_exact=is_exact,
        arguments=(a, b, a_scale, b_scale, *named.values(), out),
        expected=reference.grouped_gemm(a, b, **want),
        magnitude=reference.grouped_gemm(plus_a, plus_b, **want),
        is_owned=owned.unsqueeze(-1).expand(out.shape),
    )


def _values(
    shape: tuple[int, ...], config: KernelConfig, chance: torch.Generator, is_exact: bool
) -> Tensor:
    if is_exact:
        values = torch.randint(-2, 3, shape, generator=chance).float()
    else:
        values = torch.randn(shape, generator=chance)
    return values.to(TORCH[config.operands.a_dtype])


def _scales(
    config: KernelConfig,
    lead: tuple[int, ...],
    b_shape: tuple[int, int, int],
    chance: torch.Generator,
    is_exact: bool,
) -> tuple[Tensor, Tensor]:
    """Return scales of a and b between 1/4 and 4, in the layout that kernels read."""

    def scale(*shape: int) -> Tensor:
        if is_exact:
            return torch.exp2(torch.randint(-2, 3, shape, generator=chance).float())
        return torch.rand(shape, generator=chance) * 2 + 0.5

    groups, n, k = b_shape
    blocks_of_n, blocks_of_k = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    match config.operands.scale_granularity:
        case ScaleGranularity.BLOCK128:
            a_scale = quantize.kernel_layout(scale(*lead, blocks_of_k))
            return a_scale, scale(groups, blocks_of_n, blocks_of_k)
        case ScaleGranularity.ROW:
            return scale(*lead), scale(groups, n)
        case _:
            return scale(1), scale(groups)


def _rows(config: KernelConfig, rows: tuple[int, ...]) -> tuple[Tensor, dict[str, Any]]:
    """
    Return which rows of a are owned (its leading shape), and the argument that says so.

    Every layout gets rows that nobody owns.
    """
    if config.layout is Layout.RAGGED:
        ends = list(accumulate(rows))
        owned = torch.arange(ends[-1] + 5) < ends[-1]
        return owned, {"offs": torch.tensor(ends, dtype=torch.int32)}
    if config.layout is Layout.MASKED:
        counts = torch.tensor(rows, dtype=torch.int32)
        owned = torch.arange(max(rows) + 3)[None, :] < counts[:, None]
        return owned, {"masked_m": counts}
    indices: list[int] = []
    for group, count in enumerate(rows):
        indices += [group] * count + [-1] * (-count % GROUP_ALIGNMENT)
    indices += [-1] * GROUP_ALIGNMENT  # a whole tile of padding
    m_indices = torch.tensor(indices, dtype=torch.int32)
    return m_indices >= 0, {"m_indices": m_indices}
