# SPDX-License-Identifier: Apache-2.0
"""
The suites of grouped GEMMs, hopper and blackwell, which compare jitgen with every installed peer.

The cases of each suite are in a file with the suite's name, and are measured on the GPU of this
machine. All sides of a case are measured in the same way: several calls with separate operands are
captured in a CUDA graph, which runs between two events after a read of 512 MB that empties L2. The
sides take turns; figures are medians over rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

import jitgen
from jitgen.autotune.measure.clock import compete_on_host, require_gpu, sustain
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.bench import REPORTS, cases, gpu
from jitgen.bench.cases import ONE_TOKEN, Case
from jitgen.bench.cases import only as only_of
from jitgen.bench.grouped_records import (
    PADDING,
    PREFILL_ROWS,
    Accuracy,
    Checked,
    Measured,
    Section,
)
from jitgen.bench.grouped_report import GroupedReport
from jitgen.bench.peers import DISTRIBUTIONS, PEER, Peer, find_all
from jitgen.bench.report import OURS
from jitgen.bench.runner import ROUNDS, Contest, Ready, attempt, begin, copy_rate, device
from jitgen.bench.suite import Given, Suite
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import rules

_REPETITIONS = 5
_ACCURACY = (
    Case(layout=Layout.RAGGED, groups=8, rows_per_group=200, n=4096, k=7168, spread=0.5),
    Case(layout=Layout.CONTIGUOUS, groups=8, rows_per_group=256, n=4096, k=7168),
    Case(layout=Layout.MASKED, groups=8, rows_per_group=200, n=4096, k=7168, max_rows=256),
)
_HOST = Case(layout=Layout.MASKED, groups=8, rows_per_group=16, n=4096, k=7168, max_rows=64)


_ROWS = (0, 1, 127, 0, 128, 129, 259)
"""Rows of groups: none, and numbers close to the rows of tiles."""

EDGES = tuple(
    Case(
        layout=layout,
        groups=len(_ROWS),
        rows_per_group=1,
        n=584,
        k=1184,
        max_rows=max(_ROWS) if layout is Layout.MASKED else None,
    )
    for layout in Layout
)
"""Cases of the check, one for each layout, whose N and K are no multiples of a tile."""


KINDS = (
    (DType.E4M3, ScaleGranularity.BLOCK128),
    (DType.E4M3, ScaleGranularity.MX32),
    (DType.E2M1, ScaleGranularity.MX32),
    (DType.E2M1, ScaleGranularity.NV16),
)
"""Types of a and b, and scales; a target without kernels for a combination skips it."""


class Ours(Peer):
    """jitgen itself, with the kernel that its selector chooses."""

    name = OURS

    def prepare(self, workload: Workload, expected_m: int) -> Ready:
        """Return `grouped_gemm`, with `expected_m` if the layout does not imply it."""
        is_masked = workload.problem.layout is Layout.MASKED
        options: dict[str, int] = {"expected_m": expected_m} if is_masked else {}
        call = partial(workload.call, jitgen.grouped_gemm, **options)
        return Ready(calls=(call,), check=partial(workload.check, OURS))


@frozen
class Step:
    """
    A case, and what to measure of it.

    Attributes:
        kind: A section, ``kernels`` or ``accuracy``.
        case: The sizes.
    """

    kind: str
    case: Case

    def __str__(self) -> str:
        """
        Return the text that ``--only`` is compared with: ``public masked 32 x 8 N4096 K7168``.
        """
        return f"{self.kind} {self.case}"


def plan(cases: Sequence[Case], only: Sequence[str] = (), knee: Sequence[Case] = ()) -> list[Step]:
    """Return the steps to measure, most important first; raises as `jitgen.bench.cases.only`."""
    kinds: list[tuple[str, Sequence[Case]]] = [
        ("kernels", EDGES),
        (Section.PUBLIC, cases),
        (Section.KNEE, knee),
        (Section.ONE_TOKEN, ONE_TOKEN),
        ("accuracy", _ACCURACY),
        (Section.HOST, (_HOST,)),
        (Section.SUSTAINED, [case for case in cases if case.rows_per_group >= PREFILL_ROWS]),
    ]
    steps = [Step(kind=kind, case=case) for kind, found in kinds for case in found]
    return only_of(steps, only, "step")


def run(report: GroupedReport, steps: Sequence[Step], peers: Sequence[Peer]) -> Iterator[Step]:
    """
    Measure `steps` and add the results to `report`; yields each step once it is done.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
    """
    require_gpu(f"the {report.suite} suite")
    begin(report, DISTRIBUTIONS)
    report.notes.update({peer.name: peer.note for peer in peers if peer.note})
    measures = {Section.HOST: host, Section.SUSTAINED: sustained}
    for step in steps:
        if step.kind == "kernels":
            report.kernels += check(step.case)
        elif step.kind == "accuracy":
            report.accuracy.append(accuracy(step.case, peers))
        else:
            section = Section(step.kind)
            measure = measures.get(section, partial(cold, section))
            report.found.append(measure(step.case, peers))
        torch.cuda.empty_cache()
        yield step
    report.conditions["warm"] = gpu.words([state for state in (gpu.look(),) if state])
    report.conditions["copy at the end"] = f"{copy_rate() * 1e-9:,.0f} GB/s"


def check(case: Case) -> Iterator[Checked]:
    """Yield the result of each candidate kernel for the layout of `case`."""
    for dtype, scales in KINDS:
        problem = replace(case.problem, m=sum(_ROWS), a_dtype=dtype, scale_granularity=scales)
        yield from _check(problem)


def _check(problem: GroupedGemmProblem) -> Iterator[Checked]:
    arch = default_arch()
    configs = rules(arch, problem.op).candidates(problem)
    if not configs:
        return
    call = random_call(problem, _ROWS, is_exact=True, has_spare=True)
    solved = Solved.of(call.copy(device()), is_exact=True)
    arguments = solved.arguments
    for config in configs:

        def compute(config: GroupedGemmConfig = config) -> None:
            solved.out.fill_(float("nan"))
            jitgen.grouped_gemm(**arguments, config=config)
            if wrong := solved.wrong():
                raise WrongResult(f"{wrong} of {solved.out.numel()} values are wrong")

        reason: dict[str, str] = {}
        attempt("", compute, reason)
        yield Checked(kernel=config.name(arch), reason=reason.get("", ""))


def workload(case: Case) -> Workload:
    """Return random operands of the case."""
    return Workload.random(case.problem, case.row_counts, max_rows=case.max_rows, device=device())


def contest(case: Case, peers: Sequence[Peer], of: Sequence[Workload]) -> Contest:
    """Return jitgen and its peers with the same operands, without sides whose result is wrong."""
    found = Contest()
    for peer in (Ours(), *peers):
        found.add(peer.name, partial(_joined, peer, case, of))
        if peer.name in found.ready and (padding := found.ready[peer.name].padding):
            found.batches[PADDING] = found.batch(padding)
    return found


def _joined(peer: Peer, case: Case, of: Sequence[Workload]) -> Ready:
    """Return one side that makes a peer's calls with each of the operands."""
    every = [peer.prepare(each, case.rows_per_group) for each in of]
    return replace(
        every[0],
        calls=tuple(call for each in every for call in each.calls),
        padding=tuple(call for each in every for call in each.padding),
        out=lambda: of[0].out,
    )


