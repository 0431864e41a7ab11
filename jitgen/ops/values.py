# SPDX-License-Identifier: Apache-2.0
"""
JITGEN_CHECK=1: checks of values that kernels do not check. The rows of groups are on the device, so
a check waits for the device; launches of checked calls are not cached.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.layouts import ARGUMENT, GROUP_ALIGNMENT
from jitgen.errors import InputError
from jitgen.settings import settings


def check_values(
    layout: Layout,
    found: Tensor | None,
    rows: int,
    *,
    groups: int | None = None,
    start: int = GROUP_ALIGNMENT,
) -> None:
    """
    If JITGEN_CHECK is on, require values of `found` that kernels support; otherwise do nothing.

    Waits for the device. While a CUDA graph is captured it does nothing, because values come when
    the graph runs.

    Args:
        layout: How rows belong to groups.
        found: offs, m_indices or masked_m, of the right type and shape; None: every row is valid.
        rows: Rows of a; in the masked layout those of one group.
        groups: Number of groups of the contiguous layout, where `found` does not give it; None: any
            number.
        start: In the contiguous layout, a group starts at a multiple of this number of rows.

    Raises:
        InputError: A value is wrong; it says which, and where.
    """
    if found is None or not _is_looked_at(found):
        return
    {Layout.RAGGED: _ends, Layout.MASKED: _counts}.get(layout, _indices)(
        ARGUMENT[layout], found.cpu(), (rows, groups, start)
    )


def check_places(
    name: str, found: Tensor | None, count: int, what: str, *, owners: Tensor | None = None
) -> None:
    """
    If JITGEN_CHECK is on, require values that are valid indices, or -1; otherwise do nothing.

    Args:
        name: The argument.
        found: Its tensor, int32; None: nothing is checked.
        count: Number of valid indices.
        what: What the indices refer to, for the message.
        owners: offs or masked_m: values in rows of no group are not checked; None: all values are
            checked.

    Raises:
        InputError: A value is wrong; it says which, and where.
    """
    if found is None or not _is_looked_at(found):
        return
    values = found.cpu()
    beyond = (values < -1) | (values >= count)
    if owners is not None:
        beyond &= _owned(values, owners.cpu())
    if (place := _first(beyond.flatten())) is not None:
        where = torch.unravel_index(torch.tensor(place), values.shape)
        raise InputError(
            name,
            f"must be one of {count} {what}, or -1 for nothing (got {int(values.flatten()[place])} "
            f"at {[int(each) for each in where]})",
        )


def _owned(values: Tensor, owners: Tensor) -> Tensor:
    """Return which rows belong to a group: of (G, M) values by masked_m, of (M,) values by offs."""
    rows = torch.arange(values.shape[-1])
    if values.dim() == 2:
        return rows < owners.unsqueeze(-1)
    return rows < owners[-1]


def _is_looked_at(found: Tensor) -> bool:
    if not settings.check:
        return False
    return not (found.is_cuda and torch.cuda.is_current_stream_capturing())


_Sizes = tuple[int, int | None, int]


def _ends(name: str, ends: Tensor, sizes: _Sizes) -> None:
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    if (place := _first(ends < starts)) is not None:
        raise InputError(
            name,
            "must not decrease, and begin at 0 or above: they are cumulative ends of groups (got "
            f"{int(ends[place])} after {int(starts[place])}, of group {place})",
        )
    if (place := _first(ends > sizes[0])) is not None:
        raise InputError(
            name, f"must be at most the {sizes[0]} rows (got {int(ends[place])}, of group {place})"
        )


def _counts(name: str, counts: Tensor, sizes: _Sizes) -> None:
    if (place := _first((counts < 0) | (counts > sizes[0]))) is not None:
        raise InputError(
            name,
            f"must be from 0 to the {sizes[0]} rows of a group (got {int(counts[place])}, of group "
            f"{place})",
        )


def _indices(name: str, indices: Tensor, sizes: _Sizes) -> None:
    _, groups, start = sizes
    beyond = indices < -1
    if groups is not None:
        beyond |= indices >= groups
    if (place := _first(beyond)) is not None:
        most = "a group" if groups is None else f"one of the {groups} groups"
        raise InputError(
            name, f"must be {most}, or -1 for padding (got {int(indices[place])}, of row {place})"
        )
    padded = torch.nn.functional.pad(indices, (0, -len(indices) % start), value=-1)
    last = padded.view(-1, start).amax(1).repeat_interleave(start)[: len(indices)]
    if (place := _first((indices >= 0) & (indices != last))) is not None:
        block = place // start * start
        raise InputError(
            name,
            f"must have groups that start at multiples of {start} rows (got {int(indices[place])} "
            f"for row {place}, and {int(last[place])} in rows {block} to {block + start - 1}, too)",
        )


def _first(is_wrong: Tensor) -> int | None:
    """Return the index of the first True; None if there is none."""
    places = is_wrong.nonzero()
    return int(places[0]) if len(places) else None
