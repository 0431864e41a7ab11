# SPDX-License-Identifier: Apache-2.0
"""Every candidate of a case: checked, then timed in turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from jitgen.autotune.measure.clock import Call, require_gpu
from jitgen.autotune.measure.workload import Workload
from jitgen.autotune.trials import Proof
from jitgen.autotune.turns import in_turn
from jitgen.bench import gpu
from jitgen.bench.choice import NAME
from jitgen.bench.choice.cases import Case, kernels_of
from jitgen.bench.choice.report import ChoiceReport, Timed
from jitgen.bench.protocol import conditions
from jitgen.bench.sides import attempt
from jitgen.config import Arch
from jitgen.config.grouped_gemm import KernelConfig
from jitgen.targets.devices import default_arch

LOOP_S, ROUNDS = 0.06, 3
"""Of prefill, and of what waits for memory: less than tuning takes, for many problems."""


def run(
    report: ChoiceReport,
    cases: Sequence[Case],
    *,
    seconds: float | None,
    save: Callable[[], None],
) -> Iterator[Case]:
    """
    Measure those of `cases` that `report` does not have yet and add them to it; yields each.

    Args:
        report: What there is.
        cases: What is asked for.
        seconds: Begin no case after so many; None: measure all.
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
        report.failures.pop(str(case), None)  # of a run before
        attempt(str(case), partial(_add, report, case, arch), report.failures)
        save()
        yield case


def _add(report: ChoiceReport, case: Case, arch: Arch) -> None:
    report.found.append(measure(case, arch))


def measure(case: Case, arch: Arch) -> Timed:
    """
    Return the times of every candidate of `case`.

    Raises:
        WrongResult: One computes something wrong; nothing is timed then.
        JitgenError: One cannot be had.
    """
    device = "cuda" if arch.is_gpu else "cpu"
    gc.collect()  # operands of the case before: half of a GPU's memory
    if arch.is_gpu:
        torch.cuda.empty_cache()
    start = time.perf_counter()
    configs = kernels_of([case], arch)
    workload = Workload.random(case.asked, case.row_counts, device=device)
    proof = Proof(workload)
    for config in configs:
        proof.verify(partial(_call, workload, config))
    del proof  # and its reference

    def calls(operands: Workload) -> list[Call]:
        return [partial(_call, operands, config) for config in configs]

    found = in_turn(calls, workload, on_gpu=arch.is_gpu, loop_s=LOOP_S, rounds=ROUNDS)
    names = [config.name(arch) for config in configs]
    times = {name: round(each * 1e6, 3) for name, each in zip(names, found, strict=True)}
    return Timed(case=case, times_us=times, took_s=round(time.perf_counter() - start, 2))


def _call(operands: Workload, config: KernelConfig) -> object:
    return operands.call(config=config)
