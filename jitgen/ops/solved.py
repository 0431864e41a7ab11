# SPDX-License-Identifier: Apache-2.0
"""What calls with an answer share, whatever the operation: `jitgen verify` and tests solve them."""

from __future__ import annotations

import re
from itertools import groupby

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.operation import Excuse, Result


class Compared:
    """A call whose results are compared with what they must be."""

    __slots__ = ()

    def results(self) -> list[Result]:
        """Return the results, value by value."""
        raise NotImplementedError

    def wrong(self) -> int:
        """Count wrong values; one in a row of no group is wrong if the kernel wrote it."""
        return sum(int(result.is_wrong.sum()) for result in self.results())


def compared(
    name: str,
    found: Tensor,
    expected: Tensor,
    is_wrong: Tensor,
    group: Tensor | None = None,
    row: Tensor | None = None,
) -> Result:
    """
    Return one result of a call, as rows by columns of float32.

    Args:
        name: The argument that it is.
        found: What the kernel wrote.
        expected: What it must be.
        is_wrong: Which values are wrong, bool.
        group: The group of each row, -1 for a row of none; None: all are of group 0.
        row: Its number there; None: that of the row.
    """
    if group is None:
        group = torch.zeros(len(found), dtype=torch.int64)
    group = group.flatten().cpu()
    row = torch.arange(len(group)) if row is None else row.flatten().cpu()
    have, want, wrong = (x.reshape(len(group), -1).cpu() for x in (found, expected, is_wrong))
    return Result(
        name=name,
        found=have.float().numpy(),
        expected=want.float().numpy(),
        is_wrong=wrong.numpy(),
        group=group.numpy(),
        row=row.numpy(),
    )


def relative_errors(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """
    Return the error in the Frobenius norm as a part of the expected one, and the largest error as a
    part of the largest expected value.
    """
    if not found.numel():
        return 0.0, 0.0
    tiny = torch.finfo(torch.float32).tiny
    frobenius = (found - expected).norm() / expected.norm().clamp_min(tiny)
    largest = (found - expected).abs().max() / expected.abs().max().clamp_min(tiny)
    return float(frobenius), float(largest)


def numbers_of(text: str, count: int) -> tuple[int, ...]:
    """Return the `count` numbers of ``3:24:128``, or as many zeros if `text` has another form."""
    match = re.fullmatch(":".join([r"(\d+)"] * count), text)
    return tuple(map(int, match.groups())) if match else (0,) * count


def unequal_rows(rows: int, groups: int) -> tuple[int, ...]:
    """Return how many of the rows each group has, as unequal as it goes."""
    ends = [rows * (i * i) // (groups * groups) for i in range(1, groups + 1)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def rows_in_words(rows: tuple[int, ...]) -> str:
    """Return the rows of groups as ``3 + 32 x 0 + 129``."""
    runs = [(count, len([*equal])) for count, equal in groupby(rows)]
    return " + ".join(f"{times} x {count}" if times > 1 else f"{count}" for count, times in runs)


def nothing_unreachable(config: Config) -> tuple[Excuse, ...]:  # noqa: ARG001
    """Return what no problem can reach in kernels of `config`: nothing."""
    return ()
