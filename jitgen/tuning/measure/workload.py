# SPDX-License-Identifier: Apache-2.0
"""Random operands of one grouped GEMM in any layout, and the check that comes before its timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import Layout, ScaleGranularity
from jitgen.config.dtypes import SCALE_BLOCK
from jitgen.errors import ConfigError
from jitgen.formats.dtypes import TORCH, ceil_div
from jitgen.layouts import ARGUMENT, GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm import reference
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.tuning.measure.errors import WrongResult

LARGEST_ERROR = 2.0**-7
"""Largest difference to the reference, as a part of its largest value: bfloat16 rounds by 2**-9."""

MEAN_ERROR = 2.0**-8
"""The same in the Frobenius norm, where rounding to bfloat16 leaves about 2**-9.6."""

_CHUNK_ROWS = 4096
"""Rows of a that are compared at a time."""

_CHUNK_VALUES = 2**26
"""Random values that are drawn at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """
    The arguments of one `grouped_gemm`.

    Values are drawn from a normal distribution and rounded to the operands' type; scales lie
    between 0.5 and 1.5, so that a wrong one shows.

    Attributes:
        problem: Sizes and types; its m is what `grouped_gemm` chooses by: rows of a, which in the
            contiguous layout counts padding, and in the masked layout the valid rows of all groups.
        a: (M, K), or (G, M, K) for the masked layout.
        b: (G, N, K).
        a_scale: float32, in the layout that kernels read; its shape follows from the granularity.
        b_scale: float32, likewise.
        groups: int32; offs, m_indices or masked_m, by layout. In the contiguous layout groups start
            at multiples of 128, with -1 in the rows between.
        out: (M, N) or (G, M, N).
        row_counts: Valid rows of each group.
    """

    problem: Problem
    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    groups: Tensor
    out: Tensor
    row_counts: tuple[int, ...]

    @classmethod
    def random(
        cls,
        problem: Problem,
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
            device: Where the tensors live.
            seed: The same seed gives the same values on the same device.
            max_rows: Rows that a has for each group of the masked layout; None: as many as the
                largest group has. Other layouts have none.

        Raises:
            ConfigError: `row_counts` or `max_rows` do not fit the problem.
        """
        counts = _spread(problem) if row_counts is None else tuple(row_counts)
        if len(counts) != problem.groups or min(counts) < 0:
            raise ConfigError(
                f"row_counts must be {problem.groups} counts of at least 0 (got {counts})"
            )
        lead, groups = _rows(problem.layout, counts, max_rows)
        is_masked = problem.layout is Layout.MASKED
        problem = replace(problem, m=sum(counts) if is_masked else lead[0])
        chance = torch.Generator(device).manual_seed(seed)
        a_scale, b_scale = _scales(problem, lead, chance)
        dtype = TORCH[problem.a_dtype]
        return cls(
            problem=problem,
            a=_values((*lead, problem.k), dtype, chance),
            b=_values((problem.groups, problem.n, problem.k), dtype, chance),
            a_scale=a_scale,
            b_scale=b_scale,
            groups=torch.tensor(groups, dtype=torch.int32, device=device),
            out=torch.empty(*lead, problem.n, dtype=TORCH[problem.out_dtype], device=device),
            row_counts=counts,
        )

    def copy(self) -> Workload:
        """Return the same values in memory of their own."""
        tensors: dict[str, Any] = {
            field.name: torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            ).copy_(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    @property
    def group_argument(self) -> dict[str, Tensor]:
        """The argument that says which rows belong to which group, by its name."""
        return {ARGUMENT[self.problem.layout]: self.groups}

    @property
    def flop(self) -> int:
        """Floating point operations of the valid rows."""
        return 2 * sum(self.row_counts) * self.problem.n * self.problem.k

    @property
    def num_bytes(self) -> int:
        """Bytes of the operands, scales and results of valid rows, each once; b of used groups."""
        rows, groups = self.out.shape[:-1].numel(), self.problem.groups
        of_rows = [self.a, self.out]
        if self.problem.scale_granularity is not ScaleGranularity.TENSOR:
            of_rows.append(self.a_scale)
        a_row = sum(x.nbytes // max(1, rows) for x in of_rows)
        a_group = sum(x.nbytes // groups for x in (self.b, self.b_scale))
        used = sum(count > 0 for count in self.row_counts)
        return sum(self.row_counts) * a_row + used * a_group

    def call(self, function: Callable[..., Any] = grouped_gemm, **options: Any) -> Any:
        """Call what takes the arguments of `jitgen.grouped_gemm`; `options` are further ones."""
        return function(
            self.a,
            self.b,
            self.a_scale,
            self.b_scale,
            out=self.out,
            **{**self.group_argument, **options},
        )

    def valid_rows(self) -> Iterator[tuple[int, Any]]:
        """Yield each group that has rows, and the index of these in a and out."""
        start = 0
        for group, count in enumerate(self.row_counts):
            rows: Any = slice(start, start + count)
            match self.problem.layout:
                case Layout.MASKED:
                    rows = (group, slice(0, count))
                case Layout.RAGGED:
                    start += count
                case Layout.CONTIGUOUS:
                    start += ceil_div(count, GROUP_ALIGNMENT) * GROUP_ALIGNMENT
            if count:
                yield group, rows

    def errors(self, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
        """
        Return how far valid rows of `out` are from the reference: in the Frobenius norm, as a part
        of the reference's, and at most, as a part of its largest value.

        Args:
            dtype: What the reference computes in: float32, or float64 to see errors of float32.
        """
        squares = torch.zeros(2, dtype=torch.float64, device=self.out.device)
        largest = torch.zeros(2, dtype=dtype, device=self.out.device)
        for group, where in self.valid_rows():
            for first in range(0, self.row_counts[group], _CHUNK_ROWS):
                rows = slice(first, first + _CHUNK_ROWS)
                want = self._expected(group, where, rows, dtype)
                both = torch.stack([self.out[where][rows].to(dtype) - want, want]).flatten(1)
                squares += both.norm(dim=1).double().square()
                largest = torch.maximum(largest, both.abs().amax(1))
        error, norm = squares.sqrt().tolist()
        furthest, most = largest.tolist()
        return error / (norm or 1.0), furthest / (most or 1.0)

    def _expected(self, group: int, where: Any, rows: slice, dtype: torch.dtype) -> Tensor:
        """Return the reference for `rows` of a group, counted from its first: (rows, N) `dtype`."""
        per_row = self.problem.scale_granularity is not ScaleGranularity.TENSOR
        a_scale = self.a_scale[where][rows] if per_row else self.a_scale
        a = self.a[where][rows]
        # The reference computes in the type of the scales, if that is wider than float32.
        return reference.grouped_gemm(
            a,
            self.b[group : group + 1],
            a_scale.to(dtype),
            self.b_scale[group : group + 1].to(dtype),
            offs=torch.tensor([len(a)], dtype=torch.int32),
            out_dtype=dtype,
        )

    def check(self, what: str, *, allowance: float = 1.0) -> None:
        """
        Compare the valid rows of `out` with the reference. Waits for the device.

        Args:
            what: What is checked, for the message.
            allowance: How many times the usual limits the errors may be.

        Raises:
            WrongResult: They differ by more than rounding; the message begins with `what`.
        """
        mean, largest = (error / allowance for error in self.errors())
        if not (mean <= MEAN_ERROR and largest <= LARGEST_ERROR):  # a NaN is wrong
            raise WrongResult(
                f"{what} is wrong by {largest * allowance:.2e} of the largest value, "
                f"{mean * allowance:.2e} on average"
            )


def _spread(problem: Problem) -> tuple[int, ...]:
    """Return the rows of `problem` spread evenly over its groups."""
    ends = [problem.m * i // problem.groups for i in range(problem.groups + 1)]
    return tuple(end - start for start, end in pairwise(ends))


def _rows(
    layout: Layout, counts: tuple[int, ...], max_rows: int | None
) -> tuple[tuple[int, ...], list[int]]:
    """Return the shape of a and out but for its last dimension, and the values of groups."""
    if layout is Layout.MASKED:
        most = max(1, *counts) if max_rows is None else max_rows
        if most < max(counts):
            raise ConfigError(
                f"max_rows must be at least {max(counts)}, which the largest group has "
                f"(got {max_rows})"
            )
        return (len(counts), most), list(counts)
    if max_rows is not None:
        raise ConfigError(f"max_rows is for the masked layout (got {max_rows} for {layout})")
    if layout is Layout.RAGGED:
        return (sum(counts),), list(accumulate(counts))
    indices: list[int] = []
    for group, count in enumerate(counts):
        indices += [group] * count + [-1] * (-count % GROUP_ALIGNMENT)
    return (len(indices),), indices


def _values(shape: tuple[int, ...], dtype: torch.dtype, chance: torch.Generator) -> Tensor:
    """Return normal values, drawn in chunks so that wide random numbers need little memory."""
    values = torch.empty(shape, dtype=dtype, device=chance.device)
    flat = values.view(-1)
    wide = torch.bfloat16 if chance.device.type == "cuda" and dtype.itemsize < 4 else torch.float32
    for first in range(0, len(flat), _CHUNK_VALUES):
        part = flat[first : first + _CHUNK_VALUES]
        part.copy_(torch.randn(len(part), generator=chance, dtype=wide, device=chance.device))
    return values


def _scales(
    problem: Problem, lead: tuple[int, ...], chance: torch.Generator
) -> tuple[Tensor, Tensor]:
    def scale(*shape: int) -> Tensor:
        return torch.rand(shape, generator=chance, device=chance.device) + 0.5

    blocks = ceil_div(problem.k, SCALE_BLOCK)
    match problem.scale_granularity:
        case ScaleGranularity.BLOCK128:
            return (
                quantize.kernel_layout(scale(*lead, blocks)),
                scale(problem.groups, ceil_div(problem.n, SCALE_BLOCK), blocks),
            )
        case ScaleGranularity.ROW:
            return scale(*lead), scale(problem.groups, problem.n)
        case ScaleGranularity.TENSOR:
            return scale(1), scale(problem.groups)
