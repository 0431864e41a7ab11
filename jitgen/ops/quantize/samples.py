# SPDX-License-Identifier: Apache-2.0
"""Calls of `quantize` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.operation import Result
from jitgen.config.quantize import Format, QuantizeConfig
from jitgen.errors import ConfigError
from jitgen.formats import atoms
from jitgen.formats.mx32 import mxfp4, mxfp8
from jitgen.formats.nv16 import nvfp4
from jitgen.formats.protocol import Rows
from jitgen.ops.solved import (
    Compared,
    compared,
    nothing_unreachable,
    numbers_of,
    rows_in_words,
    unequal_rows,
)
from jitgen.support.frozen import frozen

UNTOUCHED = 77
"""What bytes of q and scales hold before."""

_WARP = 32
_COLUMNS = 16


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group; contiguous matrices have as many as the largest.
        k: Columns.
        num_sms: SMs of the GPU: few, so that a warp gets several tiles.
    """

    rows: tuple[int, ...]
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: QuantizeConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it, one of two blocks of atoms, and two tiles of columns
        that end within a scale's.
        """
        height = config.tiling.rows
        k = config.tiling.vector * _WARP + _COLUMNS
        if config.layout is Layout.CONTIGUOUS:
            return (cls(rows=(atoms.ROWS + height + 1, 0), k=k),)
        groups = (3, 0, height + 1, *[0] * _WARP, height - 1, atoms.ROWS + 1, 2 * height)
        return (cls(rows=groups, k=k),)

    @classmethod
    def parse(cls, text: str, config: QuantizeConfig) -> Self:  # noqa: ARG003  # any serves
        """
        Return the sizes that ``G:M:K`` stands for: M rows in G groups, as unequal as it goes.

        Raises:
            ConfigError: `text` is something else.
        """
        groups, m, k = numbers_of(text, 3)
        if min(groups, k) < 1 or k % _COLUMNS:
            raise ConfigError(
                f"problem {text!r} is not G:M:K: groups, rows in all, K, a multiple of {_COLUMNS}"
            )
        rows = unequal_rows(m, groups)
        return cls(rows=rows, k=k)

    def __str__(self) -> str:
        """Return the sizes in words."""
        rows = rows_in_words(self.rows)
        return f"rows {rows}, K {self.k}, {self.num_sms} SMs"


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        is_exact: Whether values are small integers; results are exact whatever they are.
        owned: Rows of q that belong to a group, bool of its leading shape.
        has_scale: Which bytes of the atoms belong to such a row.
        q, scale: What the kernel writes.
        expected_q, expected_scale: What they must be.
    """

    tensors: tuple[Any, ...]
    is_exact: bool
    owned: Tensor
    has_scale: Tensor
    q: Tensor
    scale: Tensor
    expected_q: Tensor
    expected_scale: Tensor

    def results(self) -> list[Result]:
        """Return the results, byte by byte."""
        group = torch.where(self.owned, 0, -1).flatten()
        every = torch.zeros(self.scale.numel() // atoms.BYTES, dtype=torch.int64)
        owned = self.owned.unsqueeze(-1).expand(self.q.shape)
        return [
            _result("q", self.q, self.expected_q, owned, group),
            _result("scale", self.scale, self.expected_scale, self.has_scale, every),
        ]

    def errors(self) -> tuple[float, float]:
        """Return the part of the bytes that are wrong, and whether one is."""
        wrong = self.wrong()
        return wrong / max(1, self.q.numel() + self.scale.numel()), float(wrong > 0)


def _result(name: str, found: Tensor, expected: Tensor, owned: Tensor, group: Tensor) -> Result:
    have, want = found.view(torch.uint8), expected.view(torch.uint8)
    is_wrong = differ(found, expected).where(owned, have != UNTOUCHED)
    return compared(name, have, want, is_wrong, group)


def differ(found: Tensor, expected: Tensor) -> Tensor:
    """Return which bytes differ; of NaNs, which have a sign on one device only, none does."""
    have, want = found.view(torch.uint8), expected.view(torch.uint8)
    if found.dtype is not torch.float8_e4m3fn:
        return have != want
    return (have != want) & ~((have & want & 0x7F) == 0x7F)


unreachable = nothing_unreachable


def tile(config: QuantizeConfig) -> tuple[int, int]:
    """Return rows and columns of what is told of wrong results together."""
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

    Integers have ties, zeros and whole blocks of them; the others all sizes from subnormal numbers
    on. Ragged and masked rows end before their tensor does.
    """
    chance = torch.Generator(device).manual_seed(seed)
    lead, groups = _rows(config.layout, sizes.rows)
    shape = (*lead, sizes.k)
    if is_exact:
        x = torch.randint(-12, 13, shape, generator=chance, device=device).float()
        x = x * torch.randint(2, (*lead, sizes.k // _COLUMNS), generator=chance, device=device)[
            ..., None
        ].expand(*lead, -1, _COLUMNS).reshape(shape)
    else:
        powers = torch.randint(-140, 120, (*lead, 1), generator=chance, device=device)
        x = torch.randn(shape, generator=chance, device=device) * torch.exp2(powers.float())
    return solved(config, x.bfloat16(), groups, is_exact=is_exact)


def solved(
    config: QuantizeConfig, x: Tensor, groups: Tensor | None, *, is_exact: bool = False
) -> Solved:
    """Return the call for `x` with rows as `groups` says; of its scales over scales some clip."""
    groups = None if groups is None else groups.to(x.device)
    offs = groups if config.layout is Layout.RAGGED else None
    overall: tuple[Tensor, ...] = ()
    if config.format is Format.NVFP4:
        count = 1 if offs is not None else x.shape[0]
        largest = x.float().nan_to_num(0, 0, 0).abs().amax().clamp(1e-30, 1e30) / (6 * 448)
        overall = (largest * torch.linspace(1.0, 0.1, count, device=x.device),)
        q, scale, _ = nvfp4(x, offs=offs, global_scale=overall[0])
    else:
        of = mxfp8 if config.format is Format.MXFP8 else mxfp4
        q, scale = of(x, offs=offs, rounding=str(config.rounding))  # type: ignore[arg-type]
    owned = _owned(config.layout, x, groups)
    rows = Rows(tuple(x.shape[:-1]), 0 if offs is None else len(offs), offs)
    places = owned.to(torch.uint8).unsqueeze(-1).expand(*owned.shape, scale.shape[-2] * 4)
    mine, my_scale = torch.empty_like(q), torch.empty_like(scale)
    for each in (mine, my_scale):
        each.view(torch.uint8).fill_(UNTOUCHED)
    given = () if groups is None else (groups,)
    return Solved(
        tensors=(x, *given, mine, my_scale, *overall),
        is_exact=is_exact,
        owned=owned,
        has_scale=atoms.laid_out(places, rows).bool(),
        q=mine,
        scale=my_scale,
        expected_q=q,
        expected_scale=scale,
    )


def _rows(layout: Layout, rows: Sequence[int]) -> tuple[tuple[int, ...], Tensor | None]:
    """Return the leading shape of x, and what says which rows count."""
    if layout is Layout.CONTIGUOUS:
        return (len(rows), max(rows)), None
    if layout is Layout.MASKED:
        return (len(rows), max(*rows, 1, 1) + 3), torch.tensor(rows, dtype=torch.int32)
    return (sum(rows) + 5,), torch.tensor([*accumulate(rows)], dtype=torch.int32)


def _owned(layout: Layout, x: Tensor, groups: Tensor | None) -> Tensor:
    """Return which rows of `x` count: bool, its leading shape."""
    rows = torch.arange(x.shape[-2], device=x.device).expand(x.shape[:-1])
    if groups is None:
        return rows >= 0
    return rows < (groups[:, None] if layout is Layout.MASKED else groups[-1])
