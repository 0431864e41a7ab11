# SPDX-License-Identifier: Apache-2.0
"""
Random operands and scales of a grouped GEMM.

Values are drawn from a normal distribution and rounded to the operands' type; scales lie between
0.5 and 2.5, or are powers of two, so that results with a wrong scale are wrong. Exact ones are
integers from -2 to 2 with scales that are powers of two from 1/4 to 4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.formats import e2m1, find_format
from jitgen.formats.atoms import PLACES, laid_out, swizzled
from jitgen.formats.protocol import TORCH, Rows

POISON = {torch.float8_e8m0fnu: 0xFF, torch.float8_e4m3fn: 0x7F}
"""The NaN of each type of scales in atoms, which fills places where no scale is needed."""

_WIDE, _NARROW = (-30, 30), (-10, 0)
"""Exponents that are added to those of extreme scales, for results of any type and of float16."""

_CHUNK_VALUES = 2**26
"""Random values that are drawn at a time."""


class Draw:
    """Random values and scales, drawn in sequence."""

    def __init__(
        self, chance: torch.Generator, *, is_exact: bool, extreme_for: DType | None = None
    ) -> None:
        """
        Draw with `chance`.

        Args:
            chance: The source of random numbers.
            is_exact: Whether they are small integers, and scales powers of two.
            extreme_for: The type of the result. If it is given, scales that are not exact differ as
                widely as this type and float32 can represent the results. None: scales are near 1.
        """
        self._options: dict[str, Any] = {"generator": chance, "device": chance.device}
        self.is_exact = is_exact
        self.reach = (0, 0)
        if extreme_for is not None and not is_exact:
            self.reach = _NARROW if extreme_for is DType.F16 else _WIDE

    def values(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """
        Return operands, drawn in chunks so that wide random numbers need little memory; `shape`
        counts values. Two values of e2m1 share a byte.
        """
        device, of_torch = self._options["device"], TORCH[dtype]
        if dtype is DType.E2M1:
            shape, of_torch = (*shape[:-1], shape[-1] // 2), torch.uint8
        values = torch.empty(shape, dtype=of_torch, device=device)
        flat = values.view(-1)
        is_narrow = device.type == "cuda" and of_torch.itemsize < 4
        wide = torch.bfloat16 if is_narrow else torch.float32
        for first in range(0, len(flat), _CHUNK_VALUES):
            part = flat[first : first + _CHUNK_VALUES]
            size = len(part) * dtype.values_per_element
            if not self.is_exact:
                drawn = torch.randn(size, dtype=wide, **self._options)
                part.copy_(e2m1.pack(drawn.float()) if dtype is DType.E2M1 else drawn)
                continue
            integers = torch.randint(-2, 3, (size,), **self._options)
            if dtype is DType.E2M1:  # as `pack` does, but several times as fast
                codes = e2m1.codes_of(torch.arange(-2.0, 3.0, device=device))
                part.copy_(e2m1.paired(codes.take(integers + 2)))
            else:
                part.copy_(integers.to(wide))
        return values

    def floats(self, *shape: int) -> Tensor:
        """Return scales, float32."""
        if self.is_exact:
            return torch.exp2(torch.randint(-2, 3, shape, **self._options).float())
        near = torch.rand(shape, **self._options) * 2 + 0.5
        if self.reach == (0, 0):
            return near
        low, high = self.reach
        return near * torch.exp2(torch.randint(low, high + 1, shape, **self._options).float())

    def integers(self, least: int, beyond: int, shape: tuple[int, ...]) -> Tensor:
        """Return integers from `least` to `beyond` - 1, uint8."""
        return torch.randint(least, beyond, shape, **self._options).to(torch.uint8)

    def _bytes(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return scales of one byte, uint8."""
        low, high = self.reach
        if dtype is torch.float8_e8m0fnu:
            return self.integers(125 + low, 130 + high, shape)
        codes = self.floats(*shape).clamp(2.0**-9, 448.0).to(dtype)
        return codes.view(torch.uint8)

    def scales(
        self, problem: GroupedGemmProblem, rows: Rows, is_owned: Tensor, is_idle: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """
        Return scales of a and b, in the layout that kernels read; none for an a without scales.

        Args:
            problem: The granularity and the sizes.
            rows: The rows of the groups.
            is_owned: (M,) or (G, M) bool: the rows whose scales of a, if in atoms, are needed;
                other scales are NaN.
            is_idle: (G,) bool: groups whose scales of b are NaN if they lie in atoms; None: none.
        """
        form = find_format(problem.scale_granularity)
        a_shape = form.a_shape(rows, problem.k)
        b_shape = form.b_shape(problem.groups, problem.n, problem.k)
        if not form.has_atoms:
            return form.readable(self.floats(*a_shape)), self.floats(*b_shape)
        poison, places = POISON[form.dtype], a_shape[-2] * PLACES  # scales beyond K are finite
        a_scale = self._bytes(form.dtype, (*rows.shape, places))
        a_scale.masked_fill_(~is_owned.unsqueeze(-1), poison)
        b_scale = self._bytes(form.dtype, (problem.groups, problem.n, places))
        if is_idle is not None:
            b_scale.masked_fill_(is_idle[:, None, None], poison)
        of_b = swizzled(b_scale, fill=poison).view(form.dtype)
        if problem.a_scale_granularity is ScaleGranularity.NONE:
            return self.floats(0), of_b
        return laid_out(a_scale, rows, fill=poison).view(form.dtype), of_b

    def alpha(self, granularity: ScaleGranularity, groups: int) -> Tensor | None:
        """Return a factor for each group, (G,) float32; None for scales without such factors."""
        return self.floats(groups) if find_format(granularity).has_alpha else None
