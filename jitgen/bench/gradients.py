# SPDX-License-Identifier: Apache-2.0
"""
Device time of a grouped GEMM of bfloat16 operands and of its two gradients, beside torch's; and of
a step of a layer: see `jitgen.bench.training`.

    forward   y = a . b[g] transposed                     jitgen.grouped_gemm
    dgrad     da = dy . b[g]                              the same, with b turned: N contiguous
    wgrad     db[g] = (dy of g) transposed . (a of g)     jitgen.grouped_gemm_wgrad

Every side of a product is checked against float64 before it is timed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import training
from jitgen.bench.cases import row_counts
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS
from jitgen.bench.runner import NEEDED, KernelCase, KernelSuite, Ratio, Side, device_of
from jitgen.config import Arch, BLayout, Config, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, GroupedGemmProblem
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.ops.sums import rounding
from jitgen.support.frozen import frozen
from jitgen.targets import legality

TORCH = "torch._grouped_mm"
PRODUCTS = FORWARD, DGRAD, WGRAD = "forward", "dgrad", "wgrad"

SUM_BITS = 16
"""Bits that a tensor core keeps of sums of bf16 products over thousands of steps, at least."""

_SEED = 0


@frozen
class Case:
    """
    Sizes of one measurement.

    Attributes:
        groups: Number of groups.
        rows: Rows of each group, or their mean.
        n: Columns of the result.
        k: Columns of a.
        spread: How unequal groups are: each has from 1 - spread to 1 + spread times the mean.
    """

    groups: int
    rows: int
    n: int = 4096
    k: int = 2048
    spread: float = 0.0

    def __str__(self) -> str:
        """Return the case as tables show it: ``8 x 4096 N4096 K2048``."""
        uneven = " uneven" if self.spread else ""
        return f"{self.groups} x {self.rows}{uneven} N{self.n} K{self.k}"

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Rows of each group."""
        return row_counts(self.groups, self.rows, self.spread)


CASES = (
    Case(groups=8, rows=4096),
    Case(groups=32, rows=256),
    Case(groups=32, rows=256, spread=0.5),
)

_SHAPES = ((128, 128), (128, 192), (128, 256), (256, 128), (256, 192))
_CLUSTERS = (Cluster(), Cluster(m=2), Cluster(n=2))
_STAGES = (None, 3)


@frozen
class Product:
    """
    One of the three products of a case.

    Attributes:
        name: Name of the product, one of `PRODUCTS`.
        problem: Problem that the selector gets.
        ours: Computes the product with jitgen; takes a config, or None for the one that the
            selector chooses.
        theirs: Computes it in torch.
        parts: For each group the index of its part of a result, and the two factors whose product
            this part is.
    """

    name: str
    problem: Any
    ours: Callable[[Config | None], Tensor]
    theirs: Callable[[], Tensor]
    parts: tuple[tuple[Any, Tensor, Tensor], ...]

    def sides(self, arch: Arch, *, candidates: bool) -> Iterator[Side]:
        """
        Yield the sides: jitgen's kernel, torch's, and with `candidates` jitgen's other kernels.
        """
        chosen, check = jitgen.select(self.problem, arch), partial(_check, self)
        kernel = chosen.config.name(arch)
        call = partial(self.ours, None)
        yield Side.of(OURS, call, partial(check, OURS), kernel=kernel, tolerated=NEEDED)
        yield Side.of(TORCH, self.theirs, partial(check, TORCH))
        for config in _considered(chosen, arch) if candidates else ():
            name = config.to_name()
            yield Side.of(name, partial(self.ours, config), partial(check, name))


def suite(
    *,
    candidates: bool = False,
    cases: Sequence[Case] = CASES,
    steps: Sequence[training.Case] = training.CASES,
) -> KernelSuite:
    """
    Return the gradients suite.

    Args:
        candidates: Whether to time, in addition, every candidate kernel of the products and kernels
            that are no candidates yet; then no steps are measured.
        cases: Products to measure.
        steps: Steps of a layer to measure.
    """

    def every(arch: Arch) -> Iterator[KernelCase]:
        for case in cases:
            yield from products(case, arch, candidates=candidates)
        if not candidates:
            yield from training.steps(steps)

    return KernelSuite(
        name="gradients",
        cases=every,
        unit="us",
        needs_gpu="bench gradients",
    )


def rows(*, candidates: bool = False) -> Iterator[Row]:
    """Yield the rows of the suite; raises as `KernelSuite.rows`."""
    return suite(candidates=candidates).rows()


