# SPDX-License-Identifier: Apache-2.0
"""
Rows that come out of every batch, layout and kernel with the same bits: how tests ask for that.

A pool has a few rows of a and the weights of some groups, so that there is one right result for
each row and group: the bits of the first kernel that computes all of them. A batch is rows of the
pool for each group, in any order and as often as chance has it, in any layout; whatever a kernel
makes of it must be those bits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

import jitgen
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.formats import find_format
from jitgen.formats.atoms import by_row, laid_out
from jitgen.formats.protocol import Rows
from jitgen.ops.grouped_gemm import samples
from jitgen.ops.grouped_gemm.samples import Call
from jitgen.ops.moe_fc2_dense import samples as fc2
from jitgen.ops.sizes import SPARE_ROWS
from jitgen.selection.numerics import keeping
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules
from tests.candidates import candidates

Lists = list[list[int]]
"""For each group the rows of the pool that a batch has of it."""


def allowed(
    arch: Arch | str,
    operands: Operands,
    layouts: tuple[Layout, ...] = tuple(Layout),
    *,
    bias: bool = False,
) -> list[GroupedGemmConfig]:
    """Return all that may be chosen with invariant numerics, of every layout."""
    target = Arch.parse(arch)
    found = [each for layout in layouts for each in candidates(target, layout, operands, bias=bias)]
    return list(keeping(found, rules(target, "grouped_gemm").sums).configs)


def departing(arch: Arch | str, operands: Operands, layout: Layout) -> list[GroupedGemmConfig]:
    """Return the candidates that only calls without invariant numerics may use."""
    target = Arch.parse(arch)
    return list(
        keeping(candidates(target, layout, operands), rules(target, "grouped_gemm").sums).left_out
    )


@frozen
class Pool:
    """
    Attributes:
        call: The rows of the pool as those of its first group, and the weights of all groups.
        groups: Number of groups G.
        rows: Number of rows of the pool.
        n: Columns of a result.
        k: Length of the sums.
    """

    call: Call
    operands: Operands
    groups: int
    rows: int
    n: int
    k: int

    @classmethod
    def draw(
        cls,
        operands: Operands,
        groups: int,
        rows: int,
        n: int,
        k: int,
        device: str,
        *,
        seed: int = 0,
        bias: bool = False,
    ) -> Self:
        """Return a pool of random values."""
        problem = GroupedGemmProblem(
            layout=Layout.RAGGED,
            groups=groups,
            m=rows,
            n=n,
            k=k,
            a_dtype=operands.a_dtype,
            b_dtype=operands.b_dtype,
            out_dtype=operands.out_dtype,
            scale_granularity=operands.scale_granularity,
            a_scale_granularity=operands.a_scale_granularity,
            b_layout=operands.b_layout,
            bias=bias,
        )
        call = samples.random_call(problem, [rows, *[0] * (groups - 1)], seed=seed).copy(device)
        return cls(call=call, operands=operands, groups=groups, rows=rows, n=n, k=k)

    @property
    def everything(self) -> Lists:
        """Every row of the pool, for every group."""
        return [list(range(self.rows))] * self.groups

    def batch(self, layout: Layout, lists: Lists) -> Batch:
        """Return a batch of these rows, with padding rows between and behind."""
        counts = tuple(map(len, lists))
        lead, owners = samples._rows(layout, counts, None, has_spare=True, has_end=True)
        device = self.call.a.device
        groups = torch.tensor(owners, dtype=torch.int32, device=device)
        out = torch.full((*lead, self.n), float("nan"), dtype=self.call.out.dtype, device=device)
        empty = replace(self.call, layout=layout, groups=groups, out=out)
        group, _ = empty.owners
        flat = torch.tensor([row for each in lists for row in each] or [0], device=device)
        owned = group >= 0
        place = owned.flatten().cumsum(0).view(owned.shape) - 1  # groups stand in their order
        index = flat[place.clamp_min(0)]
        rows = Rows(lead, self.groups if layout is Layout.RAGGED else 0, _offs(layout, groups))
        call = replace(empty, a=_taken(self.call.a, index), a_scale=self._scales(index, rows))
        return Batch(call=call, group=group[owned], row=index[owned], is_owned=owned)

    def _scales(self, index: Tensor, rows: Rows) -> Tensor:
        types, scale = self.operands, self.call.a_scale
        granularity = types.a_scale_granularity or types.scale_granularity
        if not self.call.has_a_scale or granularity == "tensor":
            return scale
        form = find_format(granularity)
        if not form.has_atoms:
            return form.readable(_taken(scale, index))
        own = Rows((self.rows + SPARE_ROWS,), self.groups, self.call.groups)
        places = -(-self.k // form.values)  # type: ignore[attr-defined]
        return laid_out(_taken(by_row(scale, own, places), index), rows)

    def expected(self, config: GroupedGemmConfig) -> Tensor:
        """Return the bits of every row for every group, (G, rows, N), by a kernel of any layout."""
        batch = self.batch(config.layout, self.everything)
        result = batch.run(config=config)
        table = result.new_zeros((self.groups, self.rows, self.n))
        table[batch.group.long(), batch.row] = result
        return table


@frozen
class Batch:
    """
    Rows of a pool.

    Attributes:
        call: The arguments.
        group: Group of each owned row, in their order.
        row: Number of each owned row in the pool.
        is_owned: Whether each row of the result belongs to a group.
    """

    call: Call
    group: Tensor
    row: Tensor
    is_owned: Tensor

    def run(self, **options: Any) -> Tensor:
        """Return the bits of the owned rows, (rows, N) int16 or int32."""
        out = jitgen.grouped_gemm(**self.call.arguments, **options)[self.is_owned]
        return out.view(torch.int32 if out.element_size() == 4 else torch.int16)

    def differing(self, expected: Tensor, **options: Any) -> Tensor:
        """Return how many values differ from what is expected, on the device."""
        return (self.run(**options) != expected[self.group.long(), self.row]).sum()


def draws(chance: random.Random, pool: Pool, most: int) -> Lists:
    """Return a batch as routing has them: few rows or many, some groups with none, some full."""
    size = round(2 ** chance.uniform(0, most.bit_length()))
    shares = [chance.choice((0.0, 0.2, 1.0, 1.0, 3.0)) for _ in range(pool.groups)]
    total = sum(shares) or 1.0
    counts = [min(most, round(size * share / total)) for share in shares]
    return [[chance.randrange(pool.rows) for _ in range(count)] for count in counts]


def mistakes(
    pool: Pool, configs: list[GroupedGemmConfig], batches: int, most: int, seed: int = 0
) -> Iterator[tuple[GroupedGemmConfig, int, int]]:
    """
    Yield for each of `configs` how many values of `batches` differ from the first one's, and of how
    many.
    """
    chance, expected = random.Random(seed), pool.expected(configs[0])
    wrong = {config: torch.zeros((), dtype=torch.int64) for config in configs}
    values = dict.fromkeys(configs, 0)
    for _ in range(batches):
        lists = draws(chance, pool, most)
        for layout in dict.fromkeys(config.layout for config in configs):
            batch = pool.batch(layout, lists)
            for config in (each for each in configs if each.layout is layout):
                found = batch.differing(expected, config=config)
                wrong[config] = wrong[config].to(found.device) + found
                values[config] += len(batch.row) * pool.n
    for config in configs:
        yield config, int(wrong[config]), values[config]


def misplaced(
    pool: Pool, configs: list[GroupedGemmConfig], counts: tuple[int, ...]
) -> Iterator[tuple[GroupedGemmConfig, int]]:
    """
    Yield for each of `configs` how many values differ from the first one's, of groups that have so
    many rows: those of the pool, over and over, so that each comes to many places of a tile.
    """
    expected = pool.expected(configs[0])
    lists = [[row % pool.rows for row in range(count)] for count in counts]
    for config in configs:
        yield config, int(pool.batch(config.layout, lists).differing(expected, config=config))


def of_fc2(
    arch: Arch | str, sizes: fc2.Sizes, device: str
) -> Iterator[tuple[MoEFc2DenseConfig, int]]:
    """
    Yield for each kernel of `moe_fc2_dense` that may be chosen how many values differ from the
    first one's: of all tokens, and of a few among themselves, with block scales.
    """
    target = Arch.parse(arch)
    problem = MoEFc2DenseProblem(groups=sizes.experts, m=sizes.tokens, n=sizes.n, k=sizes.k)
    found = rules(target, problem.op).candidates(problem)
    configs = keeping(found, rules(target, problem.op).sums).configs
    case = fc2.make(configs[0], sizes, is_exact=False, device=device)
    given = {**case.arguments, "out": None}
    whole = jitgen.moe_fc2_dense(**given, config=configs[0])
    every = list(range(sizes.tokens))
    for config in configs:
        wrong = 0
        for rows in (every, every[-1:], every[::3]):
            index = torch.tensor(rows, device=device)
            part = {
                "a": _taken(given["a"], index),
                "a_scale": given["a_scale"][:, index],
                "router_weights": given["router_weights"][index],
            }
            out = jitgen.moe_fc2_dense(**given | part, config=config)
            wrong += int((out.view(torch.int16) != whole[index].view(torch.int16)).sum())
        yield config, wrong


def _offs(layout: Layout, groups: Tensor) -> Tensor | None:
    return groups if layout is Layout.RAGGED else None


def _taken(rows: Tensor, index: Tensor) -> Tensor:
    """Return rows by their numbers: torch indexes bytes, and not every type of a byte."""
    if rows.element_size() == 1:
        return rows.contiguous().view(torch.uint8)[index].view(rows.dtype)
    return rows[index]
