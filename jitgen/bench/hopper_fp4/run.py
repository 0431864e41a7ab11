# SPDX-License-Identifier: Apache-2.0
"""
The run of the hopper-fp4 suite: every side of a case is checked, then all are timed in turn with a
cold L2.

A kernel that hangs would make the process hang. So a watch observes each first launch, and ends the
process with a traceback if it takes too long. The report on disk then names the side, and a resumed
run leaves it out.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from jitgen.autotune.measure.clock import has_gpu
from jitgen.autotune.measure.errors import NoDevice
from jitgen.bench import cases, gpu
from jitgen.bench.cases import Case, file_of
from jitgen.bench.hopper_fp4 import NAME
from jitgen.bench.hopper_fp4.formats import FORMATS
from jitgen.bench.hopper_fp4.operands import Tokens, Weights
from jitgen.bench.hopper_fp4.report import FP8, Fp4Report, Measured, SideTimes
from jitgen.bench.hopper_fp4.sides import ARCH, OURS, UNPACKED, UNPACKED_ROWS, Own, Side, kernels
from jitgen.bench.peers import prepacked
from jitgen.bench.peers.prepacked import DISTRIBUTIONS
from jitgen.bench.runner import ROUNDS, Contest, Ready, begin, device, of_every_device
from jitgen.bench.suite import Given, Suite
from jitgen.config import Arch, Layout
from jitgen.errors import ConfigError
from jitgen.formats.mx32 import VALUES
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch

LAUNCH_S = 90.0
"""Most seconds until a side's first result; some compile for a minute."""

PUBLIC = file_of(NAME)
LEFT_OUT = "the file of cases leaves peers out of this one"
"""The reason given for a peer that was to be measured but takes no part in a case."""

_PEERS = "peers"
_REPETITIONS = 3


@frozen
class Step:
    """
    A case, and whether peers take part in it.

    Attributes:
        case: The sizes; the layout is ragged.
        has_peers: Whether peers take part in it, if the run has any: some compile for each new
            size, which takes longer than timing all of jitgen's sides.
    """

    case: Case
    has_peers: bool = False

    def __post_init__(self) -> None:
        if self.case.layout is not Layout.RAGGED:
            raise ConfigError(f"layout must be ragged in this suite (got {self.case.layout})")
        if self.case.k % VALUES:
            raise ConfigError(f"k must be a multiple of {VALUES}, as MXFP4's (got {self.case.k})")

    def __str__(self) -> str:
        """Return the text that ``--only`` is compared with: ``ragged 32 x 8 N4096 K7168``."""
        return str(self.case)


def load(path: Path = PUBLIC) -> tuple[Step, ...]:
    """
    Return the cases of a file in its order; raises as `jitgen.bench.cases.load`.

    By default peers take part in every case of a file. In the public file, which has many cases,
    they only take part in those that say so.
    """
    return cases.load(path, partial(_step, has_peers=path != PUBLIC))


def _step(document: object, *, has_peers: bool) -> Step:
    """
    Return the step of a case; `has_peers` holds if the document does not say whether peers take
    part.
    """
    if not isinstance(document, dict):
        return Step(case=Case.from_json(document))
    sizes = dict(document)
    has_peers = sizes.pop(_PEERS, has_peers)
    if not isinstance(has_peers, bool):
        raise ConfigError(f"{_PEERS} must be true or false (got {has_peers!r})")
    return Step(case=Case.from_json(sizes), has_peers=has_peers)


@contextmanager
def watched(report: Fp4Report, save: Callable[[], None], name: str) -> Iterator[None]:
    """
    Keep a side's name in the report on disk during its first launch, and end the process if this
    hangs.

    The name also stays after a fault of the device, after which every launch fails.
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
    Check that there is a Hopper GPU.

    Raises:
        NoDevice: This machine has no Hopper GPU.
    """
    if not has_gpu() or default_arch() is not Arch.SM_90A:
        raise NoDevice(f"the {NAME} suite needs a Hopper GPU")


@frozen
class Method:
    """
    How a run measures.

    Attributes:
        rounds: Rounds of each case.
        seconds: No case begins after this many seconds; None: all cases are measured.
        candidates: Whether every other candidate kernel is timed, too.
        formats: Whether weights in other formats than MXFP4 take part.
    """

    rounds: int = ROUNDS
    seconds: float | None = None
    candidates: bool = False
    formats: bool = False


