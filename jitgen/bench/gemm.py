# SPDX-License-Identifier: Apache-2.0
"""
Device time of GPU kernels with a cold L2, on the expert layers of DeepSeek-V3.

If DeepGEMM is installed, it runs on the same operands in turn; its time is a separate row and no
budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jitgen
from jitgen.autotune.measure.clock import require_gpu
from jitgen.autotune.measure.workload import Workload
from jitgen.bench import cases
from jitgen.bench.cases import MATRICES
from jitgen.bench.grouped import workload
from jitgen.bench.peers import PEER, find_all
from jitgen.bench.protocol import Row
from jitgen.bench.report import OURS
from jitgen.bench.runner import NEEDED, Contest, KernelCase, KernelSuite, Ready, Side
from jitgen.config import Arch, Config, Layout, Numerics
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.targets.devices import default_arch


def _case(groups: int, rows: int, n: int, k: int) -> KernelCase:
    """Return the case of one problem, called for example ``8 x (128 x 4096 x 7168)``."""
    name, m = f"{groups} x ({rows} x {n} x {k})", groups * rows
    problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=groups, m=m, n=n, k=k)
    sides = partial(_sides, name, problem)
    return KernelCase(name=name, problem=problem, sides=sides, flop=2.0 * m * n * k)


def _sides(name: str, problem: GroupedGemmProblem, _: Arch) -> Iterator[Side]:
    """
    Yield our kernel, and DeepGEMM's on the same operands if it is installed and groups have a
    multiple of 128 rows.
    """
    workload, rows = Workload.random(problem), problem.rows_per_group
    ours = Ready(
        calls=(partial(workload.call, jitgen.grouped_gemm),),
        check=partial(workload.check, f"the kernel for {name}"),
        out=lambda: workload.out,
    )
    yield Side(name=OURS, prepare=lambda: ours, tolerated=NEEDED)
    found = find_all((PEER,))[0]
    if found and not rows % GROUP_ALIGNMENT:
        peer = replace(found[0].prepare(workload, rows), out=ours.out)
        yield Side(name=PEER, prepare=lambda: peer, tolerated=NEEDED)


CASES = tuple(
    _case(groups, rows, n, k)
    for groups, rows in ((8, 128), (8, 1024), (8, 4096), (32, 64), (32, 512))
    for n, k in MATRICES
)

_MOST = 1.03
"""
The most that invariant numerics may cost: the geometric mean over all cases of the ratio of times.
"""


class Pair(NamedTuple):
    """
    A case and its two chosen kernels.

    Attributes:
        case: The case.
        fast: The kernel that is chosen among all.
        invariant: The kernel that is chosen among those with invariant numerics, which give a row
            the same bits whatever other rows there are.
    """

    case: cases.Case
    fast: Config
    invariant: Config


def pairs() -> list[Pair]:
    """Return every case with both of its kernels, which are often the same."""
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


def invariance() -> Iterator[Row]:
    """
    Yield the cost of invariant numerics: the time of the kernel chosen with them over that of the
    kernel chosen without.

    The cases are those of the hopper suite and one token per group. If both kernels are the same,
    the ratio is 1 and nothing is timed; otherwise both are timed in turn on the same operands.

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
        contest.add(name, partial(Ready, calls=(call,), check=check, out=out), tolerated=NEEDED)
    fast, invariant = contest.times(repetitions=4).values()
    return Row(
        suite="invariance",
        what=f"{pair.case}: {pair.invariant.short} in the place of {pair.fast.short}",
        value=invariant.median / fast.median,
        unit="x",
        detail=f"{invariant.median * 1e6:.1f} us and {fast.median * 1e6:.1f}",
    )


SUITE = KernelSuite(
    name="gemm",
    cases=lambda _: CASES,
    unit="TFLOP/s",
    repetitions=4,
    needs_gpu="the gemm suite",
)
rows = SUITE.rows
