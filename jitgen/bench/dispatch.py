# SPDX-License-Identifier: Apache-2.0
"""
What `grouped_gemm(..., out=out)` costs the host above the bare tvm-ffi call: where its shapes were
seen before, and where the number of rows is new and its bucket is not.

Both sides launch the same kernel on rows that belong to no group, so that the kernel itself does
next to nothing and the difference is not lost in it. Runs are short and compared in pairs, so that
another process that takes the core away disturbs few of them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import jitgen
from jitgen.bench.protocol import Row
from jitgen.config import Arch, Layout
from jitgen.ops.grouped_gemm.problem import Problem
from jitgen.runtime.session import current
from jitgen.targets.devices import default_arch
from jitgen.tuning.choice import edges_of
from jitgen.tuning.measure.clock import compete_on_host, has_gpu
from jitgen.tuning.measure.times import Times
from jitgen.tuning.measure.workload import Workload

SEEN_US = 1.1
"""Budget of a call whose shapes were seen."""

NEW_US = 6.0
"""Budget of a call with a new number of rows, in a bucket in which one was seen."""

_CALLS = 100
_SIZES = 50  # row counts of one run, each of them new
_GROUPS = 2

_Tensors = tuple[torch.Tensor, ...]


def rows() -> Iterator[Row]:
    """Yield both differences, and the times that they are made of."""
    is_gpu = has_gpu()
    arch = default_arch() if is_gpu else Arch.CPU
    device = "cuda" if is_gpu else "cpu"
    problem = Problem(layout=Layout.RAGGED, groups=_GROUPS, m=32, n=128, k=128)
    yield from _seen(Workload.random(problem, device=device), arch)
    first = _first_rows(problem, arch)
    problem = Problem(layout=Layout.RAGGED, groups=_GROUPS, m=first + _SIZES, n=128, k=128)
    yield from _new(Workload.random(problem, device=device), arch, first)


def _seen(workload: Workload, arch: Arch) -> Iterator[Row]:
    bare, full = _sides(workload, arch)
    tensors = _of(workload, workload.a.shape[0])
    times = _compete(lambda: full(tensors), lambda: bare(tensors), _CALLS)
    yield _above(times, SEEN_US, "grouped_gemm(..., out=out) above the bare call", _CALLS)
    yield from _whole(times, "the whole call", "the bare tvm-ffi call")


def _new(workload: Workload, arch: Arch, first: int) -> Iterator[Row]:
    bare, full = _sides(workload, arch)
    every = [_of(workload, m) for m in range(first, first + _SIZES)]
    turns = itertools.cycle(every), itertools.cycle(every)
    memo = current.get().memo
    times = _compete(
        lambda: full(next(turns[0])), lambda: bare(next(turns[1])), _SIZES, between=memo.clear
    )
    yield _above(times, NEW_US, "the same with a new number of rows in a seen bucket", _SIZES)
    yield from _whole(times, "the whole call, new rows", "the bare tvm-ffi call, other rows")


def _sides(
    workload: Workload, arch: Arch
) -> tuple[Callable[[_Tensors], object], Callable[[_Tensors], object]]:
    """Return the bare call and the public one, which were checked and take what `_of` returns."""
    workload.call()
    workload.check("the kernel of the dispatch suite")
    config = jitgen.select(workload.problem, arch).config
    function, gemm = current.get().get_kernel(config, arch).function, jitgen.grouped_gemm
    tail: tuple[Any, ...] = ()
    if arch.is_gpu:
        properties = torch.cuda.get_device_properties(workload.a.device)
        tail = (properties.multi_processor_count,)
    b, b_scale = workload.b, workload.b_scale

    def bare(tensors: _Tensors) -> None:
        a, a_scale, offs, out = tensors
        function(a, b, a_scale, b_scale, offs, out, *tail)

    def full(tensors: _Tensors) -> None:
        a, a_scale, offs, out = tensors
        gemm(a, b, a_scale, b_scale, offs=offs, out=out)

    return bare, full


def _of(workload: Workload, m: int) -> _Tensors:
    """Return a, its scales, groups without a row and an output: the first `m` rows of each."""
    scale = jitgen.quantize.kernel_layout(workload.a_scale[:m])
    return workload.a[:m], scale, torch.zeros_like(workload.groups), workload.out[:m]


def _first_rows(problem: Problem, arch: Arch) -> int:
    """Return the fewest rows of the first bucket that holds `_SIZES` counts and one more."""
    edges = (0, *edges_of(problem, arch))
    for low, high in itertools.pairwise(edges):
        if (high - low) * problem.groups > _SIZES:
            return low * problem.groups + 1
    return edges[-2] * problem.groups + 1  # the last one holds whatever is above it


def _compete(
    full: Callable[[], object],
    bare: Callable[[], object],
    calls: int,
    between: Callable[[], object] = lambda: None,
) -> list[Times]:
    is_gpu = has_gpu()

    def settle() -> None:
        between()
        if is_gpu:
            torch.cuda.synchronize()

    with torch.no_grad():  # as inference runs: else the call has to ask each tensor
        return compete_on_host(
            [full, bare], calls=calls, repetitions=201, warmup=20, between=settle
        )


def _above(times: Sequence[Times], budget: float, what: str, calls: int) -> Row:
    pairs = list(zip(times[0].seconds, times[1].seconds, strict=True))
    return Row(
        suite="dispatch",
        what=what,
        value=statistics.median(slow - fast for slow, fast in pairs) * 1e6,
        unit="us",
        budget=budget,
        detail=f"median difference of {len(pairs)} pairs of {calls} calls, no_grad",
    )


def _whole(times: Sequence[Times], *names: str) -> Iterator[Row]:
    for what, each in zip(names, times, strict=True):
        yield Row(
            suite="dispatch",
            what=what,
            value=each.median * 1e6,
            unit="us",
            detail=each.detail(1e6, "us"),
        )
