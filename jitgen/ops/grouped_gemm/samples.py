# SPDX-License-Identifier: Apache-2.0
"""
Random calls of the grouped GEMM, in any layout, with their right results.

Measurements, `jitgen verify` and tests use these calls, and the same bound for the difference of a
result from float32 arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.layouts import ARGUMENT, GROUP_ALIGNMENT
from jitgen.config.operation import Result
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import ConfigError
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.formats.protocol import TORCH, Rows
from jitgen.ops.grouped_gemm import prepacked_draws, reference
from jitgen.ops.grouped_gemm.draws import Draw
from jitgen.ops.sizes import SPARE_ROWS
from jitgen.ops.solved import Compared, compared
from jitgen.ops.sums import ACCUMULATOR_BITS, distance, rounding
from jitgen.support.frozen import frozen


@frozen
class Call:
    """
    The arguments of one `grouped_gemm`.

    Attributes:
        layout: How rows belong to groups.
        a: (M, K), or (G, M, K) for the masked layout; rows of e2m1 have K / 2 bytes, and e4m3x2 has
            two rows for each row of the result.
        b: (G, N, K), likewise; or the values of prepacked weights.
        a_scale: Scales of a in the layout that kernels read; type and shape follow from the
            granularity. In atoms, scales that no row needs are NaN. Empty if a has no scales.
        b_scale: Likewise; or the factor of prepacked weights.
        alpha: (G,) float32 with nv16 scales; otherwise None.
        bias: (G, N) float32, or None.
        b_layout: The layout of prepacked weights, or the order of b in memory.
        b_format: The format of prepacked weights.
        has_a_scale: Whether a has scales.
        groups: int32; offs, m_indices or masked_m, by layout. In the contiguous layout groups start
            at multiples of 128, with -1 in the rows between.
        out: (M, N) or (G, M, N), all NaN, so that unwritten values are found.
    """

    layout: Layout
    a: Tensor
    b: Tensor
    a_scale: Tensor
    b_scale: Tensor
    groups: Tensor
    out: Tensor
    alpha: Tensor | None = None
    bias: Tensor | None = None
    b_layout: BLayout = BLayout.PLAIN
    b_format: PrepackedFormat = PrepackedFormat.MXFP4
    has_a_scale: bool = True

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments in the order in which kernels take them."""
        a_scale = self.a_scale if self.has_a_scale else None
        scales = (a_scale, self.b_scale, self.alpha, self.bias)
        given = (x for x in (self.a, self.b, *scales, self.groups, self.out) if x is not None)
        return tuple(given)

    @property
    def group_argument(self) -> dict[str, Tensor]:
        """The argument that gives each group its rows, as a dict of one name and tensor."""
        return {ARGUMENT[self.layout]: self.groups}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `grouped_gemm` by their names."""
        given: dict[str, Any] = {"a": self.a, "b": self.b, "b_scale": self.b_scale}
        if self.b_layout.is_prepacked:
            given = {"a": self.a, "b": self.weights}
        if self.has_a_scale:
            given["a_scale"] = self.a_scale
        more = {"alpha": self.alpha, "bias": self.bias}
        given |= {name: value for name, value in more.items() if value is not None}
        return {**given, **self.group_argument, "out": self.out}

    @property
    def weights(self) -> PrepackedWeights:
        """The prepacked weights, as a caller passes them."""
        n, k = self.out.shape[-1], self.a.shape[-1]
        return PrepackedWeights(
            values=self.b,
            factor=self.b_scale,
            n=n,
            k=k,
            layout=self.b_layout,
            format=self.b_format,
        )

    @property
    def is_owned(self) -> Tensor:
        """Which values of out belong to a group: bool, of the shape of out."""
        owned = _owned(self.layout, self.groups, self.out.shape[-2])
        return owned.unsqueeze(-1).expand(self.out.shape)

    @property
    def owners(self) -> tuple[Tensor, Tensor]:
        """The group of each row of out, -1 for none, and the row's number in its group."""
        is_owned = self.is_owned[..., 0]
        rows = torch.arange(self.out.shape[-2], device=self.out.device).expand(is_owned.shape)
        if self.layout is Layout.MASKED:
            groups = torch.arange(len(self.groups), device=self.out.device)[:, None]
            first = torch.zeros_like(rows)
        elif self.layout is Layout.RAGGED:
            groups = torch.searchsorted(self.groups.long(), rows.contiguous(), right=True)
            starts = torch.cat([self.groups.new_zeros(1), self.groups]).long()
            first = starts[groups]
        else:
            groups = self.groups.long()
            names, which = groups.unique(return_inverse=True)
            first = torch.full_like(names, len(groups)).scatter_reduce(0, which, rows, "amin")[
                which
            ]
        return groups.where(is_owned, -1), (rows - first).where(is_owned, rows)

    def copy(self, device: str | torch.device | None = None) -> Self:
        """
        Return a copy with the same values and strides in new memory, on the same device or on
        `device`.
        """
        tensors: dict[str, Any] = {
            field.name: torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device or value.device
            ).copy_(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


def _owned(layout: Layout, groups: Tensor, num_rows: int) -> Tensor:
    """Return which rows belong to a group: bool, (M,) or (G, M)."""
    if layout is Layout.CONTIGUOUS:
        return groups >= 0
    counts = groups.unsqueeze(-1) if layout is Layout.MASKED else groups[-1]
    return torch.arange(num_rows, device=groups.device) < counts


def random_call(  # noqa: PLR0913  # each is one thing to say
    problem: GroupedGemmProblem,
    row_counts: Sequence[int],
    *,
    is_exact: bool = False,
    is_extreme: bool = False,
    has_spare: bool = False,
    has_end: bool = True,
    spoils_idle: bool = False,
    max_rows: int | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Call:
    """
    Return a call with the layout, types, scales, groups, N and K of `problem`, made on `device`.

    `jitgen.ops.grouped_gemm.draws` describes how values are drawn.

    Args:
        problem: The sizes; its m is ignored.
        row_counts: Rows of each group.
        is_exact: Draw integers, and scales that are powers of two: every sum is exact in float32,
            whatever its order.
        is_extreme: Let scales that are not exact be far apart.
        has_spare: Add rows that belong to no group: after the last group; in each group of the
            masked layout; and in the contiguous layout whole tiles between and after groups, and
            one row before the last row of the last padded group with several rows.
        has_end: Continue the rows of the contiguous layout after the last group, up to a multiple
            of 128.
        spoils_idle: Make b NaN for groups without rows, so that a kernel that reads it is found,
            and these weights need not be drawn. If b is e2m1, which has no NaN, its scales are NaN
            instead; prepacked weights have more NaNs: see
            `jitgen.ops.grouped_gemm.prepacked_draws`.
        max_rows: Rows of a for each group of the masked layout; None: those of the largest group,
            and the spare ones. Not given for other layouts.
        device: Device of the tensors.
        seed: The same seed gives the same values on the same kind of device.

    Raises:
        ConfigError: `row_counts` or `max_rows` do not fit the problem.
    """
    counts = tuple(row_counts)
    if len(counts) != problem.groups or min(counts) < 0:
        raise ConfigError(
            f"row_counts must be {problem.groups} counts of at least 0 (got {counts})"
        )
    lead, groups = _rows(problem.layout, counts, max_rows, has_spare=has_spare, has_end=has_end)
    draw = Draw(
        torch.Generator(device).manual_seed(seed),
        is_exact=is_exact,
        extreme_for=problem.operands.out_dtype if is_extreme else None,
    )
    owners = torch.tensor(groups, dtype=torch.int32, device=device)
    offs = owners if problem.layout is Layout.RAGGED else None
    rows = Rows(lead, 0 if offs is None else len(offs), offs)
    is_owned = _owned(problem.layout, owners, lead[-1])
    is_idle = torch.tensor(counts, device=device) == 0 if spoils_idle else None
    types = problem.operands
    out_type, size = TORCH[types.out_dtype], (*lead, problem.n)
    common: dict[str, Any] = {
        "layout": problem.layout,
        "groups": owners,
        "out": torch.full(size, math.nan, dtype=out_type, device=device),
        "bias": draw.floats(problem.groups, problem.n) if problem.bias else None,
        "has_a_scale": problem.a_scale_granularity is not ScaleGranularity.NONE,
    }
    if problem.b_layout.is_prepacked:
        a, a_scale = prepacked_draws.activations(draw, problem, rows)
        prepacked = prepacked_draws.weights(draw, problem, is_idle)
        return Call(
            a=a,
            b=prepacked.values,
            a_scale=a_scale,
            b_scale=prepacked.factor,
            b_layout=prepacked.layout,
            b_format=prepacked.format,
            **common,
        )
    a_scale, b_scale = draw.scales(problem, rows, is_owned, is_idle)
    a = draw.values((*lead, problem.k), types.a_dtype)
    shape = (problem.groups, problem.n, problem.k)
    if spoils_idle and not all(counts) and types.b_dtype is not DType.E2M1:
        b = torch.full(shape, math.nan, device=device, dtype=TORCH[types.b_dtype])
        for group in (group for group, count in enumerate(counts) if count):
            b[group] = draw.values(shape[1:], types.b_dtype)
    else:
        b = draw.values(shape, types.b_dtype)
    alpha = draw.alpha(problem.scale_granularity, problem.groups)
    if problem.b_layout is BLayout.N_MAJOR:
        b = b.mT.contiguous().mT
    return Call(a=a, b=b, a_scale=a_scale, b_scale=b_scale, alpha=alpha, **common)


def _rows(
    layout: Layout,
    counts: tuple[int, ...],
    max_rows: int | None,
    *,
    has_spare: bool,
    has_end: bool,
) -> tuple[tuple[int, ...], list[int]]:
    """
    Return the shape of a and out but for its last dimension, and the values of the tensor `groups`.
    """
    spare = SPARE_ROWS if has_spare else 0
    if layout is Layout.MASKED:
        most = max(1, *counts) + spare if max_rows is None else max_rows
        if most < max(counts):
            raise ConfigError(
                f"max_rows must be at least {max(counts)}, which the largest group has "
                f"(got {max_rows})"
            )
        return (len(counts), most), list(counts)
    if max_rows is not None:
        raise ConfigError(f"max_rows is for the masked layout (got {max_rows} for {layout})")
    if layout is Layout.RAGGED:
        return (sum(counts) + spare,), list(accumulate(counts))
    indices: list[int] = []
    last = max((group for group, count in enumerate(counts) if count > 1), default=-1)
    for group, count in enumerate(counts):
        padding = -count % GROUP_ALIGNMENT
        own = [group] * count
        if has_spare and group == last and padding:
            own.insert(-1, -1)  # a row that only a look at each row's group leaves out
            padding -= 1
        is_end = group == len(counts) - 1
        if is_end and not has_end:
            return (len(indices + own),), indices + own
        indices += own + [-1] * padding
        if has_spare and (group % 3 == 1 or is_end):
            indices += [-1] * GROUP_ALIGNMENT
    return (len(indices),), indices


@frozen
class Solved(Compared):
    """
    A call with its expected results.

    Attributes:
        call: The arguments; results go into its out.
        is_exact: Whether every sum is exact, whatever its order.
        expected: Shape of out, float32: the sums, which were computed in float64 unless they are
            exact in float32, too.
        is_owned: Whether each value of out belongs to a group: bool, of the shape of out.
    """

    call: Call
    is_exact: bool
    expected: Tensor
    is_owned: Tensor

    @classmethod
    def of(cls, call: Call, *, is_exact: bool) -> Self:
        """
        Return `call` with its expected results, computed on the device of its tensors.

        If sums are not exact, the reference is computed in float64, because the rounding errors of
        a float32 reference would be as large as those of a kernel, and `allowed` does not allow for
        both.
        """
        dtype = torch.float32 if is_exact else torch.float64
        expected = reference.sums(call.arguments, dtype).float()
        return cls(call=call, is_exact=is_exact, expected=expected, is_owned=call.is_owned)

    @property
    def magnitude(self) -> Tensor:
        """
        The sums over absolute values of a and b, which bounds of rounding errors are relative to;
        computed at each access.
        """
        return reference.sums(self.arguments, is_absolute=True)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The arguments in the order in which kernels take them."""
        return self.call.tensors

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `grouped_gemm` by their names."""
        return self.call.arguments

    @property
    def out(self) -> Tensor:
        """The output tensor."""
        return self.call.out

    def allowed(self, accumulator_bits: int = ACCUMULATOR_BITS) -> Tensor:
        """
        Return the allowed difference from `expected`: half a unit in the last place of the output,
        plus the rounding errors of the sums.

        Args:
            accumulator_bits: Bits that the accumulator keeps: 2.0**-bits of the sum of absolute
                values are lost.
        """
        lost = self.magnitude * 2.0**-accumulator_bits
        return rounding(self.expected, self.out.dtype) + lost

    @property
    def _is_wrong(self) -> Tensor:
        """
        Which values of out are wrong: bool, of the shape of out. Exact problems require the rounded
        sum, bit for bit; other problems allow the difference `allowed`. Rows of no group must be
        unchanged.
        """
        out, owned = self.out, self.is_owned
        touched = ~out.isnan() & ~owned
        if self.is_exact:
            differ = out != self.expected.to(out.dtype)
        else:
            differ = ~((out.float() - self.expected).abs() <= self.allowed())  # a NaN is wrong
        is_spoilt = self.expected.isnan()
        return touched | torch.where(is_spoilt, ~out.isnan(), differ) & owned

    def results(self) -> list[Result]:
        """Return the result, compared value by value."""
        group, row = self.call.owners
        return [compared("out", self.out, self.expected, self._is_wrong, group, row)]

    def errors(self) -> tuple[float, float]:
        """Return how far the result is from the expected one, in two norms; see `distance`."""
        counted = self.is_owned & ~self.expected.isnan()
        return distance([(self.out[counted].float(), self.expected[counted])])