def run(
    report: Fp4Report,
    steps: Sequence[Step],
    peers: Sequence[Side],
    how: Method,
    save: Callable[[], None],
) -> Iterator[Step]:
    """
    Measure `steps` and add the results to `report`; yields each step once it is done.

    Args:
        report: The results so far; their cases are not measured again.
        steps: Steps to measure.
        peers: The peers, which take part in steps with `has_peers`.
        how: How to measure.
        save: Called to keep the report.

    Raises:
        NoDevice: This machine has no Hopper GPU.
    """
    require_hopper()
    if report.launching:
        reason = f"its first launch took {LAUNCH_S:.0f} s, or broke the device"
        report.absent[report.launching] = reason
    every = (*OURS, *UNPACKED, *(FORMATS if how.formats else ()), *peers)
    sides = [side for side in every if side.name not in report.absent]
    report.notes.update({side.name: side.note for side in sides if side.note})
    begin(report, DISTRIBUTIONS)
    report.conditions["rounds"] = str(how.rounds)
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
            weights = None  # free the last size before the next one is made
            torch.cuda.empty_cache()
            weights = Weights.random(*sizes, device())
        others = () if step.has_peers else peers
        few = UNPACKED if step.case.rows_per_group < UNPACKED_ROWS else ()
        not_here = {side.name for side in (*others, *few)}
        here = [side for side in sides if side.name not in not_here]
        tokens = Tokens(step.case, device())
        watch = partial(watched, report, save)
        measured = _measured(report, watch, weights, tokens, here, how)
        unasked = {side.name: LEFT_OUT for side in others if side.name not in report.absent}
        report.found.append(replace(measured, missing={**measured.missing, **unasked}))
        yield step
    report.conditions["warm"] = gpu.words([state for state in (gpu.look(),) if state])


def _measured(
    report: Fp4Report,
    watch: Callable[[str], AbstractContextManager[None]],
    weights: Weights,
    tokens: Tokens,
    sides: Sequence[Side],
    how: Method,
) -> Measured:
    """Return the times of all sides with a right result; a watch observes each first launch."""
    contest = Contest()
    others: dict[str, tuple[str, str]] = {}  # of another kernel's entry: its side, and itself

    def add(name: str, prepare: Callable[[], Ready]) -> None:
        if name not in report.absent:
            contest.add(name, prepare, watch=watch(name))

    for side in sides:
        add(side.name, partial(side.prepare, weights, tokens))
        is_wanted = how.candidates and not tokens.is_long and side.name != FP8
        if is_wanted and isinstance(side, Own) and side.name in contest.batches:
            for kernel, other in side.others(weights, tokens).items():
                others[f"{side.name} {kernel}"] = side.name, kernel
                add(f"{side.name} {kernel}", other)
    times = contest.times(rounds=how.rounds, repetitions=1 if tokens.is_long else _REPETITIONS)
    candidates: dict[str, dict[str, float]] = {}
    timed: dict[str, SideTimes] = {}
    for name, each in times.items():
        ready = contest.ready[name]
        if name in others:
            side_name, kernel = others[name]
            candidates.setdefault(side_name, {})[kernel] = each.median
        else:
            timed[name] = SideTimes(
                times=each,
                num_bytes=ready.num_bytes,
                error=contest.errors[name],
                kernel=ready.kernel,
            )
    return Measured(case=tokens.case, sides=timed, missing=contest.missing, candidates=candidates)


def _run(
    report: Fp4Report, steps: Sequence[Step], given: Given, save: Callable[[], None]
) -> Iterator[Step]:
    require_hopper()
    found = prepacked.find_all(formats=given["formats"]) if given["use_peers"] else ([], {})
    peers, absent = found
    report.absent.update(absent)
    how = Method(**{name: given[name] for name in ("rounds", "seconds", "candidates", "formats")})
    yield from run(report, steps, peers, how, save)


def _kernels(steps: Sequence[Step], given: Given) -> list[str]:
    found = [step.case for step in steps]
    more = FORMATS if given["formats"] else ()
    return of_every_device(ARCH, lambda: kernels(found, all_of_them=given["candidates"], more=more))


SUITE = Suite(
    name=NAME,
    report=Fp4Report,
    about="""
Every result is checked against float32 before it is timed; L2 is cold; all sides of a case take
turns. Exits 1 if a target is missed. Cases are called for example "ragged 32 x 8 N4096 K7168".
""",
    options=(
        *("peers", "cases", "only", "rounds", "seconds", "candidates", "formats", "save", "resume"),
        *("from", "kernels", "report"),
    ),
    measuring=("use_peers", "cases_at", "only", "seconds"),
    steps=lambda given: cases.only(load(given["cases_at"] or PUBLIC), given["only"]),
    run=_run,
    rounds=ROUNDS,
    new=lambda _: Fp4Report(),
    kernels=_kernels,
)
