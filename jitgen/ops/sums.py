# SPDX-License-Identifier: Apache-2.0
"""
Products with their expected results, and the allowed difference between rounded and exact sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from jitgen.config.operation import Result
from jitgen.ops.solved import Compared, compared
from jitgen.support.frozen import frozen

ACCUMULATOR_BITS = 22
"""Bits that sums keep: the 24 bits of float32, less the loss by rounding."""


@frozen
class SolvedSums(Compared):
    """
    A call whose result is a matrix of sums, with the expected result.

    Attributes:
        arguments: The arguments of the public function, by name: tensors only, in the order in
            which kernels take them, `out` last.
        is_exact: Whether every sum is exact, whatever its order.
        expected: The sums, in float64 or exact.
        magnitude: Computes the same sums over absolute values, which bounds of rounding errors are
            relative to.
        of_groups: Whether the first dimension of the result is the group.
    """

    arguments: dict[str, Any]
    is_exact: bool
    expected: Tensor
    magnitude: Callable[[], Tensor]
    of_groups: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments of the kernel, in order, without the number of SMs."""
        return tuple(self.arguments.values())

    @property
    def out(self) -> Tensor:
        """The tensor for the result."""
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
        Return how many values of the result are wrong. Exact problems require the rounded sum, bit
        for bit; others allow half a unit in the last place plus the rounding errors of the sums.

        Args:
            accumulator_bits: Bits that the accumulator keeps: 2.0**-bits of the sum of absolute
                values are lost.
        """
        return int(self._is_wrong(accumulator_bits).sum())

    def results(self) -> list[Result]:
        """Return the result, compared value by value."""
        group = row = None
        if self.of_groups:
            groups, count = self.out.shape[:2]
            group = torch.arange(groups).repeat_interleave(count)
            row = torch.arange(count).repeat(groups)
        is_wrong = self._is_wrong(ACCUMULATOR_BITS)
        return [compared("out", self.out, self.expected, is_wrong, group, row)]

    def errors(self) -> tuple[float, float]:
        """Return the difference between the result and the expected values; see `distance`."""
        return distance([(self.out.double(), self.expected.double())])


def rounding(expected: Tensor, dtype: torch.dtype) -> Tensor:
    """
    Return the largest error of rounding `expected` to `dtype`: half a unit in the last place. For a
    subnormal value, this is the unit of the smallest normal one.
    """
    info = torch.finfo(dtype)
    return expected.abs().clamp(min=info.smallest_normal) * (info.eps / 2 * 1.01)


def distance(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """
    Return the difference between results and expected values: in the Frobenius norm, relative to
    that of the expected values; and the largest difference, relative to the largest expected value.
    0 and 0 if there are no values.

    Args:
        parts: Pairs of results and expected values, each of one shape and type, all on one device.
            This function waits for the device once, at its end.
    """
    squares, largest = [], []
    for have, want in parts:
        if want.numel():
            both = torch.stack([have - want, want]).flatten(1)
            squares.append(both.norm(dim=1).double().square())
            largest.append(both.abs().amax(1))
    if not squares:
        return 0.0, 0.0
    found = torch.cat([torch.stack(squares).sum(0).sqrt(), torch.stack(largest).amax(0)])
    error, norm, furthest, most = found.tolist()
    return error / (norm or 1.0), furthest / (most or 1.0)