def products(case: Case, arch: Arch, *, candidates: bool = False) -> Iterator[KernelCase]:
    """Yield the three products of a case; with `candidates` every kernel of them is compiled."""
    found = _products(case, *_operands(case, device_of(arch)))
    if candidates:  # all cores compile, not one after the other
        chosen = [jitgen.select(product.problem, arch) for product in found]
        configs = dict.fromkeys(config for each in chosen for config in _considered(each, arch))
        jitgen.prewarm(list(configs), arch=arch)
    for product in found:
        yield KernelCase(
            name=f"{product.name} {case}",
            problem=product.problem,
            sides=partial(product.sides, candidates=candidates),
            ratios=(Ratio(what=f"{TORCH} over {OURS}", fast=OURS, slow=TORCH, budget=1.0),),
            flop=2.0 * sum(case.row_counts) * case.n * case.k,
        )


def _operands(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a, dy, b and the ends of the groups."""
    chance = torch.Generator(device).manual_seed(_SEED)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance, device=device).bfloat16()

    counts = case.row_counts
    offs = torch.tensor([*accumulate(counts)], dtype=torch.int32, device=device)
    total = sum(counts)
    return draw(total, case.k), draw(total, case.n), draw(case.groups, case.n, case.k), offs


def _products(
    case: Case, a: Tensor, dy: Tensor, b: Tensor, offs: Tensor
) -> tuple[Product, Product, Product]:
    """Return the forward product of a case and its two gradients, in the order of `PRODUCTS`."""
    ends = [*accumulate(case.row_counts)]
    rows = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def gemm(left: Tensor, right: Tensor, config: Any) -> Tensor:
        return jitgen.grouped_gemm(left, right, offs=offs, config=config)

    def wgrad(config: Any) -> Tensor:
        return jitgen.grouped_gemm_wgrad(dy, a, offs=offs, config=config)

    def theirs(left: Tensor, right: Tensor) -> Tensor:
        return torch._grouped_mm(left, right, offs=offs)

    def problem(n: int, k: int, b_layout: BLayout) -> GroupedGemmProblem:
        return GroupedGemmProblem(
            layout=Layout.RAGGED,
            groups=case.groups,
            m=len(a),
            n=n,
            k=k,
            a_dtype=DType.BF16,
            scale_granularity=ScaleGranularity.TENSOR,
            b_layout=b_layout,
        )

    numbered = list(enumerate(rows))
    return (
        Product(
            name=FORWARD,
            problem=problem(case.n, case.k, BLayout.PLAIN),
            ours=partial(gemm, a, b),
            theirs=partial(theirs, a, b.transpose(1, 2)),
            parts=tuple((each, a[each], b[g].T) for g, each in numbered),
        ),
        Product(
            name=DGRAD,
            problem=problem(case.k, case.n, BLayout.N_MAJOR),
            ours=partial(gemm, dy, b.transpose(1, 2)),
            theirs=partial(theirs, dy, b),
            parts=tuple((each, dy[each], b[g]) for g, each in numbered),
        ),
        Product(
            name=WGRAD,
            problem=GroupedGemmWgradProblem(
                layout=Layout.RAGGED, groups=case.groups, m=len(a), n=case.n, k=case.k
            ),
            ours=wgrad,
            theirs=partial(theirs, dy.T, a),
            parts=tuple((g, dy[each].T, a[each]) for g, each in numbered),
        ),
    )


def _considered(chosen: Any, arch: Arch) -> Iterator[Any]:
    """Yield the candidates, and legal kernels like the chosen one with other tiles and clusters."""
    listed = [each.config for each in chosen.candidates]
    others = [
        replace(chosen.config, tile=replace(chosen.config.tile, m=m, n=n), cluster=cluster)
        for (m, n), cluster in itertools.product(_SHAPES, _CLUSTERS)
    ]
    if isinstance(chosen.config, GroupedGemmWgradConfig):
        others = [replace(config, num_ab_stage=n) for n in _STAGES for config in others]
    yield from dict.fromkeys(
        config for config in (*listed, *others) if legality.check(config, arch)
    )


def _check(product: Product, who: str, found: Tensor) -> None:
    """
    Check that a result differs from float64 sums by no more than its rounding and `SUM_BITS` allow.

    Raises:
        WrongResult: It differs by more.
    """
    for place, left, right in product.parts:
        expected = left.double() @ right.double()
        allowed = left.abs().float() @ right.abs().float() * 2.0**-SUM_BITS
        allowed = allowed + rounding(expected, found.dtype)
        near = (found[place].double() - expected).abs() <= allowed
        if not bool(near.all()):  # a NaN is not near
            wrong = int((~near).sum())
            raise WrongResult(f"{who}: {product.name} gives {wrong:,} wrong values")
