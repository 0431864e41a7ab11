# SPDX-License-Identifier: Apache-2.0
"""
Scales in atoms of 512 bytes: the code shared by formats whose scales tensor cores read directly.

An atom has the scales of 128 rows at 4 consecutive places along K, one byte each: the scale of row
r at place s is byte ``(r % 32) * 16 + (r // 32) * 4 + s`` (NVIDIA, PTX ISA, tcgen05 scale factors;
cuBLAS, "1D block scaling factors layout"). Atoms follow each other along K first, then along rows.
Rows are counted from the start of their group, so every group begins with a new atom: the number of
the first block of a ragged group is the sum of ceil(rows / 128) over the groups before it. Padding
rows need no scales; places beyond K have zero bytes, which are finite in every format.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.formats.e4m3 import check
from jitgen.formats.protocol import Index, Rows, Shape, at, ceil_div

ROWS = 128
"""Rows of an atom."""

PLACES = 4
"""Scales of a row in an atom."""

BYTES = ROWS * PLACES

_ALIGNMENT = 16
"""Bytes that addresses and strides are multiples of, for the TMA unit."""


def num_blocks(rows: Rows) -> int:
    """
    Return how many blocks of 128 rows a's scales have, for each matrix.

    For ragged rows it is an upper bound for every division into groups, so `offs` is not read.
    """
    return (rows.shape[-1] + (ROWS - 1) * max(1, rows.groups)) // ROWS


def swizzled(scale: Tensor, fill: int = 0) -> Tensor:
    """
    Put the scales of whole matrices into atoms.

    Args:
        scale: (..., R, S), one byte each.
        fill: Byte for the rows between R and the end of the last block.

    Returns:
        (..., ceil(R / 128), ceil(S / 4), 512), type of `scale`, contiguous.
    """
    *front, size_r, size_s = scale.shape
    blocks, columns = ceil_div(size_r, ROWS), ceil_div(size_s, PLACES)
    full = scale.contiguous().view(torch.uint8)
    full = pad(full, (0, 0, 0, blocks * ROWS - size_r), value=fill)
    full = pad(full, (0, columns * PLACES - size_s))
    parts = full.view(*front, blocks, ROWS // 32, 32, columns, PLACES)
    atoms = parts.movedim((-2, -3), (-4, -3)).reshape(*front, blocks, columns, BYTES)
    return atoms.view(scale.dtype)


def plain(atoms: Tensor, size_s: int) -> Tensor:
    """
    Return the scales in `atoms`, row by row.

    Args:
        atoms: (..., blocks, columns, 512), one byte each.
        size_s: S, scales of a row: at most 4 * columns.

    Returns:
        (..., 128 * blocks, S), type of `atoms`, contiguous.
    """
    *front, blocks, columns, _ = atoms.shape
    parts = atoms.contiguous().view(torch.uint8)
    parts = parts.view(*front, blocks, columns, 32, ROWS // 32, PLACES)
    rows = parts.movedim((-4, -3), (-2, -3)).reshape(*front, blocks * ROWS, columns * PLACES)
    return rows[..., :size_s].contiguous().view(atoms.dtype)


def laid_out(scale: Tensor, rows: Rows, fill: int = 0) -> Tensor:
    """
    Put a's scales into atoms. Does not wait for the device.

    Args:
        scale: (M, S) or (G, M, S), one byte each.
        rows: The groups of the rows.
        fill: Byte for rows of no group.

    Returns:
        (..., `num_blocks`, ceil(S / 4), 512), contiguous.
    """
    if rows.offs is None:
        return swizzled(scale, fill)
    starts, sizes = groups_of(rows.offs)
    size = num_blocks(rows) * ROWS
    return swizzled(moved(scale, starts, first_blocks(sizes) * ROWS, sizes, size, fill))


def by_row(atoms: Tensor, rows: Rows, size_s: int) -> Tensor:
    """
    Return a's scales row by row; the inverse of `laid_out`. Does not wait for the device.

    Args:
        atoms: (..., blocks, columns, 512), one byte each.
        rows: The groups of the rows.
        size_s: S, scales of a row.

    Returns:
        (M, S) or (G, M, S), type of `atoms`, contiguous; zero bytes in ragged rows of no group.
    """
    scale = plain(atoms, size_s)
    if rows.offs is None:
        return scale[..., : rows.shape[-1], :].contiguous()
    starts, sizes = groups_of(rows.offs)
    return moved(scale, first_blocks(sizes) * ROWS, starts, sizes, rows.shape[-1])


def groups_of(offs: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the rows of each ragged group start, and how many there are: (G,) int64."""
    ends = offs.long()
    starts = pad(ends[:-1], (1, 0))
    return starts, (ends - starts).clamp_min(0)


