# SPDX-License-Identifier: Apache-2.0
"""
The run: every side of a case is checked, then all are timed in turn with a cold L2.

A kernel that hangs, ours or another's, would hang the process with it. So each first launch is
under a watch that ends the process with a traceback; the report on disk says whom it was about, and
a run that is resumed goes on without that side.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from jitgen.bench import gpu
from jitgen.bench.cases import Case
from jitgen.bench.hopper_fp4 import NAME
from jitgen.bench.hopper_fp4.cases import Step
from jitgen.bench.hopper_fp4.operands import Ready, Tokens, Weights
from jitgen.bench.hopper_fp4.report import Found, Fp4Report, Timed
from jitgen.bench.hopper_fp4.sides import OURS, Side
from jitgen.bench.peers import versions
from jitgen.bench.peers.mxfp4 import DISTRIBUTIONS
from jitgen.bench.protocol import conditions
from jitgen.bench.sides import attempt
from jitgen.bench.suite import ROUNDS, copy_rate
from jitgen.config import Arch
from jitgen.targets.devices import default_arch
from jitgen.tuning.measure.clock import Batch, compete_in_batches, has_gpu
from jitgen.tuning.measure.errors import NoDevice

LAUNCH_S = 90.0
"""Most seconds until a side's first result; some compile for half a minute."""

_REPETITIONS = 3

_DEVICE = "cuda"


@contextmanager
def watched(report: Fp4Report, name: str, save: Callable[[], None]) -> Iterator[None]:
    """
    Leave a side's name on disk while its first launch is under way, and end one that hangs.

    The name stays after a fault of the device, too: whatever is launched behind it fails.
    """
    report.launching = name
    save()
    faulthandler.dump_traceback_later(LAUNCH_S, exit=True)
    try:
        yield
        torch.cuda.synchronize()
    finally:
        faulthandler.cancel_dump_traceback_later()
    report.launching = ""


def require_hopper() -> None:
    """
    Do nothing on a Hopper.

    Raises:
        NoDevice: There is none.
    """
    if not has_gpu() or default_arch() is not Arch.SM_90A:
        raise NoDevice(f"the {NAME} suite needs a Hopper GPU")


def run(
    report: Fp4Report,
    steps: Sequence[Step],
    peers: Sequence[Side],
    *,
    rounds: int = ROUNDS,
    seconds: float | None = None,
    save: Callable[[], None] = lambda: None,
) -> Iterator[Step]:
    """
    Measure `steps` and add what was found to `report`; yields each step once it is done.

    Args:
        report: What was found so far; its cases are not measured again.
        steps: What to measure.
        peers: Who takes part in the steps that are for them.
        rounds: Rounds of each case.
        seconds: No step begins when so many have passed since the first; None: all are measured.
        save: Keeps the report.

    Raises:
        NoDevice: There is no Hopper.
    """
    require_hopper()
    if report.launching:
        reason = f"its first launch took {LAUNCH_S:.0f} s, or broke the device"
        report.absent[report.launching] = reason
    sides = [side for side in (*OURS, *peers) if side.name not in report.absent]
    report.notes.update({side.name: side.note for side in sides if side.note})
    report.conditions.update(
        {**conditions(), **versions(DISTRIBUTIONS), **gpu.conditions()}, rounds=str(rounds)
    )
    report.copy_rate = report.copy_rate or copy_rate()
    end = math.inf if seconds is None else time.monotonic() + seconds
    done = {each.case for each in report.found}
    weights: Weights | None = None
    for step in steps:
        if step.case in done:
            continue
        if time.monotonic() > end:
            break
        sizes = (step.case.groups, step.case.n, step.case.k)
        if weights is None or weights.sizes != sizes:
            weights = None  # those of the last size go before others come
            torch.cuda.empty_cache()
            weights = Weights.random(*sizes, _DEVICE)
        names = {peer.name for peer in peers}
        here = [side for side in sides if step.has_peers or side.name not in names]
        report.found.append(_measured(report, step.case, weights, here, rounds, save))
        yield step
    report.conditions["warm"] = gpu.words([state for state in (gpu.look(),) if state])


def _measured(
    report: Fp4Report,
    case: Case,
    weights: Weights,
    sides: Sequence[Side],
    rounds: int,
    save: Callable[[], None],
) -> Found:
    """Return the times of all sides whose result is right."""
    tokens = Tokens(case, _DEVICE)
    batches: dict[str, Batch] = {}
    checked: dict[str, tuple[Ready, float]] = {}
    missing: dict[str, str] = {}
    for side in sides:

        def add(side: Side = side) -> None:
            ready = side.prepare(weights, tokens)
            batch = Batch.capture(ready.calls)
            ready.out.fill_(float("nan"))
            batch.replay()
            checked[side.name] = ready, ready.check()
            batches[side.name] = batch

        with watched(report, side.name, save):
            attempt(side.name, add, missing)
    repetitions = 1 if tokens.is_long else _REPETITIONS
    times = compete_in_batches(list(batches.values()), rounds=rounds, repetitions=repetitions)
    timed = {
        name: Timed(times=each, num_bytes=ready.num_bytes, error=error, kernel=ready.kernel)
        for (name, (ready, error)), each in zip(checked.items(), times, strict=True)
    }
    return Found(case=case, sides=timed, missing=missing)
