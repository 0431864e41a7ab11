# SPDX-License-Identifier: Apache-2.0
"""
The run of the layer suite: every side of a case is checked, then all are timed in turn with a cold
L2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from jitgen.autotune.measure.clock import Batch, require_gpu
from jitgen.bench import runner
from jitgen.bench.layer import NAME, cases, ours, peers
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.operands import ADAPTERS, RANK, Experts, Operands, Ready
from jitgen.bench.layer.report import LayerReport, Measured
from jitgen.bench.peers import DISTRIBUTIONS
from jitgen.bench.report import OURS
from jitgen.bench.runner import Contest, begin, device, of_every_device
from jitgen.bench.suite import Given, Suite
from jitgen.errors import ConfigError
from jitgen.support.frozen import frozen

SIDES: dict[str, Callable[[Operands], Ready]] = {
    OURS: ours.prepare,
    ours.APART: ours.prepare_apart,
    ours.LATE: ours.prepare_late,
    ours.LORA: ours.prepare_lora,
    peers.INDUCTOR: peers.prepare_inductor,
    peers.MASKED: peers.prepare_masked,
    peers.CONTIGUOUS: peers.prepare_contiguous,
    peers.VLLM: peers.prepare_vllm,
}
"""Every side, jitgen's first."""

USUAL = tuple(side for side in SIDES if side != ours.LORA)
"""The sides that compute the same layer; the side with adapters computes a different one."""

_QUICK_S = 45.0

NOTES = {
    ours.APART: "pairs are sorted and their rows gathered by two launches, however few there are",
    ours.LATE: "no launch starts earlier than the selector has it, and no weights are loaded early",
    ours.LORA: f"with {ADAPTERS} adapters of rank {RANK}: each token has one of them",
    peers.INDUCTOR: peers.INDUCTOR_NOTE,
    peers.MASKED: peers.DEEP_GEMM_NOTE,
    peers.CONTIGUOUS: peers.DEEP_GEMM_NOTE,
    peers.VLLM: peers.VLLM_NOTE,
}


@frozen
class Method:
    """
    How cases are measured.

    Attributes:
        sides: Names of the sides, of `SIDES`.
        rounds: Rounds in which each side has its turn.
        repetitions: Replays in a turn; its figure is their median.
        seconds: No case begins after this many seconds; None: all cases are measured.
        has_steps: Whether jitgen's launches are also timed one by one.
    """

    sides: tuple[str, ...] = USUAL
    rounds: int = 5
    repetitions: int = 5
    seconds: float | None = None
    has_steps: bool = True


def run(
    report: LayerReport, steps: Sequence[Case], how: Method, save: Callable[[], None]
) -> Iterator[Case]:
    """
    Measure `steps` and add the results to `report`; yields each one once it is done. If there are
    none, nothing is done.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
    """
    if not steps:
        return
    require_gpu(f"the {NAME} suite")
    start = time.monotonic()
    begin(report, (*DISTRIBUTIONS, "vllm"))
    report.notes.update({side: note for side, note in NOTES.items() if side in how.sides})
    experts = Experts(steps[0], max(case.experts for case in steps), device())
    for case in steps:
        if how.seconds is not None and time.monotonic() - start > how.seconds:
            report.notes["not measured"] = f"{case} and what follows: out of time"
            break
        report.found.append(measured(Operands(case, experts, device()), how, report.copy_rate))
        torch.cuda.empty_cache()
        save()
        yield case


def measured(operands: Operands, how: Method, rate: float) -> Measured:
    """Check and time the sides of one case."""
    contest = Contest()
    for name in how.sides:
        contest.add(name, partial(_side, name, operands))
    times = contest.times(rounds=how.rounds, repetitions=how.repetitions)
    steps: dict[str, Batch] = {}
    if how.has_steps and OURS in contest.batches:
        calls = ours.steps(operands)
        if ours.LORA in how.sides:
            calls |= ours.steps_of_lora(operands)
        steps = {name: contest.batch([call]) for name, call in calls.items()}
    alone = contest.timed(list(steps.values()), how.rounds, how.repetitions)
    return Measured(
        case=operands.case,
        active=operands.active,
        floor_us=operands.active_bytes / rate * 1e6,
        times_us={name: each.median * 1e6 for name, each in times.items()},
        spreads={name: each.spread for name, each in times.items()},
        errors=contest.errors,
        steps_us={name: each.median * 1e6 for name, each in zip(steps, alone, strict=True)},
        missing=contest.missing,
        notes={name: ready.note for name, ready in contest.ready.items() if ready.note},
    )


def _side(name: str, operands: Operands) -> runner.Ready:
    """Return a side of `SIDES` with the operands of a case."""
    ready = SIDES[name](operands)
    return runner.Ready(
        calls=(ready.call,),
        check=lambda: operands.check(name, ready.result(), ready.weights, ready.adapters),
        out=ready.result,
        note=ready.note,
    )


def _steps(given: Given) -> list[Case]:
    """
    Return the cases that options ask for.

    Raises:
        ConfigError: There are fewer experts than a token has, or more than the router knows.
    """
    of = cases.ROUTED_OF if given["routed"] else 0
    usual = cases.ROUTED_EXPERTS if given["routed"] else cases.EXPERTS
    experts = given["experts"] or (cases.QUICK_EXPERTS if given["quick"] else usual)
    tokens = given["tokens"] or (cases.QUICK_TOKENS if given["quick"] else cases.TOKENS)
    if min(experts) < cases.TOP_K:
        raise ConfigError(f"--experts must be at least {cases.TOP_K}: a token has so many")
    if of and max(experts) > of:
        raise ConfigError(f"--experts must be at most {of} with --routed, which has so many")
    return list(cases.plan(experts, tokens, of))


def _run(
    report: LayerReport, steps: Sequence[Case], given: Given, save: Callable[[], None]
) -> Iterator[Case]:
    quick = tuple(side for side in USUAL if side != peers.INDUCTOR)
    how = Method(
        sides=given["sides"] or (quick if given["quick"] else USUAL),
        rounds=given["rounds"],
        seconds=given["seconds"] or (_QUICK_S if given["quick"] else None),
        has_steps=not given["no_steps"],
    )
    yield from run(report, steps, how, save)


SUITE = Suite(
    name=NAME,
    report=LayerReport,
    about=f"""
Every side is checked against float32 before it is timed, captured in a CUDA graph; L2 is cold; all
sides of a case take turns. Behind a time stands what it is of jitgen's, behind jitgen's what it is
of the floor: the weights of the experts that are chosen, at the rate of a copy. Exits 1 if a
target is missed or jitgen is left out. Sides: {", ".join(SIDES)}; {ours.LORA} only where it is
asked for. With --ranks the layer is that of docs/expert-parallel.md, on so many GPUs, or without
one in processes on the CPU.
""",
    options=(
        *("experts", "tokens", "ranks", "side", "routed", "quick", "rounds", "seconds", "no_steps"),
        *("save", "from", "kernels", "report"),
    ),
    measuring=("experts", "tokens", "ranks", "sides", "routed", "quick", "seconds"),
    steps=_steps,
    run=_run,
    choices={"side": SIDES},
    new=lambda _: LayerReport(),
    kernels=lambda steps, given: of_every_device(
        ours.ARCH,
        lambda: (
            name
            for case in steps
            for name in ours.kernel_names(case, has_lora=ours.LORA in (given["sides"] or ()))
        ),
    ),
)
