# SPDX-License-Identifier: Apache-2.0
"""Calls of `grouped_gemm_wgrad` that put a kernel to the test, and what they must give."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.config.operation import Result
from jitgen.errors import ConfigError
from jitgen.formats.protocol import TORCH
from jitgen.ops.grouped_gemm.samples import ACCUMULATOR_BITS, distance, rounding
from jitgen.ops.grouped_gemm_wgrad import reference
from jitgen.ops.solved import compared, nothing_unreachable, numbers_of, rows_in_words, unequal_rows
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

_NUM_CLUSTERS = 2
_SPARE_ROWS = 5
_UNROLLED = 4
"""k-blocks that kernels do in one pass of their loop."""

VECTOR = 8
"""Columns of dy and a in 16 bytes: what their rows have in multiples."""


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of dy.
        k: Columns of a.
        num_sms: SMs of the GPU: few, so that a CTA gets several tiles.
    """

    rows: tuple[int, ...]
    n: int
    k: int
    num_sms: int

    @classmethod
    def of(cls, config: GroupedGemmWgradConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return the sizes that test `config`, which together execute all of a kernel.

        Two clusters share several tiles of each group, with tails of N and K of 16 bytes each. The
        groups are tiny, empty, of whole k-blocks, of more than the ring of operands has stages, of
        which the unrolled loop leaves as many as it can behind the first, with a tail; the last one
        ends a row behind a whole block.
        """
        tile, cluster = config.tile, config.cluster
        stages = getattr(require(config, arch).derived, "num_ab_stage", 1)
        deep = -(-max(stages + 1, _UNROLLED + 1) // _UNROLLED) * _UNROLLED
        sizes = cls(
            rows=(3, 0, tile.k, deep * tile.k + 7, 0, 2 * tile.k + 1),
            n=tile.m * cluster.m + VECTOR,
            k=tile.n * cluster.n + VECTOR,
            num_sms=_NUM_CLUSTERS * cluster.size,
        )
        return (sizes,)

    @classmethod
    def parse(cls, text: str, config: GroupedGemmWgradConfig) -> Self:
        """
        Return the sizes that ``G:M:N:K`` stands for: M rows in G groups, as unequal as it goes.

        Raises:
            ConfigError: `text` is something else.
        """
        groups, m, n, k = numbers_of(text, 4)
        if min(groups, m, n, k) < 1:
            raise ConfigError(f"problem {text!r} is not G:M:N:K: groups, rows in all, N, K")
        rows = unequal_rows(m, groups)
        return cls(rows=rows, n=n, k=k, num_sms=_NUM_CLUSTERS * config.cluster.size)

    def __str__(self) -> str:
        """Return the sizes in words."""
        rows = rows_in_words(self.rows)
        return f"rows {rows}, N {self.n}, K {self.k}, {self.num_sms} SMs"


@frozen
class Solved:
    """
    A call with its answer.

    Attributes:
        layout: How rows belong to groups.
        tensors: What kernels take, in order, without the number of SMs.
        is_exact: Whether every sum is exact, whatever its order.
        expected: (G, N, K): the sums in float64.
        magnitude: (G, N, K): the same over absolute values, which rounding errors are relative to.
    """

    layout: Layout
    tensors: tuple[Tensor, ...]
    is_exact: bool
    expected: Tensor
    magnitude: Tensor

    @property
    def out(self) -> Tensor:
        """Where the result goes."""
        return self.tensors[-1]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `jitgen.grouped_gemm_wgrad` by their names."""
        names = ("dy", "a", ARGUMENT[self.layout], "out")
        return dict(zip(names, self.tensors, strict=True))

    def _is_wrong(self, accumulator_bits: int) -> Tensor:
        """(G, N, K), bool."""
        out = self.out
        if self.is_exact:
            return out != self.expected.to(out.dtype)
        allowed = rounding(self.expected, out.dtype) + self.magnitude * 2.0**-accumulator_bits
        return ~((out.double() - self.expected).abs() <= allowed)  # a NaN is wrong

    def wrong(self, accumulator_bits: int = ACCUMULATOR_BITS) -> int:
        """
        Return how many values of the result are wrong: exact problems want the rounded sum, bit for
        bit, others what half a unit in the last place and the roundings of sums allow.

        Args:
            accumulator_bits: Bits that the accumulator keeps: 2.0**-bits of the sum of absolute
                values are lost.
        """
        return int(self._is_wrong(accumulator_bits).sum())

    def results(self) -> list[Result]:
        """Return the result, value by value; a group's rows are its columns of dy."""
        groups, n, _ = self.out.shape
        rows, is_wrong = torch.arange(groups * n), self._is_wrong(ACCUMULATOR_BITS)
        return [compared("out", self.out, self.expected, is_wrong, rows // n, rows % n)]

    def errors(self) -> tuple[float, float]:
        """Return how far the result is from what is expected; see `distance`."""
        return distance([(self.out.double(), self.expected)])


unreachable = nothing_unreachable


def tile(config: GroupedGemmWgradConfig) -> tuple[int, int]:
    """Return rows and columns of the result that one CTA computes."""
    return config.tile.m, config.tile.n


def make(
    config: GroupedGemmWgradConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Rows of no group are NaN, and so is `out`, so that what is not written shows.
    """
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups, owned = _rows(config.layout, sizes.rows)
    groups, owned = groups.to(device), owned.to(device)

    def values(columns: int) -> Tensor:
        shape = (*lead, columns)
        if is_exact:
            drawn = torch.randint(-2, 3, shape, generator=chance, device=device).float()
        else:
            drawn = torch.randn(shape, generator=chance, device=device)
        return drawn.masked_fill(~owned[..., None], math.nan).to(TORCH[config.a_dtype])

    dy, a = values(sizes.n), values(sizes.k)
    out = torch.full(
        (len(sizes.rows), sizes.n, sizes.k),
        math.nan,
        dtype=TORCH[config.out_dtype],
        device=device,
    )
    named = {"offs": None, "masked_m": None, ARGUMENT[config.layout]: groups}
    return Solved(
        layout=config.layout,
        tensors=(dy, a, groups, out),
        is_exact=is_exact,
        expected=reference.sums(dy, a, **named, dtype=torch.float64),
        magnitude=reference.sums(dy.abs(), a.abs(), **named, dtype=torch.float64),
    )


def _rows(layout: Layout, rows: tuple[int, ...]) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Return the leading shape of dy and a, what says whose rows are whose, and which are owned."""
    if layout is Layout.MASKED:
        most = max(rows) + _SPARE_ROWS
        counts = torch.tensor(rows, dtype=torch.int32)
        return (len(rows), most), counts, torch.arange(most) < counts[:, None]
    total = sum(rows)
    offs = torch.tensor([*accumulate(rows)], dtype=torch.int32)
    return (total + _SPARE_ROWS,), offs, torch.arange(total + _SPARE_ROWS) < total
