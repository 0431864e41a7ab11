# SPDX-License-Identifier: Apache-2.0
"""Checks every candidate of a case, then times all of them in turn."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from jitgen.autotune.measure.clock import Call, require_gpu
from jitgen.autotune.measure.workload import Workload
from jitgen.autotune.trials import Proof
from jitgen.autotune.turns import in_turn
from jitgen.bench import gpu
from jitgen.bench.cases import only
from jitgen.bench.choice import NAME, recorded
from jitgen.bench.choice.cases import DRAWN, FAMILIES, Case, kernels_of, recorded_cases
from jitgen.bench.choice.report import ChoiceReport, Measured
from jitgen.bench.protocol import conditions
from jitgen.bench.runner import attempt, device_of
from jitgen.bench.suite import Given, Suite
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import ConfigError
from jitgen.targets.devices import default_arch

LOOP_S, ROUNDS = 0.06, 3
"""
Seconds of a prefill loop, and rounds of memory-bound calls: fewer than in tuning, because there are
many problems.
"""


def run(
    report: ChoiceReport,
    cases: Sequence[Case],
    *,
    seconds: float | None,
    save: Callable[[], None],
) -> Iterator[Case]:
    """
    Measure the `cases` that `report` lacks, add each to it, and yield it.

    Args:
        report: Measurements so far; new ones are added.
        cases: Cases to measure.
        seconds: No case begins after this many seconds; None: all cases are measured.
        save: Called after every case.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
    """
    require_gpu(f"the {NAME} suite")
    arch, start = default_arch(), time.perf_counter()
    report.conditions.update({**conditions(), **gpu.conditions()})
    done = {each.case for each in report.found}
    for case in cases:
        if seconds is not None and time.perf_counter() - start > seconds:
            return
        if case in done:
            continue
        report.failed.pop(str(case), None)  # of a run before
        attempt(str(case), partial(_add, report, case, arch), report.failed)
        save()
        yield case


def _add(report: ChoiceReport, case: Case, arch: Arch) -> None:
    report.found.append(measure(case, arch))


def measure(case: Case, arch: Arch, configs: Sequence[GroupedGemmConfig] | None = None) -> Measured:
    """
    Return the times of `configs` for `case`; None: of every candidate.

    Raises:
        WrongResult: A candidate gives a wrong result; no candidate is timed then.
        JitgenError: A candidate can neither be loaded nor compiled.
    """
    gc.collect()  # operands of the case before: half of a GPU's memory
    if arch.is_gpu:
        torch.cuda.empty_cache()
    start = time.perf_counter()
    configs = kernels_of([case], arch) if configs is None else configs
    workload = Workload.random(case.asked, case.row_counts, device=device_of(arch))
    proof = Proof(workload)
    for config in configs:
        proof.verify(partial(_call, workload, config))
    del proof  # and its reference

    def calls(operands: Workload) -> list[Call]:
        return [partial(_call, operands, config) for config in configs]

    found = in_turn(calls, workload, on_gpu=arch.is_gpu, loop_s=LOOP_S, rounds=ROUNDS)
    names = [config.name(arch) for config in configs]
    times = {name: round(each * 1e6, 3) for name, each in zip(names, found, strict=True)}
    return Measured(case=case, times_us=times, took_s=round(time.perf_counter() - start, 2))


def _call(operands: Workload, config: GroupedGemmConfig) -> object:
    return operands.call(config=config)


def _steps(given: Given) -> list[Case]:
    """
    Return the cases that options ask for.

    Raises:
        ConfigError: Options do not go together, a file holds no routings, or no case is left.
    """
    family, routings = given["family"], given["routings"]
    if family in DRAWN:
        if routings is not None:
            raise ConfigError(f"--routings goes with --of {recorded.Recorded.KIND}")
        draw, usual = DRAWN[family]
        every = draw(given["count"] or usual, given["seed"])
    else:
        if given["seed"]:
            raise ConfigError(f"--seed draws cases, and --of {family} draws none")
        every = recorded_cases(recorded.load(routings or recorded.SHIPPED))[: given["count"]]
    return only(every, given["only"])


def _new(given: Given) -> ChoiceReport:
    """Return an empty report that says where routings come from."""
    report = ChoiceReport(family=given["family"], seed=given["seed"])
    if report.family not in DRAWN:
        path = given["routings"] or recorded.SHIPPED
        content = hashlib.sha256(repr(recorded.load(path)).encode()).hexdigest()
        report.conditions["routings"] = f"{path.name} {content[:12]}"
    return report


def _run(
    report: ChoiceReport, steps: Sequence[Case], given: Given, save: Callable[[], None]
) -> Iterator[Case]:
    seconds = None if given["minutes"] is None else given["minutes"] * 60
    yield from run(report, steps, seconds=seconds, save=save)


def _target(given: Given) -> Arch:
    return given["arch"] or default_arch()


SUITE = Suite(
    name=NAME,
    report=ChoiceReport,
    about="""
Every candidate is checked before all are timed in turn. The model alone is compared with the best,
and so is what a call gets, the shipped table included. What is saved are times: --from says what
today's selector would lose.
""",
    options=(
        *("of", "routings", "count", "seed", "only", "minutes", "save", "resume", "from"),
        *("kernels", "arch"),
    ),
    measuring=("minutes", "kernels"),
    refusal="--from measures nothing: it goes with --arch and --json",
    steps=_steps,
    run=_run,
    choices={"of": FAMILIES},
    new=_new,
    kernels=lambda steps, given: [
        config.name(_target(given)) for config in kernels_of(steps, _target(given))
    ],
    listing={"suite": NAME},
    judge=lambda report, given: report.judge(_target(given)),
)
