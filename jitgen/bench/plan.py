# SPDX-License-Identifier: Apache-2.0
"""
The kernels that are chosen for a plan's problems, timed on the device at hand, weighted by how
often each is called: where a service's time goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jitgen
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.trials import Trials
from jitgen.config import Arch
from jitgen.config.grouped_gemm import Problem
from jitgen.plans.plan import Plan
from jitgen.selection.device import gpu_at_hand
from jitgen.selection.record import problem_json
from jitgen.support.frozen import frozen


@frozen
class Measured:
    """
    A problem and its kernel.

    Attributes:
        problem: The problem that stands for its bucket.
        kernel: Name of the kernel that the selector chooses.
        calls: How often it is called; 0 where the plan does not count.
        seconds: One call of the kernel.
        predicted: What the model says of that.
    """

    problem: Any
    kernel: str
    calls: float
    seconds: float
    predicted: float

    @property
    def total(self) -> float:
        """Seconds of all calls."""
        return self.calls * self.seconds


def measurable(plan: Plan, arch: Arch) -> tuple[list[Problem], list[Any]]:
    """Return the problems of `plan` that can be timed, most calls first, and the others."""
    every = list(plan.problems(arch))
    return (
        [each for each in every if each.op == Problem.op],
        [each for each in every if each.op != Problem.op],
    )


def measure(plan: Plan, problems: list[Problem], arch: Arch) -> Iterator[Measured]:
    """
    Yield the time of each of `problems`, which are those of `plan`.

    Raises:
        NoDevice: The target is not here.
        WrongResult: A kernel computes something wrong; nothing is timed before it was checked.
        JitgenError: A kernel cannot be had.
    """
    if arch.is_gpu and not gpu_at_hand(arch):
        raise NoDevice(f"timing kernels for {arch} needs such a GPU, and none is here")
    calls, trials = plan.calls(arch), Trials()
    for problem in problems:
        choice = jitgen.select(problem, arch)
        name = choice.config.name(arch)
        trials.open(problem_json(problem), str(arch))
        trials.verify(name)
        (time_us,) = trials.time([name])
        yield Measured(
            problem=problem,
            kernel=name,
            calls=calls[problem],
            seconds=time_us * 1e-6,
            predicted=choice.candidates[0].cost * 1e-6,
        )
