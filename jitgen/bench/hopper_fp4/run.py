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
from dataclasses import dataclass, field
from functools import partial

import torch

from jitgen.autotune.measure.clock import Batch, compete_in_batches, has_gpu
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.measure.times import Times
from jitgen.bench import gpu
from jitgen.bench.cases import Case
from jitgen.bench.hopper_fp4 import NAME
from jitgen.bench.hopper_fp4.cases import Step
from jitgen.bench.hopper_fp4.operands import Ready, Tokens, Weights
from jitgen.bench.hopper_fp4.report import FP8, Found, Fp4Report, Timed
from jitgen.bench.hopper_fp4.sides import OURS, UNPACKED, UNPACKED_ROWS, Own, Side
from jitgen.bench.peers import versions
from jitgen.bench.peers.mxfp4 import DISTRIBUTIONS
from jitgen.bench.protocol import conditions
from jitgen.bench.sides import attempt
from jitgen.bench.suite import ROUNDS, copy_rate
from jitgen.config import Arch
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

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


@frozen
class Method:
    """
    How a run measures.

    Attributes:
        rounds: Rounds of each case.
        seconds: No case begins when so many have passed since the first; None: all are measured.
        candidates: Whether every kernel that might be chosen is timed, too.
    """

    rounds: int = ROUNDS
    seconds: float | None = None
    candidates: bool = False


def run(
    report: Fp4Report,
    steps: Sequence[Step],
    peers: Sequence[Side],
    how: Method,
    save: Callable[[], None],
) -> Iterator[Step]:
    """
    Measure `steps` and add what was found to `report`; yields each step once it is done.

    Args:
        report: What was found so far; its cases are not measured again.
        steps: What to measure.
        peers: Who takes part in the steps that are for them.
        how: How to measure.
        save: Keeps the report.

    Raises:
        NoDevice: There is no Hopper.
    """
    require_hopper()
    if report.launching:
        reason = f"its first launch took {LAUNCH_S:.0f} s, or broke the device"
        report.absent[report.launching] = reason
    every = (*OURS, *UNPACKED, *peers)
    sides = [side for side in every if side.name not in report.absent]
    report.notes.update({side.name: side.note for side in sides if side.note})
    report.conditions.update(
        {**conditions(), **versions(DISTRIBUTIONS), **gpu.conditions()}, rounds=str(how.rounds)
    )
    report.copy_rate = report.copy_rate or copy_rate()
    end = math.inf if how.seconds is None else time.monotonic() + how.seconds
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
        others = () if step.has_peers else peers
        few = UNPACKED if step.case.rows_per_group < UNPACKED_ROWS else ()
        not_here = {side.name for side in (*others, *few)}
        here = [side for side in sides if side.name not in not_here]
        contest = _Contest(report=report, save=save)
        report.found.append(_measured(contest, step.case, weights, here, how))
        yield step
    report.conditions["warm"] = gpu.words([state for state in (gpu.look(),) if state])


@dataclass(slots=True, kw_only=True)
class _Contest:
    """
    Who takes part in a case, each found right.

    Attributes:
        report: Where the name of a side stands while it is launched.
        save: Keeps the report.
        checked: For each side, and each other kernel of it, its calls and its error.
        missing: Who does not, and why.
    """

    report: Fp4Report
    save: Callable[[], None]
    checked: dict[tuple[str, str], tuple[Ready, Batch, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, side: str, kernel: str, prepare: Callable[[], Ready]) -> None:
        """Let a side take part with a kernel, if its result is right."""
        name = f"{side} {kernel}".rstrip()
        if name in self.report.absent:
            return

        def check() -> None:
            ready = prepare()
            batch = Batch.capture(ready.calls)
            ready.out.fill_(float("nan"))
            batch.replay()
            self.checked[side, kernel] = ready, batch, ready.check()

        with watched(self.report, name, self.save):
            attempt(name, check, self.missing)

    def times(self, rounds: int, repetitions: int) -> dict[tuple[str, str], Times]:
        """Time all in turn."""
        batches = [batch for _, batch, _ in self.checked.values()]
        found = compete_in_batches(batches, rounds=rounds, repetitions=repetitions)
        return dict(zip(self.checked, found, strict=True))


def _measured(
    contest: _Contest, case: Case, weights: Weights, sides: Sequence[Side], how: Method
) -> Found:
    """Return the times of all sides whose result is right."""
    tokens = Tokens(case, _DEVICE)
    for side in sides:
        contest.add(side.name, "", partial(side.prepare, weights, tokens))
        is_wanted = how.candidates and not tokens.is_long and side.name != FP8
        if is_wanted and isinstance(side, Own) and (side.name, "") in contest.checked:
            for kernel, other in side.others(weights, tokens).items():
                contest.add(side.name, kernel, other)
    times = contest.times(how.rounds, 1 if tokens.is_long else _REPETITIONS)
    candidates: dict[str, dict[str, float]] = {}
    timed: dict[str, Timed] = {}
    for (name, kernel), each in times.items():
        ready, _, error = contest.checked[name, kernel]
        if kernel:
            candidates.setdefault(name, {})[kernel] = each.median
        else:
            timed[name] = Timed(
                times=each, num_bytes=ready.num_bytes, error=error, kernel=ready.kernel
            )
    return Found(case=case, sides=timed, missing=contest.missing, candidates=candidates)
