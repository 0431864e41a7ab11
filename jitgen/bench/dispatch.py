# SPDX-License-Identifier: Apache-2.0
"""
Host time of `grouped_gemm(..., out=out)` in addition to that of the bare tvm-ffi call: once for
shapes of an earlier call, and once for a new number of rows in the bucket of an earlier call. Also
the host time of `activation_quantize(..., out=(q, None))` in addition to the bare call and the
allocation of scales, and the cost of recording calls.

Both sides launch the same kernel on rows that belong to no group, so that the kernel takes hardly
any time and the difference can be measured. Runs are short and compared in pairs, so that another
process on the same core disturbs few of them.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import torch

import jitgen
from jitgen.autotune.measure.clock import compete_on_host, has_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.bench.protocol import Row, row_of
from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import ActivationQuantizeConfig, ActivationQuantizeProblem
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.formats.block128 import FORMAT as BLOCK128
from jitgen.formats.protocol import Rows
from jitgen.ops.activation_quantize import samples
from jitgen.plans import recorder
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import edges_of
from jitgen.targets.devices import default_arch

SEEN_US = 1.2
"""
Budget of a call with the shapes of an earlier call. Some 0.3 us of it is torch's guard of five
tensors, 0.1 us their result's version counter: see `jitgen.ops.guards` and `jitgen.ops.dispatcher`.
"""

SILU_US = 2.0
"""Budget of `activation_quantize`, whose key has more parts."""

NEW_US = 6.0
"""Budget of a call with a new number of rows, in the bucket of an earlier call."""

RECORDED_US = 0.3
"""Budget of the time that JITGEN_RECORD adds to a call."""

_CALLS = 100
_SIZES = 50  # row counts of one run, each of them new
_GROUPS = 2
_EXPECTED = 16

_Tensors = tuple[torch.Tensor, ...]


def rows() -> Iterator[Row]:
    """Yield for each comparison the difference of two host times, and both times."""
    is_gpu = has_gpu()
    arch = default_arch() if is_gpu else Arch.CPU
    device = "cuda" if is_gpu else "cpu"
    problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=_GROUPS, m=32, n=128, k=128)
    yield from _seen(Workload.random(problem, device=device), arch)
    yield from _recorded(Workload.random(problem, device=device), arch)
    first = _first_rows(problem, arch)
    problem = GroupedGemmProblem(
        layout=Layout.RAGGED, groups=_GROUPS, m=first + _SIZES, n=128, k=128
    )
    yield from _new(Workload.random(problem, device=device), arch, first)
    yield from _silu(arch, device)


def _seen(workload: Workload, arch: Arch) -> Iterator[Row]:
    bare, full = _sides(workload, arch)
    tensors = _of(workload, workload.a.shape[0])
    times = _compete(lambda: full(tensors), lambda: bare(tensors), _CALLS)
    yield _above(times, SEEN_US, "grouped_gemm(..., out=out) above the bare call", _CALLS)
    yield from _whole(times, "the whole call", "the bare tvm-ffi call")


def _recorded(workload: Workload, arch: Arch) -> Iterator[Row]:
    _, call = _sides(workload, arch)
    tensors = _of(workload, workload.a.shape[0])
    with tempfile.TemporaryDirectory(prefix="jitgen-bench-") as folder:
        path = Path(folder, "calls.json")
        full, bare = (_in(each, call, tensors) for each in (Session(record=path), Session()))
        times = _compete(full, bare, 1)
        recorder.end(path)
    what = "grouped_gemm(..., out=out) recorded, above the same call that is not"
    yield _above(times, RECORDED_US, what, _CALLS, _CALLS)


def _in(
    session: Session, call: Callable[[_Tensors], object], tensors: _Tensors
) -> Callable[[], None]:
    """
    Return a function that makes many calls in `session`, so that the cost of entering the session
    is small beside them.
    """

    def calls() -> None:
        with session:
            for _ in range(_CALLS):
                call(tensors)

    return calls


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


def _silu(arch: Arch, device: str) -> Iterator[Row]:
    problem = ActivationQuantizeProblem(
        layout=Layout.RAGGED, groups=_GROUPS, m=_GROUPS * _EXPECTED, n=128
    )
    config = jitgen.select(problem, arch).config
    sizes = samples.Sizes(rows=(_EXPECTED,) * _GROUPS, n=problem.n)
    solved = samples.make(
        cast("ActivationQuantizeConfig", config), sizes, is_exact=True, device=device
    )
    silu = jitgen.activation_quantize
    if wrong := solved.solve(partial(silu, expected_m=_EXPECTED)):
        raise WrongResult(f"activation_quantize of the dispatch suite gives {wrong} wrong values")
    function, new_scale = current.get().get_kernel(config, arch).function, BLOCK128.new_a
    x, q, tail = solved.tensors[0], solved.output("q").found, _tail(arch)
    into = (q, None)
    none = torch.zeros(_GROUPS, dtype=torch.int32, device=device)
    rows = Rows(x.shape[:-1])

    def bare() -> None:
        function(x, none, q, new_scale(x, rows, problem.n), *tail)

    def full() -> None:
        silu(x, offs=none, out=into, expected_m=_EXPECTED)

    times = _compete(full, bare, _CALLS)
    what = "activation_quantize(..., out=(q, None)) above the bare call with new scales"
    yield _above(times, SILU_US, what, _CALLS)
    yield from _whole(
        times, "the whole activation_quantize", "the bare tvm-ffi call with new scales"
    )


def _sides(
    workload: Workload, arch: Arch
) -> tuple[Callable[[_Tensors], object], Callable[[_Tensors], object]]:
    """
    Return the bare call and the public one, which take what `_of` returns. The kernel that both
    launch is checked.
    """
    workload.call()
    workload.check("the kernel of the dispatch suite")
    config = jitgen.select(workload.problem, arch).config
    function, gemm = current.get().get_kernel(config, arch).function, jitgen.grouped_gemm
    tail = _tail(arch)
    b, b_scale = workload.b, workload.b_scale

    def bare(tensors: _Tensors) -> None:
        a, a_scale, offs, out = tensors
        function(a, b, a_scale, b_scale, offs, out, *tail)

    def full(tensors: _Tensors) -> None:
        a, a_scale, offs, out = tensors
        gemm(a, b, a_scale, b_scale, offs=offs, out=out)

    return bare, full


def _tail(arch: Arch) -> tuple[int, ...]:
    """
    Return the arguments of a kernel's function after the tensors: on a GPU the number of its SMs.
    """
    if not arch.is_gpu:
        return ()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return (properties.multi_processor_count,)


def _of(workload: Workload, m: int) -> _Tensors:
    """
    Return the first `m` rows of a and of its scales, the ends of groups that have no rows, and the
    first `m` rows of the output.
    """
    scale = jitgen.quantize.kernel_layout(workload.a_scale[:m])
    return workload.a[:m], scale, torch.zeros_like(workload.groups), workload.out[:m]


def _first_rows(problem: GroupedGemmProblem, arch: Arch) -> int:
    """
    Return the fewest rows of the first bucket that contains more than `_SIZES` numbers of rows.
    """
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


def _above(times: Sequence[Times], budget: float, what: str, calls: int, each: int = 1) -> Row:
    """
    Return the row of the difference per call between two timed functions, each time of which is
    that of `each` calls. `calls` is the number of calls in a run, for the detail.
    """
    pairs = list(zip(times[0].seconds, times[1].seconds, strict=True))
    return Row(
        suite="dispatch",
        what=what,
        value=statistics.median(slow - fast for slow, fast in pairs) / each * 1e6,
        unit="us",
        budget=budget,
        detail=f"median difference of {len(pairs)} pairs of {calls} calls, no_grad",
    )


def _whole(times: Sequence[Times], *names: str) -> Iterator[Row]:
    for what, each in zip(names, times, strict=True):
        yield row_of("dispatch", what, each, "us")
