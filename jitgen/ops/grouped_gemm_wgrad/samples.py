# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `grouped_gemm_wgrad` that test a kernel, with their right results."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.formats.protocol import TORCH
from jitgen.ops.grouped_gemm_wgrad import reference
from jitgen.ops.sizes import GROUPS, AnySizes, Number, grouped_rows, unequal_rows
from jitgen.ops.solved import nothing_unreachable
from jitgen.ops.sums import SolvedSums
from jitgen.ops.tensors import owned_rows
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

_NUM_CLUSTERS = 2
_UNROLLED = 4
"""k-blocks that kernels do in one pass of their loop."""

VECTOR = 8
"""Columns of dy and a in 16 bytes: rows are a multiple of this."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group.
        n: Columns of dy.
        k: Columns of a.
    """

    numbers = (GROUPS, Number("M", "rows in all"), Number("N", "N"), Number("K", "K"))
    words = "rows {rows}, N {n}, K {k}"

    rows: tuple[int, ...]
    n: int
    k: int
    num_sms: int

    @classmethod
    def of(cls, config: GroupedGemmWgradConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return the sizes that test `config`, which together execute all of a kernel.

        Two clusters share several tiles of each group; N and K have tails of 16 bytes. There are
        tiny and empty groups, groups of whole k-blocks, and a group with more k-blocks than the
        pipeline of operands has stages, whose number leaves the largest remainder after the
        unrolled loop, with a tail. The last group has one row more than whole blocks.
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
    def edges(cls, config: GroupedGemmWgradConfig, arch: Arch) -> tuple[Self, ...]:
        """Return sizes with a tall result, of more than one strip of tiles, and with a wide one."""
        tile, cluster = config.tile, config.cluster
        height = tile.m * cluster.m * (config.raster + 1)
        rows, sms = (tile.k, tile.k - 1, 1), _NUM_CLUSTERS * cluster.size
        wide = 2 * tile.n * cluster.n
        return (
            cls(rows=rows, n=height, k=VECTOR, num_sms=sms),
            cls(rows=rows, n=VECTOR, k=wide, num_sms=sms),
        )

    @classmethod
    def of_numbers(cls, config: GroupedGemmWgradConfig, *numbers: int) -> Self:
        groups, m, n, k = numbers
        rows = unequal_rows(m, groups)
        return cls(rows=rows, n=n, k=k, num_sms=_NUM_CLUSTERS * config.cluster.size)


unreachable = nothing_unreachable


def tile(config: GroupedGemmWgradConfig) -> tuple[int, int]:
    """Return the rows and columns of the result that one CTA computes."""
    return config.tile.m, config.tile.n


def make(
    config: GroupedGemmWgradConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> SolvedSums:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Rows of no group are NaN, and so is `out`, so that unwritten values are found.
    """
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups = grouped_rows(config.layout, sizes.rows)
    groups = groups.to(device)
    named: dict[str, Any] = {"offs": None, "masked_m": None, ARGUMENT[config.layout]: groups}
    owned = owned_rows(lead[-1], **named, m_indices=None)

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
    named["dtype"] = torch.float64
    return SolvedSums(
        arguments={"dy": dy, "a": a, ARGUMENT[config.layout]: groups, "out": out},
        is_exact=is_exact,
        expected=reference.sums(dy, a, **named),
        magnitude=partial(reference.sums, dy.abs(), a.abs(), **named),
        of_groups=True,
    )
