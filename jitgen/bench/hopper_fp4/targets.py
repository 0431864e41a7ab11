# SPDX-License-Identifier: Apache-2.0
"""What the suite is to show: how much faster than FP8 weights, and than others, FP4 is."""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.bench.cases import DOWN, UP
from jitgen.bench.hopper_fp4 import NAME
from jitgen.bench.hopper_fp4.report import Found, Fp4Report
from jitgen.bench.protocol import Row
from jitgen.support.frozen import frozen

E4M3 = ("e4m3", "e4m3 folded")
BF16 = ("e4m3x2", "e4m3x2 folded", "bf16")
"""Sides that take bfloat16 activations without loss."""

GPT_OSS = (5760, 2880)


@frozen
class Target:
    """
    The least that the best of some sides must reach in one case.

    Attributes:
        sides: jitgen's, of which the fastest counts.
        other: Who is slower: ``fp8`` or a peer.
        matrix: N and K.
        rows: Rows of a group.
        least: The least of `other`'s time over that of the best side.
    """

    sides: tuple[str, ...]
    other: str
    matrix: tuple[int, int]
    rows: int
    least: float


TARGETS = (
    *(
        Target(sides=E4M3, other="fp8", matrix=matrix, rows=rows, least=least)
        for matrix, goals in (
            (UP, {1: 1.82, 8: 1.78, 16: 1.73, 32: 1.70, 64: 1.35}),
            (DOWN, {1: 1.76, 8: 1.68, 16: 1.67, 32: 1.64, 64: 1.18}),
            (GPT_OSS, {1: 1.70, 8: 1.68, 32: 1.55}),
        )
        for rows, least in goals.items()
    ),
    Target(sides=BF16, other="fp8", matrix=UP, rows=8, least=1.75),
    Target(sides=BF16, other="fp8", matrix=UP, rows=32, least=1.45),
    Target(sides=E4M3, other="humming e4m3", matrix=UP, rows=8, least=1.07),
    Target(sides=BF16, other="triton_kernels", matrix=UP, rows=8, least=1.35),
    Target(sides=BF16, other="marlin", matrix=UP, rows=8, least=1.6),
    Target(sides=BF16, other="humming bf16", matrix=UP, rows=8, least=1.5),
)


def rows(report: Fp4Report) -> Iterator[Row]:
    """Yield every target that `report` has a figure for, and that figure."""
    for target in TARGETS:
        n, k = target.matrix
        found = report.at(target.rows, n, k)
        ratios = {} if found is None else _ratios(found, target)
        if not ratios:
            continue
        best = max(ratios, key=lambda side: ratios[side])
        activations = "bf16" if target.sides == BF16 else "e4m3"
        case = f"{activations} activations, {target.rows} rows, N{n} K{k}"
        yield Row(
            suite=NAME,
            what=f"{target.other} over FP4, {case}",
            value=ratios[best],
            unit="x",
            budget=target.least,
            is_rate=True,
            detail=f"best: {best}",
        )


def _ratios(found: Found, target: Target) -> dict[str, float]:
    """Return for each of the target's sides how much slower the other is."""
    pairs = {side: found.over(target.other, side) for side in target.sides}
    return {side: ratio for side, ratio in pairs.items() if ratio is not None}
