# SPDX-License-Identifier: Apache-2.0
"""
Kernels of one problem compared on this machine's device: all are checked first, then timed in turn.

They run in a separate process, because an unfinished kernel may crash, hang or write to the wrong
memory. Then only that process is lost, and this one reports the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, ClassVar

import jitgen
from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.process import Lost, Refused, Worker
from jitgen.autotune.trials import Trials
from jitgen.bench.protocol import Record
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError, JitgenError
from jitgen.plans.plan import Plan
from jitgen.runtime.session import current
from jitgen.runtime.spec import KernelSpec
from jitgen.selection import device
from jitgen.selection.device import gpu_at_hand
from jitgen.selection.record import problem_json
from jitgen.settings import settings
from jitgen.support.frozen import frozen

TRIALS = "jitgen.bench.kernel_trials:KernelTrials"
"""The class whose methods run in the process."""

_START_S = 120.0
"""
Seconds that the process may take in addition, to import torch, initialise a GPU and compile kernels
that cannot be cached.
"""

PROBLEMS = {
    "grouped_gemm": ("4:128:512:512", "8:4096:4096:7168"),
    "moe_fc2_dense": ("8:16:512:256", "32:16:7168:256"),
    "activation_quantize": ("4:128:512", "8:4096:2048"),
    "quantize": ("4:128:512", "8:4096:7168"),
}
"""Sizes that kernels of an operation are timed with by default: on a CPU, and on a GPU."""


@frozen
class Contender:
    """
    A kernel to be tried.

    Attributes:
        title: The title in results: the kernel's name, or a file.
        spec: The kernel.
    """

    title: str
    spec: KernelSpec


@frozen
class Checked(Record):
    """
    Whether a kernel is right.

    Attributes:
        title: Title of the kernel.
        rows: A row for each run of the kernel, two for each problem; see `KernelTrials.check`.
        error: Why checks are missing or incomplete; empty if all of them ran.
    """

    JSON: ClassVar[str] = "title right=is_right rows error"

    title: str
    rows: tuple[dict[str, Any], ...] = ()
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether all checks ran and every value is right."""
        return not self.error and all(row["right"] for row in self.rows)


@frozen
class Tried:
    """
    Result of checking and timing the kernels.

    Attributes:
        checks: The check of each kernel in the order of the kernels, up to the first wrong one.
        times: What `KernelTrials.time` returned; nothing where a kernel is wrong, or could not be
            timed.
        error: Why kernels could not be timed although they are right.
    """

    checks: tuple[Checked, ...]
    times: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every kernel was checked and is right, and the kernels could be timed."""
        return not self.error and all(each.is_right for each in self.checks)


def obstacle(arch: Arch) -> str:
    """Return why kernels for `arch` cannot be run on this machine; empty if they can."""
    if not arch.is_gpu or device.gpu_at_hand(arch):
        return ""
    return f"no GPU for {arch} is here"


def usual_problem(spec: KernelSpec) -> str:
    """
    Return the problem with which kernels of this operation are timed; empty: the first problem that
    has all edges.
    """
    return PROBLEMS.get(spec.config.op, ("", ""))[spec.arch.is_gpu]


def parse_problem(text: str, spec: KernelSpec) -> None:
    """
    Check that `text` contains sizes of the operation.

    Raises:
        ConfigError: It does not, or the operation has no samples.
    """
    from jitgen.verify.verification import sizes_of

    sizes_of(text, spec.config)


def together(contenders: Sequence[Contender]) -> None:
    """
    Check that kernels can be compared: they compute the same and have the same target.

    Raises:
        ConfigError: They do not.
    """
    first = contenders[0]
    for other in contenders[1:]:
        if _call_of(other.spec) != _call_of(first.spec):
            raise ConfigError(
                f"{other.title} and {first.title} do not compute the same on the same target: "
                f"{other.spec.name} and {first.spec.name} differ in more than how"
            )


def _call_of(spec: KernelSpec) -> tuple[Any, ...]:
    """Return the properties of a kernel's calls; kernels with equal ones can be called alike."""
    config = spec.config.to_json()
    how = ("tile", "cluster", "pipeline", "schedule", "tiling")
    return spec.arch, {name: value for name, value in config.items() if name not in how}