def cold(section: Section, case: Case, peers: Sequence[Peer]) -> Measured:
    """Time a case with a cold L2."""
    operands = rotation(workload(case))
    found = contest(case, peers, operands)
    times = found.times(rounds=ROUNDS, repetitions=_REPETITIONS)
    return _measured(section, case, operands, times, found)


def sustained(case: Case, peers: Sequence[Peer]) -> Measured:
    """Time a case in loops of about a second, jitgen and the peer that the targets name in turn."""
    operands = [workload(case)]
    found = _rivals(case, peers, operands)
    states: list[gpu.GpuState] = []

    def look() -> None:
        if state := gpu.look():
            states.append(state)

    seconds = sustain([batch.calls[0] for batch in found.batches.values()], during=look)
    times = dict(zip(found.batches, seconds, strict=True))
    return _measured(Section.SUSTAINED, case, operands, times, found, gpu.words(states))


def host(case: Case, peers: Sequence[Peer]) -> Measured:
    """
    Measure the host time of a warm call. No group has rows, so that the GPU has nothing to do.
    """
    operands = [workload(case)]
    found = _rivals(case, peers, operands)
    operands[0].groups.zero_()
    calls = [batch.calls[0] for batch in found.batches.values()]
    seconds = compete_on_host(
        calls, calls=50, repetitions=101, warmup=5, between=torch.cuda.synchronize
    )
    times = dict(zip(found.batches, seconds, strict=True))
    return _measured(Section.HOST, case, operands, times, found)


