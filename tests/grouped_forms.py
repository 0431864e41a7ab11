# SPDX-License-Identifier: Apache-2.0
"""
Calls of torch's grouped products, as torch takes them: four forms, whose operands have either of
their last dimensions contiguous and lie in memory of their own or among others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

SIZES = {"G": 3, "M": 24, "N": 40, "K": 56}
"""Sizes with which rows of any type have whole 16 bytes."""

ODD = {"G": 3, "M": 11, "N": 7, "K": 13}
"""Sizes with which no rows have whole 16 bytes; torch takes them where strides have."""

FORMS: dict[str, tuple[str, str]] = {
    "2d_3d": ("M", "3d"),
    "3d_3d": ("", "3d"),
    "3d_2d": ("N", "2d"),
    "2d_2d": ("K", "2d"),
}
"""
By form: the size in which groups lie one after the other, empty if none, and the dimensions of
mat_b.
"""


@dataclass(frozen=True)
class Kind:
    """
    A kind of call of a grouped product.

    Attributes:
        form: One of `FORMS`.
        a_last: Whether mat_a has its last dimension contiguous; else the one before.
        b_last: Whether mat_b has its last dimension contiguous; else the one before.
        is_strided: Whether operands lie among other values.
        dtype: Type of both operands, and of the result.
        sizes: G, M, N and K; that of the groups is of one of them.
        has_rest: Whether some rows, columns or values of K are of no group, and a group is empty.
    """

    form: str
    a_last: bool = True
    b_last: bool = True
    is_strided: bool = False
    dtype: torch.dtype = torch.bfloat16
    sizes: tuple[tuple[str, int], ...] = tuple(SIZES.items())
    has_rest: bool = False

    def __str__(self) -> str:
        """Return a name that no other kind has."""
        orders = ["last" if is_last else "first" for is_last in (self.a_last, self.b_last)]
        words = [self.form, *orders, *["strided"] * self.is_strided, *["rest"] * self.has_rest]
        words += ["odd"] * (dict(self.sizes) == ODD)
        return "-".join([*words, str(self.dtype).removeprefix("torch.")])

    def make(self, device: str = "cpu", *, is_exact: bool = True) -> GroupedGemmProblem:
        """
        Return the call with small integers, of which all sums are exact, or with normal values: the
        same for each kind.
        """
        chance = torch.Generator().manual_seed(len(str(self)))
        sizes = dict(self.sizes)
        grouped, b_rank = FORMS[self.form]
        ends = _ends(sizes["G"], sizes.get(grouped, 0), has_rest=self.has_rest)
        if grouped:
            sizes[grouped] *= sizes["G"]
        front_a = (sizes["G"],) * self.form.startswith("3d")
        front_b = (sizes["G"],) * (b_rank == "3d")

        def operand(*shape: int, is_last: bool) -> Tensor:
            draws = torch.randint(-3, 4, shape, generator=chance).double()
            if not is_exact:
                draws = torch.randn(shape, generator=chance).double()
            return laid(draws.to(self.dtype).to(device), is_last, self.is_strided)

        offs = torch.tensor(ends, dtype=torch.int32, device=device) if grouped else None
        return GroupedGemmProblem(
            mat_a=operand(*front_a, sizes["M"], sizes["K"], is_last=self.a_last),
            mat_b=operand(*front_b, sizes["K"], sizes["N"], is_last=self.b_last),
            offs=offs,
        )


def kinds(forms: Sequence[str] = tuple(FORMS), **fixed: Any) -> list[Kind]:
    """Return every order of operands of some forms."""
    every = product(forms, *[(True, False)] * 3)
    return [
        replace(Kind(form, a_last=a, b_last=b, is_strided=strided), **fixed)
        for form, a, b, strided in every
    ]


def _ends(groups: int, size: int, *, has_rest: bool) -> list[int]:
    if not has_rest:
        return [size * (g + 1) for g in range(groups)]
    return [0, *(size * g + size // 2 for g in range(1, groups))]


def laid(values: Tensor, is_last: bool, is_strided: bool) -> Tensor:
    """Return values with one of the last two dimensions contiguous; strides are of 16 bytes."""
    values = values if is_last else values.mT
    grain = 16 // values.element_size()
    *front, rows, columns = values.shape
    room = -(-columns // grain) * grain
    if is_strided:
        front, room = [2 * size for size in front], room + grain
    memory = values.new_full((*front, rows, room), float("nan"))
    found = memory[..., :columns][::2] if front and is_strided else memory[..., :columns]
    found.copy_(values)
    return found if is_last else found.mT


@dataclass(frozen=True)
class GroupedGemmProblem:
    """The operands of a call."""

    mat_a: Tensor
    mat_b: Tensor
    offs: Tensor | None

    @property
    def parts(self) -> list[tuple[Any, Any, Any]]:
        """The index of each group in mat_a, in mat_b, and in the result."""
        if self.offs is None:
            return [(g, g, g) for g in range(self.mat_a.shape[0])]
        ends = [0, *self.offs.tolist()]
        found: list[tuple[Any, Any, Any]] = []
        for g, (start, end) in enumerate(pairwise(ends)):
            part = slice(start, end)
            columns = (slice(None), part)
            if self.mat_b.dim() == 3:
                found.append((part, g, part))
            elif self.mat_a.dim() == 3:
                found.append((g, columns, columns))
            else:
                found.append((columns, part, g))
        return found

    def result(self, out: Tensor) -> list[Tensor]:
        """Return the parts of a result that are of a group."""
        return [out[place] for _, _, place in self.parts]

    def expected(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """The products of the groups, of which sums are added up in `dtype`."""
        a, b = self.mat_a.detach().to(dtype), self.mat_b.detach().to(dtype)
        return [a[in_a] @ b[in_b] for in_a, in_b, _ in self.parts]

    def gradients(self, dout: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both operands in float64: 0 in what is of no group."""
        a, b, dout = (x.detach().double() for x in (self.mat_a, self.mat_b, dout))
        da, db = torch.zeros_like(a), torch.zeros_like(b)
        for in_a, in_b, place in self.parts:
            da[in_a] = dout[place] @ b[in_b].mT
            db[in_b] = a[in_a].mT @ dout[place]
        return da, db

    def with_gradients(self) -> GroupedGemmProblem:
        """Return the same operands as leaves of autograd's graph, where they lie."""
        return replace(
            self,
            mat_a=self.mat_a.detach().requires_grad_(),
            mat_b=self.mat_b.detach().requires_grad_(),
        )
