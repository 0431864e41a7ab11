# SPDX-License-Identifier: Apache-2.0
"""
Suites of grouped GEMMs beside every peer that is installed: what one is, and its run.

A suite is data, `SUITE` of a module of its name: it measures on whatever GPU is there. One method
for all sides of a case: calls captured in a CUDA graph, each on operands of its own, behind a read
of 512 MB that empties L2, between two events; sides in turn; medians of rounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from jitgen.autotune.measure.clock import (
    compete,
    compete_in_batches,
    compete_on_host,
    require_gpu,
    sustain,
)
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.times import Times
from jitgen.autotune.measure.workload import Workload
from jitgen.bench import REPORTS, gpu
from jitgen.bench.cases import ONE_TOKEN, Case
from jitgen.bench.kernels import EDGES, check
from jitgen.bench.peers import PEER, Peer, versions
from jitgen.bench.protocol import Row, conditions
from jitgen.bench.report import OURS, PADDING, Accuracy, BenchReport, Measured, Section
from jitgen.bench.sides import Ours, Sides, attempt, chosen, prepare, workload
from jitgen.config import Layout
from jitgen.support.frozen import frozen

PREFILL_ROWS = 4096
"""Rows of a group from which a case counts as prefill."""

ROUNDS = 7
_REPETITIONS = 5
_COPY_BYTES = 2 * 2**30

_ACCURACY = (
    Case(layout=Layout.RAGGED, groups=8, rows_per_group=200, n=4096, k=7168, spread=0.5),
    Case(layout=Layout.CONTIGUOUS, groups=8, rows_per_group=256, n=4096, k=7168),
    Case(layout=Layout.MASKED, groups=8, rows_per_group=200, n=4096, k=7168, max_rows=256),
)
_HOST = Case(layout=Layout.MASKED, groups=8, rows_per_group=16, n=4096, k=7168, max_rows=64)


@frozen
class Suite:
    """
    What is measured under a name.

    Attributes:
        name: The word of the command line.
        cases: File of its cases; any file of the same form may take its place.
        targets: Yields what its reports are to show, each with the figure of a report.
    """

    name: str
    cases: Path
    targets: Callable[[BenchReport], Iterable[Row]]


def find(name: str) -> Suite:
    """Return the suite of a name of `jitgen.bench.REPORTS`."""
    if name not in REPORTS:
        raise KeyError(name)
    suite: Suite = importlib.import_module(f"jitgen.bench.{name}").SUITE
    return suite


@frozen
class Step:
    """
    One thing to measure.

    Attributes:
        kind: A section, ``kernels`` or ``accuracy``.
        case: The sizes.
    """

    kind: str
    case: Case

    def __str__(self) -> str:
        """Return what ``--only`` is compared with: ``public masked 32 x 8 N4096 K7168``."""
        return f"{self.kind} {self.case}"


def plan(cases: Sequence[Case], only: Sequence[str] = ()) -> list[Step]:
    """Return what to measure, most important first: steps whose name has every text of `only`."""
    kinds: list[tuple[str, Sequence[Case]]] = [
        ("kernels", EDGES),
        (Section.PUBLIC, cases),
        (Section.ONE_TOKEN, ONE_TOKEN),
        ("accuracy", _ACCURACY),
        (Section.HOST, (_HOST,)),
        (Section.SUSTAINED, [case for case in cases if case.rows_per_group >= PREFILL_ROWS]),
    ]
    steps = [Step(kind=kind, case=case) for kind, found in kinds for case in found]
    return [step for step in steps if all(text in str(step) for text in only)]


def run(report: BenchReport, steps: Sequence[Step], peers: Sequence[Peer]) -> Iterator[Step]:
    """
    Measure `steps` and add what was found to `report`; yields each step once it is done.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
    """
    require_gpu(f"the {report.suite} suite")
    report.conditions.update({**conditions(), **versions(), **gpu.conditions()})
    report.notes.update({peer.name: peer.note for peer in peers if peer.note})
    report.copy_rate = copy_rate()
    for step in steps:
        if step.kind == "kernels":
            report.kernels += check(step.case)
        elif step.kind == "accuracy":
            report.accuracy.append(accuracy(step.case, peers))
        elif step.kind == Section.HOST:
            report.measured.append(host(step.case, peers))
        elif step.kind == Section.SUSTAINED:
            report.measured.append(sustained(step.case, peers))
        else:
            report.measured.append(cold(Section(step.kind), step.case, peers))
        torch.cuda.empty_cache()
        yield step
    report.conditions["warm"] = gpu.words([state for state in (gpu.look(),) if state])
    report.conditions["copy at the end"] = f"{copy_rate() * 1e-9:,.0f} GB/s"


def copy_rate() -> float:
    """Return the bytes a second of a large copy within the device's memory, read and written."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)
    (times,) = compete([partial(target.copy_, source)], rounds=ROUNDS, on_gpu=True)
    return 2 * _COPY_BYTES / times.median


