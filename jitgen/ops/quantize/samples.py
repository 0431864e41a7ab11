# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `quantize` that test a kernel, with their right results."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.config.quantize import QuantizeConfig
from jitgen.formats import atoms
from jitgen.formats.mx32 import mxfp4, mxfp8
from jitgen.formats.nv16 import nvfp4
from jitgen.formats.protocol import Rows
from jitgen.ops.edges import around, in_pairs, rows_around
from jitgen.ops.sizes import GROUPS, ROWS, AnySizes, Number, grouped_rows, unequal_rows
from jitgen.ops.solved import Output, Solved, nothing_unreachable, untouched
from jitgen.ops.tensors import owned_rows
from jitgen.support.frozen import frozen

_WARP = 32

COLUMNS = 16
"""K is a multiple of this."""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group; contiguous matrices have as many as the largest.
        k: Columns of a row.
    """

    numbers = (GROUPS, ROWS, Number("K", "K", multiple=COLUMNS))
    words = "rows {rows}, K {k}"

    rows: tuple[int, ...]
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: QuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it, one of two blocks of atoms, and two tiles of columns,
        of which the last ends in the middle of a scale's columns. In the contiguous layout there
        are two matrices, each of more than one block of atoms.
        """
        height = config.tiling.rows
        k = config.tiling.vector * _WARP + COLUMNS
        if config.layout is Layout.CONTIGUOUS:
            return (cls(rows=(atoms.ROWS + height + 1, 0), k=k),)
        groups = (3, 0, height + 1, *[0] * _WARP, height - 1, atoms.ROWS + 1, 2 * height)
        return (cls(rows=groups, k=k),)

    @classmethod
    def edges(cls, config: QuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        tiling = config.tiling
        rows = rows_around(tiling.rows, atoms.ROWS)
        if config.layout is Layout.CONTIGUOUS:
            rows = [(max(each), 0) for each in rows]
        columns = around(cls.numbers[-1], tiling.vector * _WARP, 3 * tiling.vector * _WARP)
        return tuple(cls(rows=rows, k=k) for rows, k in in_pairs(rows, columns))

    @classmethod
    def of_numbers(cls, config: QuantizeConfig, *numbers: int) -> Self:
        groups, m, k = numbers
        return cls(rows=unequal_rows(m, groups), k=k)


unreachable = nothing_unreachable


def tile(config: QuantizeConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return config.tiling.rows, _WARP * config.tiling.vector


def make(
    config: QuantizeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.
    Ragged and masked groups end before the last row of their tensor.
    """
    chance = torch.Generator(device).manual_seed(seed)
    lead: tuple[int, ...] = (len(sizes.rows), max(sizes.rows))
    groups = None
    if config.layout is not Layout.CONTIGUOUS:
        lead, groups = grouped_rows(config.layout, sizes.rows)
    x = drawn(chance, lead, sizes.k, config.format, is_exact=is_exact)
    return solved(config, x, groups, is_exact=is_exact)


def drawn(
    chance: torch.Generator, lead: tuple[int, ...], columns: int, form: Format, *, is_exact: bool
) -> Tensor:
    """
    Return bfloat16 rows that are hard to quantise: small integers with ties, zeros and blocks of
    zeros; or random numbers of all magnitudes, subnormal ones included, with some `unusual` ones.
    nvfp4 gets no unusual ones, because values with a NaN scale may have either sign.
    """
    shape, device = (*lead, columns), chance.device
    if is_exact:
        x = torch.randint(-12, 13, shape, generator=chance, device=device).float()
        keep = torch.randint(2, (*lead, columns // COLUMNS), generator=chance, device=device)
        return (x * keep.repeat_interleave(COLUMNS, -1)).bfloat16()
    powers = torch.randint(-140, 120, (*lead, 1), generator=chance, device=device)
    x = torch.randn(shape, generator=chance, device=device) * torch.exp2(powers.float())
    return (x if form is Format.NVFP4 else unusual(chance, x)).bfloat16()


def unusual(chance: torch.Generator, x: Tensor) -> Tensor:
    """Return rows of which one in eight has an infinity, and one in sixteen a NaN, anywhere."""
    options: dict[str, Any] = {"generator": chance, "device": chance.device}
    row, columns = (*x.shape[:-1], 1), x.shape[-1]
    kind = torch.randint(16, row, **options)
    place = torch.randint(max(1, columns), row, **options)
    others = torch.tensor([math.inf, -math.inf, math.nan], device=x.device)
    is_here = torch.arange(columns, device=x.device) == place
    return torch.where(is_here & (kind < len(others)), others[kind.clamp(max=2)], x)


def global_scales(x: Tensor, count: int) -> Tensor:
    """Return `count` global scales for NVFP4, some so small that values are clipped."""
    largest = x.float().nan_to_num(0, 0, 0).abs().amax().clamp(1e-30, 1e30) / (6 * 448)
    return largest * torch.linspace(1.0, 0.1, count, device=x.device)


def owned_scales(scale: Tensor, owned: Tensor, offs: Tensor | None) -> Tensor:
    """Return which scales in atoms belong to the rows that are `owned`: bool of their shape."""
    rows = Rows(tuple(owned.shape), 0 if offs is None else len(offs), offs)
    places = owned.to(torch.uint8).unsqueeze(-1).expand(*owned.shape, scale.shape[-2] * 4)
    return atoms.laid_out(places, rows).bool()


def solved(
    config: QuantizeConfig, x: Tensor, groups: Tensor | None, *, is_exact: bool = False
) -> Solved:
    """Return the call for `x` with the rows of `groups`; some of its global scales clip values."""
    named: dict[str, Tensor | None] = dict.fromkeys(ARGUMENT.values())
    if groups is None:
        owned = torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    else:
        named[ARGUMENT[config.layout]] = groups = groups.to(x.device)
        owned = owned_rows(x.shape[-2], **named)
    offs = named["offs"]
    overall: tuple[Tensor, ...] = ()
    if config.format is Format.NVFP4:
        overall = (global_scales(x, 1 if offs is not None else x.shape[0]),)
        expected, expected_scale, _ = nvfp4(x, offs=offs, global_scale=overall[0])
    else:
        of = mxfp8 if config.format is Format.MXFP8 else mxfp4
        expected, expected_scale = of(x, offs=offs, rounding=str(config.rounding))  # type: ignore[arg-type]
    q, scale = (untouched(torch.empty_like(each)) for each in (expected, expected_scale))
    has_scale = owned_scales(scale, owned, offs)
    return Solved(
        tensors=(x, *(() if groups is None else (groups,)), q, scale, *overall),
        arguments={},
        is_exact=is_exact,
        outputs=(
            Output(name="q", found=q, expected=expected, owned=owned),
            Output(name="scale", found=scale, expected=expected_scale, owned=has_scale),
        ),
    )