def missing(contenders: Sequence[Contender]) -> Contender | None:
    """Return the first kernel that is not compiled, if compiling is off; else None."""
    if settings.on_miss != "error":
        return None
    store = current.get().store
    return next((each for each in contenders if store.read(each.spec.key) is None), None)


def attempt(
    contenders: Sequence[Contender],
    problem: str,
    *,
    time_limit_s: float,
    has_edges: bool = False,
) -> Tried:
    """
    Run kernels of one problem, compare their results, and time them in turn if all are right.

    Args:
        contenders: The kernels, which `together` has checked.
        problem: Sizes, as the operation spells them.
        time_limit_s: Seconds that one kernel may take to be checked, and to be timed.
        has_edges: Whether the first kernel is checked with sizes of every edge, too.

    Raises:
        JitgenError: The process cannot be started.
    """
    first = contenders[0].spec
    store = current.get().store
    environment = {
        "JITGEN_CACHE_DIR": str(store.root.absolute()),
        "JITGEN_CACHE": store.mode,
        "JITGEN_ON_MISS": "compile",
    }
    checks: list[Checked] = []
    with Worker(TRIALS, environment) as worker:
        try:
            config = first.config.to_json()
            worker.ask("open", config, str(first.arch), timeout_s=_START_S + time_limit_s)
        except (Lost, Refused) as error:
            raise JitgenError(f"kernels cannot be run here: {error}") from None
        for number, each in enumerate(contenders):
            problems = ["", problem] if has_edges and not number else [problem]
            checks.append(_checked(worker, each, problems, time_limit_s))
            if not checks[-1].is_right:
                return Tried(checks=tuple(checks))
        titles = [each.title for each in contenders]
        try:
            times = worker.ask("time", titles, problem, timeout_s=time_limit_s * len(titles))
        except (Lost, Refused) as error:
            return Tried(checks=tuple(checks), error=f"they cannot be timed: {error}")
    return Tried(checks=tuple(checks), times=times)


def _checked(
    worker: Worker, each: Contender, problems: Sequence[str], time_limit_s: float
) -> Checked:
    rows: list[dict[str, Any]] = []
    config, text = each.spec.config.to_json(), each.spec.text
    try:
        worker.ask("load", each.title, config, text, timeout_s=_START_S + time_limit_s)
        for problem in problems:
            rows += worker.ask("check", each.title, problem, timeout_s=time_limit_s)
    except (Lost, Refused) as error:
        return Checked(title=each.title, rows=tuple(rows), error=str(error))
    return Checked(title=each.title, rows=tuple(rows))


@frozen
class Measured(Record):
    """
    The time of the kernel for one problem of a plan.

    Attributes:
        problem: The problem that represents its bucket.
        kernel: Name of the kernel that the selector chooses.
        calls: Number of times it is called; 0 where the plan does not count.
        time_us: Microseconds of one call of the kernel.
        predicted_us: The microseconds that the model predicts.
    """

    problem: Any
    kernel: str
    calls: float
    time_us: float
    predicted_us: float

    @property
    def total(self) -> float:
        """Seconds of all calls that the plan counts."""
        return self.calls * self.time_us * 1e-6


def measurable(plan: Plan, arch: Arch) -> tuple[list[GroupedGemmProblem], list[Problem]]:
    """
    Return the problems of `plan` that can be timed, those with most calls first, and the other
    problems.
    """
    every = list(plan.problems(arch))
    return (
        [each for each in every if isinstance(each, GroupedGemmProblem)],
        [each for each in every if not isinstance(each, GroupedGemmProblem)],
    )


def measure(plan: Plan, problems: list[GroupedGemmProblem], arch: Arch) -> Iterator[Measured]:
    """
    Yield the time of each of `problems`, which belong to `plan`.

    Raises:
        NoDevice: This machine has no device for the target.
        WrongResult: A kernel gives a wrong result; each is checked before it is timed.
        JitgenError: A kernel can neither be loaded nor compiled.
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
            time_us=time_us,
            predicted_us=choice.candidates[0].cost,
        )