def accuracy(case: Case, peers: Sequence[Peer]) -> Accuracy:
    """Compare the results of jitgen and of peers with the same numerics with sums in float64."""
    operands = workload(case)
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    for peer in (Ours(), *(peer for peer in peers if peer.has_same_numerics)):

        def add(peer: Peer = peer) -> None:
            ready = peer.prepare(operands, case.rows_per_group)
            operands.out.fill_(float("nan"))
            ready.calls[0]()
            ready.check()
            errors[peer.name] = operands.errors(torch.float64)[0]

        attempt(peer.name, add, missing)
    return Accuracy(case=case, errors=errors, missing=missing)


def _rivals(case: Case, peers: Sequence[Peer], operands: Sequence[Workload]) -> Contest:
    """Return jitgen and the peer that the targets name, without that peer's padding."""
    found = contest(case, [peer for peer in peers if peer.name == PEER], operands)
    found.batches.pop(PADDING, None)
    return found


def _measured(
    section: Section,
    case: Case,
    operands: Sequence[Workload],
    times: dict[str, Times],
    found: Contest,
    detail: str = "",
) -> Measured:
    first = operands[0]
    return Measured(
        section=section,
        case=case,
        kernel=_chosen(case, first) if OURS in times else "",
        flop=first.flop,
        num_bytes=first.num_bytes,
        launches=len(operands),
        times=times,
        missing=found.missing,
        detail=detail,
    )


def _chosen(case: Case, operands: Workload) -> str:
    """Return the name of the kernel that `grouped_gemm` chooses for the case."""
    problem = operands.problem
    if case.layout is Layout.MASKED:
        problem = replace(problem, m=case.rows_per_group * case.groups)
    arch = default_arch()
    return str(jitgen.select(problem, arch).config.name(arch))


def _run(
    report: GroupedReport, steps: Sequence[Step], given: Given, save: Callable[[], None]
) -> Iterator[Step]:
    require_gpu(f"the {report.suite} suite")
    found, missing = find_all() if given["use_peers"] else ([], {})
    report.notes.update(missing)
    save()
    yield from run(report, steps, found)


def _steps(name: str, given: Given) -> list[Step]:
    """
    Return the steps of a suite; if the user gives a file of cases, these replace those of the suite
    and of the knee.
    """
    if given["cases_at"]:
        return plan(cases.load(given["cases_at"]), given["only"])
    knee = cases.load(cases.KNEE) if name == "hopper" else ()
    return plan(cases.load(cases.file_of(name)), given["only"], knee)


def _suite(name: str) -> Suite:
    return Suite(
        name=name,
        report=GroupedReport,
        about="""
Every result is checked, and every kernel that may be chosen on small exact problems; L2 is cold.
Exits 1 if a result is wrong or a target is missed. Steps are called for example "public masked 32 x
8 N4096 K7168"; their first word is kernels, public, knee, one_token, accuracy, host or sustained.
""",
        options=("peers", "cases", "only", "save", "from", "plot", "send"),
        step="step",
        measuring=("use_peers", "cases_at", "only"),
        refusal="--from measures nothing: leave out --peers, --cases, --only, --save",
        steps=lambda given: _steps(name, given),
        run=_run,
        new=lambda _: GroupedReport(suite=name),
    )


SUITES = {name: _suite(name) for name in REPORTS}