def blocks_of(sizes: Tensor) -> Tensor:
    """Return the number of blocks in each group, (G,), for groups of these sizes."""
    return (sizes + ROWS - 1) // ROWS


def first_blocks(sizes: Tensor) -> Tensor:
    """Return the number of the first block of each group, (G,), for groups of these sizes."""
    return pad(blocks_of(sizes).cumsum(0)[:-1], (1, 0))


def moved(
    x: Tensor, have: Tensor, want: Tensor, sizes: Tensor, length: int, fill: int = 0
) -> Tensor:
    """
    Move runs of rows to other places. Does not wait for the device.

    Args:
        x: (R, ...), one byte each.
        have: (G,) the present place of each group's rows, ascending.
        want: (G,) their new places, ascending.
        sizes: (G,) their numbers.
        length: Rows of the result.
        fill: Byte for places without a row of a group.

    Returns:
        (length, ...), type of `x`, contiguous.
    """
    place = torch.arange(length, device=x.device)
    group = (torch.searchsorted(want, place, right=True) - 1).clamp_min(0)
    offset = place - want[group]
    is_owned = (offset >= 0) & (offset < sizes[group])
    values = x.contiguous().view(torch.uint8)
    values = torch.cat([values, values.new_full((1, *values.shape[1:]), fill)])
    source = torch.where(is_owned, have[group] + offset, len(values) - 1)
    return values[source].view(x.dtype)


def rows_of(x: Tensor, offs: Tensor | None) -> Rows:
    """
    Return how the rows of `x` (M, K) or (G, M, K) belong together; `offs` makes them ragged.

    Raises:
        InputError: `x` is no float tensor with these dimensions, has K = 0, or has a leading G
            together with `offs`.
    """
    check(x, "x", ranks=(2,) if offs is not None else (2, 3))
    return Rows(tuple(x.shape[:-1]), 0 if offs is None else len(offs), offs)


class Atoms:
    """Base of formats with scales in atoms; see `jitgen.formats.protocol.ScaleFormat`."""

    dtype: torch.dtype
    values: int
    """Values along K that share a scale."""

    b_rank = 4
    has_atoms = True
    has_readable_orders = True

    def a_shape(self, rows: Rows, k: int) -> Shape:
        """
        Return the shape of a's scales: (blocks, ceil(S / 4), 512), with G in front of masked rows,
        for S scales in a row.
        """
        return (*rows.shape[:-1], num_blocks(rows), self._columns(k), BYTES)

    def b_shape(self, groups: int, n: int, k: int) -> Shape:
        """
        Return the shape of b's scales: (G, ceil(N / 128), ceil(S / 4), 512), for S scales in a row.
        """
        return groups, ceil_div(n, ROWS), self._columns(k), BYTES

    def _columns(self, k: int) -> int:
        return ceil_div(ceil_div(k, self.values), PLACES)

    def is_readable(self, a_scale: Tensor) -> bool:
        """Say whether atoms are whole and start at multiples of 16 bytes."""
        *front, step = a_scale.stride()
        return step == 1 and not any(x % _ALIGNMENT for x in (*front, a_scale.data_ptr()))

    def readable(self, a_scale: Tensor) -> Tensor:
        """Return `a_scale`, or a contiguous copy if it is not readable."""
        return a_scale if self.is_readable(a_scale) else a_scale.clone(memory_format=_DENSE)

    def new_a(self, like: Tensor, rows: Rows, k: int) -> Tensor:
        """Return new scales of a, (blocks, ceil(S / 4), 512), with G in front of masked rows."""
        return like.new_empty(self.a_shape(rows, k), dtype=self.dtype)

    def part_of_a(self, scale: Tensor, rows: Rows, k: int, *where: Index) -> Tensor:
        """
        Return the scales of the rows at `where`, in new atoms that begin with the first of these
        rows.
        """
        return swizzled(at(by_row(scale, rows, ceil_div(k, self.values)), *where))

    def repeated_a(self, scale: Tensor, rows: Rows, k: int) -> Tensor:
        """
        Return a's scale of each value, (M, K) or (G, M, K) float32; any value in padding rows.
        """
        return self._repeated(by_row(scale, rows, ceil_div(k, self.values)), k)

    def repeated_b(self, scale: Tensor, n: int, k: int) -> Tensor:
        """Return one group's scale of each value of b, (N, K) float32."""
        return self._repeated(plain(scale, ceil_div(k, self.values))[:n], k)

    def _repeated(self, scale: Tensor, k: int) -> Tensor:
        return scale.float().repeat_interleave(self.values, -1)[..., :k]


_DENSE = torch.contiguous_format