def cold(section: Section, case: Case, peers: Sequence[Peer]) -> Measured:
    """Time a case with a cold L2."""
    operands = rotation(workload(case))
    sides = prepare(case, peers, operands)
    times = compete_in_batches(
        list(sides.batches.values()), rounds=ROUNDS, repetitions=_REPETITIONS
    )
    return _measured(
        section, case, operands, dict(zip(sides.batches, times, strict=True)), sides.missing
    )


def sustained(case: Case, peers: Sequence[Peer]) -> Measured:
    """Time a case in loops of about a second, jitgen and the peer of the targets in turn."""
    operands = [workload(case)]
    sides = _rivals(case, peers, operands)
    states: list[gpu.GpuState] = []

    def look() -> None:
        if state := gpu.look():
            states.append(state)

    batches = sides.batches
    times = sustain([batch.calls[0] for batch in batches.values()], during=look)
    found = dict(zip(batches, times, strict=True))
    detail = gpu.words(states)
    return _measured(Section.SUSTAINED, case, operands, found, sides.missing, detail)


def host(case: Case, peers: Sequence[Peer]) -> Measured:
    """Time what a warm call costs the host; no group has rows, so that the GPU is always idle."""
    operands = [workload(case)]
    sides = _rivals(case, peers, operands)
    operands[0].groups.zero_()
    calls = [batch.calls[0] for batch in sides.batches.values()]
    times = compete_on_host(
        calls, calls=50, repetitions=101, warmup=5, between=torch.cuda.synchronize
    )
    found = dict(zip(sides.batches, times, strict=True))
    return _measured(Section.HOST, case, operands, found, sides.missing)


def accuracy(case: Case, peers: Sequence[Peer]) -> Accuracy:
    """Compare the results of jitgen, and of peers with its numerics, with sums in float64."""
    operands = workload(case)
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    for peer in (Ours(), *(peer for peer in peers if peer.has_same_numerics)):

        def add(peer: Peer = peer) -> None:
            prepared = peer.prepare(operands, case.rows_per_group)
            operands.out.fill_(float("nan"))
            prepared.call()
            prepared.check()
            errors[peer.name] = operands.errors(torch.float64)[0]

        attempt(peer.name, add, missing)
    return Accuracy(case=case, errors=errors, missing=missing)


def _rivals(case: Case, peers: Sequence[Peer], operands: Sequence[Workload]) -> Sides:
    """Return jitgen and the peer of the targets."""
    sides = prepare(case, [peer for peer in peers if peer.name == PEER], operands)
    sides.batches.pop(PADDING, None)
    return sides


def _measured(
    section: Section,
    case: Case,
    operands: Sequence[Workload],
    times: dict[str, Times],
    missing: dict[str, str],
    detail: str = "",
) -> Measured:
    first = operands[0]
    return Measured(
        section=section,
        case=case,
        kernel=chosen(case, first) if OURS in times else "",
        flop=first.flop,
        num_bytes=first.num_bytes,
        launches=len(operands),
        times=times,
        missing=missing,
        detail=detail,
    )
