# SPDX-License-Identifier: Apache-2.0
"""Products with their answers, and how far sums of rounded products may be from exact ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from jitgen.config.operation import Result
from jitgen.ops.solved import Compared, compared
from jitgen.support.frozen import frozen

ACCUMULATOR_BITS = 22
"""Bits that sums keep: float32's 24, less its roundings."""


@frozen
class SolvedSums(Compared):
    """
    A call whose result is a matrix of sums, with its answer.

    Attributes:
        arguments: What the public function takes, by its names, in the order in which kernels take
            tensors, which is all that there is; `out` is last.
        is_exact: Whether every sum is exact, whatever its order.
        expected: The sums, in float64 or exact.
        magnitude: Computes the same sums over absolute values, which rounding errors are relative
            to.
        of_groups: Whether the first dimension of the result is that of groups.
    """

    arguments: dict[str, Any]
    is_exact: bool
    expected: Tensor
    magnitude: Callable[[], Tensor]
    of_groups: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What kernels take, in order, without the number of SMs."""
        return tuple(self.arguments.values())

    @property
    def out(self) -> Tensor:
        """Where the result goes."""
        out: Tensor = self.arguments["out"]
        return out

    def _is_wrong(self, accumulator_bits: int) -> Tensor:
        """Return which values are wrong: bool, the shape of the result."""
        out = self.out
        if self.is_exact:
            return out != self.expected.to(out.dtype)
        allowed = rounding(self.expected, out.dtype) + self.magnitude() * 2.0**-accumulator_bits
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
        """Return the result, value by value."""
        group = row = None
        if self.of_groups:
            groups, count = self.out.shape[:2]
            group = torch.arange(groups).repeat_interleave(count)
            row = torch.arange(count).repeat(groups)
        is_wrong = self._is_wrong(ACCUMULATOR_BITS)
        return [compared("out", self.out, self.expected, is_wrong, group, row)]

    def errors(self) -> tuple[float, float]:
        """Return how far the result is from what is expected; see `distance`."""
        return distance([(self.out.double(), self.expected.double())])


def rounding(expected: Tensor, dtype: torch.dtype) -> Tensor:
    """
    Return what `expected` may lose when it is rounded to `dtype`: half a unit in the last place,
    which of a subnormal value is that of the smallest normal one.
    """
    info = torch.finfo(dtype)
    return expected.abs().clamp(min=info.smallest_normal) * (info.eps / 2 * 1.01)


def distance(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """
    Return how far results are from what is wanted: in the Frobenius norm, as a part of the wanted
    ones', and at most, as a part of the largest wanted value. 0 and 0 where there are none.

    Args:
        parts: Results and what is wanted, pairs of one shape and type, on one device. Waits for it
            once, at the end.
    """
    squares, largest = [], []
    for have, want in parts:
        if want.numel():
            both = torch.stack([have - want, want]).flatten(1)
            squares.append(both.norm(dim=1).double().square())
            largest.append(both.abs().amax(1))
    if not squares:
        return 0.0, 0.0
    error, norm = torch.stack(squares).sum(0).sqrt().tolist()
    furthest, most = torch.stack(largest).amax(0).tolist()
    return error / (norm or 1.0), furthest / (most or 1.0)
