# SPDX-License-Identifier: Apache-2.0
"""Random operands of one grouped GEMM in any layout, and the check that comes before its timing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.autotune.measure.errors import WrongResult
from jitgen.config import Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.formats import find_format
from jitgen.formats.protocol import Index, Rows, ceil_div
from jitgen.ops.grouped_gemm import reference
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm.samples import Call, random_call
from jitgen.ops.sums import distance
from jitgen.support.frozen import frozen

LARGEST_ERROR = 2.0**-7
"""Largest difference to the reference, as a part of its largest value: bfloat16 rounds by 2**-9."""

MEAN_ERROR = 2.0**-8
"""
Largest difference to the reference in the Frobenius norm, as a part of the reference's norm:
rounding to bfloat16 leaves about 2**-9.6.
"""

_CHUNK_ROWS = 4096
"""Rows of a that are compared at a time."""


class Expected(NamedTuple):
    """
    Reference values of some rows of one group.

    Attributes:
        where: Index of the group's rows in a and out.
        rows: The rows of the group that are compared.
        values: (rows, N) in the reference's type.
    """

    where: Index
    rows: slice
    values: Tensor


@frozen
class Workload(Call):
    """
    A call of `grouped_gemm` that is timed.

    Attributes:
        problem: Sizes and types. Its m is the number by which `grouped_gemm` chooses a kernel: the
            rows of a, which include padding in the contiguous layout; in the masked layout the
            valid rows of all groups.
        row_counts: Valid rows of each group.
    """

    problem: GroupedGemmProblem
    row_counts: tuple[int, ...]

    @classmethod
    def random(
        cls,
        problem: GroupedGemmProblem,
        row_counts: Sequence[int] | None = None,
        *,
        device: str = "cuda",
        seed: int = 0,
        max_rows: int | None = None,
    ) -> Workload:
        """
        Return a workload with the types, N, K and groups of `problem`, made on `device`.

        Args:
            problem: The sizes; m counts only where `row_counts` is None.
            row_counts: Valid rows of each group; None: m rows, spread evenly.
            device: Device of the tensors.
            seed: The same seed gives the same values on the same device.
            max_rows: Rows of a for each group in the masked layout; None: the rows of the largest
                group. Only for this layout.

        Raises:
            ConfigError: `row_counts` or `max_rows` do not fit the problem.
        """
        counts = _spread(problem) if row_counts is None else tuple(row_counts)
        call = random_call(problem, counts, max_rows=max_rows, device=device, seed=seed)
        m = sum(counts) if problem.layout is Layout.MASKED else call.a.shape[0]
        tensors = {field.name: getattr(call, field.name) for field in fields(call)}
        return cls(**tensors, problem=replace(problem, m=m), row_counts=counts)

    @property
    def flop(self) -> int:
        """Floating point operations of the valid rows."""
        return 2 * sum(self.row_counts) * self.problem.n * self.problem.k

    @property
    def num_bytes(self) -> int:
        """
        Bytes of the operands, scales and results of valid rows, each once; b and its scales only of
        groups with rows.
        """
        rows, groups = self.out.shape[:-1].numel(), self.problem.groups
        of_rows = [self.a, self.out]
        if self.has_a_scale and self.problem.scale_granularity is not ScaleGranularity.TENSOR:
            of_rows.append(self.a_scale)
        a_row = sum(x.nbytes // max(1, rows) for x in of_rows)
        a_group = sum(x.nbytes // groups for x in (self.b, self.b_scale))
        used = sum(count > 0 for count in self.row_counts)
        return sum(self.row_counts) * a_row + used * a_group

    def call(self, function: Callable[..., object] = grouped_gemm, **options: object) -> object:
        """Call `function` with the arguments of `jitgen.grouped_gemm` and further `options`."""
        return function(**{**self.arguments, **options})

    def valid_rows(self) -> Iterator[tuple[int, Index]]:
        """Yield each group that has rows, and the index of these in a and out."""
        start = 0
        for group, count in enumerate(self.row_counts):
            rows: Index = slice(start, start + count)
            match self.problem.layout:
                case Layout.MASKED:
                    rows = (group, slice(0, count))
                case Layout.RAGGED:
                    start += count
                case Layout.CONTIGUOUS:
                    start += ceil_div(count, GROUP_ALIGNMENT) * GROUP_ALIGNMENT
            if count:
                yield group, rows

    def errors(
        self, dtype: torch.dtype = torch.float32, expected: Iterable[Expected] | None = None
    ) -> tuple[float, float]:
        """
        Return two errors of the valid rows of `out`: the Frobenius norm of the difference to the
        reference, relative to the reference's norm, and the largest difference, relative to the
        reference's largest value.

        Args:
            dtype: Type of the reference's arithmetic: float32, or float64 to see errors of float32.
            expected: Result of `reference`, if several results are compared with it; None computes
                it.
        """
        found = self.reference(dtype) if expected is None else expected
        return distance((self.out[x.where][x.rows].to(dtype), x.values) for x in found)

    def reference(self, dtype: torch.dtype = torch.float32) -> Iterator[Expected]:
        """
        Yield the right values of the valid rows of `out`, a few thousand rows of one group at a
        time.
        """
        for group, where in self.valid_rows():
            for first in range(0, self.row_counts[group], _CHUNK_ROWS):
                rows = slice(first, first + _CHUNK_ROWS)
                yield Expected(where, rows, self._expected(group, where, rows, dtype))

    def _expected(self, group: int, where: Index, rows: slice, dtype: torch.dtype) -> Tensor:
        """Return the reference for `rows` of a group, counted from its first: (rows, N) `dtype`."""
        a, one = self.a[where][rows], slice(group, group + 1)
        given: dict[str, object] = {
            "a": a,
            "offs": torch.tensor([len(a)], dtype=torch.int32, device=a.device),
            "alpha": None if self.alpha is None else self.alpha[one],
            "bias": None if self.bias is None else self.bias[one],
        }
        if self.b_layout.is_prepacked:
            given["b"] = self.weights.part(one)
            given["a_scale"] = self.a_scale[where][rows] if self.has_a_scale else None
            return reference.sums(given, dtype)
        given |= {"b": self.b[one], "b_scale": self.b_scale[one]}
        if not self.has_a_scale:
            return reference.sums(given, dtype)
        lead = Rows(tuple(self.a.shape[:-1]), len(self.groups), self.groups)
        is_ragged = self.problem.layout is Layout.RAGGED
        form = find_format(self.problem.scale_granularity)
        given["a_scale"] = form.part_of_a(
            self.a_scale, lead if is_ragged else Rows(lead.shape), self.problem.k, where, rows
        )
        return reference.sums(given, dtype)

    def check(
        self, what: str, *, allowance: float = 1.0, expected: Iterable[Expected] | None = None
    ) -> None:
        """
        Compare the valid rows of `out` with the reference. Waits for the device.

        Args:
            what: What is checked, for the message.
            allowance: Factor of the usual limits of the errors.
            expected: As for `errors`.

        Raises:
            WrongResult: They differ by more than rounding explains; the message begins with `what`.
        """
        mean, largest = (error / allowance for error in self.errors(expected=expected))
        if not (mean <= MEAN_ERROR and largest <= LARGEST_ERROR):  # a NaN is wrong
            raise WrongResult(
                f"{what} is wrong by {largest * allowance:.2e} of the largest value, "
                f"{mean * allowance:.2e} on average"
            )


def _spread(problem: GroupedGemmProblem) -> tuple[int, ...]:
    """Return the rows of `problem` spread evenly over its groups."""
    ends = [problem.m * i // problem.groups for i in range(problem.groups + 1)]
    return tuple(end - start for start, end in pairwise(ends))
