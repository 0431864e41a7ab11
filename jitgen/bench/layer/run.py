# SPDX-License-Identifier: Apache-2.0
"""The run: every side of a case is checked, then all are timed in turn with a cold L2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from jitgen.autotune.measure.clock import Batch, compete_in_batches, require_gpu
from jitgen.bench import gpu
from jitgen.bench.layer import NAME, deep_gemm, inductor, ours, vllm_triton
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import Experts, Operands
from jitgen.bench.layer.report import Found, LayerReport
from jitgen.bench.layer.side import Ready
from jitgen.bench.peers import DISTRIBUTIONS, versions
from jitgen.bench.protocol import conditions
from jitgen.bench.sides import attempt
from jitgen.bench.suite import copy_rate
from jitgen.support.frozen import frozen

SIDES: dict[str, Callable[[Operands], Ready]] = {
    ours.OURS: ours.prepare,
    ours.APART: ours.prepare_apart,
    ours.LATE: ours.prepare_late,
    inductor.NAME: inductor.prepare,
    deep_gemm.MASKED: deep_gemm.prepare_masked,
    deep_gemm.CONTIGUOUS: deep_gemm.prepare_contiguous,
    vllm_triton.NAME: vllm_triton.prepare,
}
"""Every side, ours first."""

NOTES = {
    ours.APART: "pairs are sorted and their rows gathered by two launches, however few there are",
    ours.LATE: "no launch starts earlier than the selector has it, and no weights are loaded early",
    inductor.NAME: inductor.NOTE,
    deep_gemm.MASKED: deep_gemm.NOTE,
    deep_gemm.CONTIGUOUS: deep_gemm.NOTE,
    vllm_triton.NAME: vllm_triton.NOTE,
}

_DEVICE = "cuda"


@frozen
class Method:
    """
    How cases are measured.

    Attributes:
        sides: Which of `SIDES`.
        rounds: Rounds in which each side has its turn.
        repetitions: Replays in a turn; its figure is their median.
        seconds: No case begins after so many; None: all do.
        has_steps: Whether the launches of ours are timed alone, too.
    """

    sides: tuple[str, ...] = tuple(SIDES)
    rounds: int = 5
    repetitions: int = 5
    seconds: float | None = None
    has_steps: bool = True


def run(
    report: LayerReport, cases: Sequence[Case], how: Method, save: Callable[[], None]
) -> Iterator[Case]:
    """
    Measure `cases` and add what was found to `report`; yields each one once it is done.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
    """
    require_gpu(f"the {NAME} suite")
    start = time.monotonic()
    report.conditions.update(
        {**conditions(), **versions((*DISTRIBUTIONS, "vllm")), **gpu.conditions()}
    )
    report.notes.update({side: note for side, note in NOTES.items() if side in how.sides})
    report.copy_rate = copy_rate()
    experts = Experts(cases[0], max(case.experts for case in cases), _DEVICE)
    for case in cases:
        if how.seconds is not None and time.monotonic() - start > how.seconds:
            report.notes["not measured"] = f"{case} and what follows: out of time"
            break
        report.found.append(measured(Operands(case, experts, _DEVICE), how, report.copy_rate))
        torch.cuda.empty_cache()
        save()
        yield case


def measured(operands: Operands, how: Method, rate: float) -> Found:
    """Check and time the sides of one case."""
    batches: dict[str, Batch] = {}
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    notes: dict[str, str] = {}
    for name in how.sides:

        def add(name: str = name) -> None:
            ready = SIDES[name](operands)
            batch = Batch.capture([ready.call])
            ready.result().fill_(float("nan"))
            batch.replay()
            errors[name] = operands.check(name, ready.result(), ready.weights)
            batches[name] = batch
            if ready.note:
                notes[name] = ready.note

        attempt(name, add, missing)
    found = _timed(batches, how)
    steps: dict[str, float] = {}
    if how.has_steps and ours.OURS in batches:
        calls = ours.steps(operands)
        alone = {name: Batch.capture([call]) for name, call in calls.items()}
        steps = {name: median for name, (median, _) in _timed(alone, how).items()}
    return Found(
        case=operands.case,
        active=operands.active,
        floor_us=operands.active_bytes / rate * 1e6,
        times_us={name: median for name, (median, _) in found.items()},
        spreads={name: spread for name, (_, spread) in found.items()},
        errors=errors,
        steps_us=steps,
        missing=missing,
        notes=notes,
    )


def _timed(batches: dict[str, Batch], how: Method) -> dict[str, tuple[float, float]]:
    """Return the median in microseconds of each, and its spread."""
    if not batches:
        return {}
    times = compete_in_batches(
        list(batches.values()), rounds=how.rounds, repetitions=how.repetitions
    )
    return {
        name: (each.median * 1e6, each.spread) for name, each in zip(batches, times, strict=True)
    }
