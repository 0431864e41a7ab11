# SPDX-License-Identifier: Apache-2.0
"""
What invariant numerics cost: the kernel that is chosen with them beside the one without.

Over the cases of the hopper suite and one token a group. Where both are the same kernel nothing is
lost and nothing is timed; elsewhere each is timed in turn, on the same operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jitgen
from jitgen.autotune.measure.clock import require_gpu
from jitgen.bench import cases
from jitgen.bench.cases import Case
from jitgen.bench.grouped import workload
from jitgen.bench.protocol import Row
from jitgen.bench.runner import Contest, Ready
from jitgen.config import Config, Numerics
from jitgen.targets.devices import default_arch

_MOST = 1.03
"""Times as long that all cases may take in the geometric mean."""


class Pair(NamedTuple):
    """
    A case, and what is chosen for it.

    Attributes:
        case: The case.
        fast: The kernel that is chosen where any may be.
        invariant: The one that is chosen among those that give a row the same bits.
    """

    case: Case
    fast: Config
    invariant: Config


def pairs() -> list[Pair]:
    """Return every case with both of its kernels, which are often one."""
    arch = default_arch()
    return [
        Pair(
            case,
            *(
                jitgen.select(replace(case.problem, numerics=numerics), arch).config
                for numerics in (Numerics.FAST, Numerics.INVARIANT)
            ),
        )
        for case in dict.fromkeys((*cases.load(), *cases.ONE_TOKEN))
    ]


def rows() -> Iterator[Row]:
    """
    Yield the loss of every case whose kernel is another one, and the mean of all cases.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
        WrongResult: A kernel computes something wrong.
    """
    require_gpu("the invariance suite")
    every, ratios = pairs(), []
    for pair in every:
        if pair.fast != pair.invariant:
            ratios.append(_ratio(pair))
            yield ratios[-1]
    mean = math.exp(sum(math.log(row.value) for row in ratios) / len(every))
    yield Row(
        suite="invariance",
        what="geometric mean of all cases",
        value=mean,
        unit="x",
        budget=_MOST,
        detail=f"{len(ratios)} of {len(every)} have another kernel",
    )


def _ratio(pair: Pair) -> Row:
    operands = workload(pair.case)
    contest, out = Contest(in_graphs=False), (lambda: operands.out)
    for name, config in zip(("fast", "invariant"), pair[1:], strict=True):
        call = partial(operands.call, jitgen.grouped_gemm, config=config, numerics="fast")
        check = partial(operands.check, f"{config.short} for {pair.case}")
        contest.add(name, partial(Ready, calls=(call,), check=check, out=out), is_needed=True)
    fast, invariant = contest.times(repetitions=4).values()
    return Row(
        suite="invariance",
        what=f"{pair.case}: {pair.invariant.short} in the place of {pair.fast.short}",
        value=invariant.median / fast.median,
        unit="x",
        detail=f"{invariant.median * 1e6:.1f} us and {fast.median * 1e6:.1f}",
    )
