# SPDX-License-Identifier: Apache-2.0
"""
Measures one problem after the other in a worker process, and starts a new process if this one is
lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self, cast

from jitgen.autotune.process import Lost, Refused, Stuck, Worker
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import JitgenError
from jitgen.selection.record import problem_json
from jitgen.support.frozen import frozen

TRIALS = "jitgen.autotune.trials:Trials"
"""The class whose methods run in worker processes."""

_START_S = 120.0
"""Seconds that a new process may take to start, to import torch and to initialise the GPU."""

_UNTRIED = frozenset({"KernelMiss", "ToolchainError", "CacheError"})
"""Errors that are not caused by a kernel, in addition to a shortage of resources."""

_UNFIT = frozenset({"InputError", "UnsupportedConfig"})
"""Errors of a correct kernel that does not support this problem."""


class NotMeasured(JitgenError):
    """A problem could not be measured, for a reason that is not the fault of one kernel."""


@frozen
class Measurements:
    """
    Results for one problem.

    Attributes:
        times_us: Microseconds of each kernel that is right, by name.
        faulty: Kernels that must not be chosen for any problem, with the reason: they failed, hung,
            or were wrong.
        unfit: Kernels that must not be chosen for this problem, with the reason: they refuse it.
        missing: Kernels that could not be tried, with the reason: they are not compiled, or a
            resource ran out.
    """

    times_us: dict[str, float]
    faulty: dict[str, str]
    unfit: dict[str, str]
    missing: dict[str, str]


class Bench:
    """
    Measures problems within a with block.

    Args:
        arch: The target of all kernels.
        environment: Variables that the worker process gets in addition to the environment of this
            process.
        time_limit_s: Limit in seconds for verifying one kernel, and for timing it.
    """

    def __init__(
        self,
        arch: Arch,
        *,
        environment: Mapping[str, str],
        time_limit_s: float,
    ) -> None:
        self._arch = arch
        self._environment = environment
        self._limit_s = time_limit_s
        self._stack = ExitStack()
        self._worker: Worker | None = None
        self._problem: dict[str, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def measure(self, problem: GroupedGemmProblem, names: list[str]) -> Measurements:
        """
        Verify every kernel of `names` (at least one) on `problem`, then time the right ones in
        turn. A kernel that fails in either step counts as faulty, unfit or missing, but only if
        other kernels are timed: if none works, the device is the cause and not the kernel.

        Raises:
            NotMeasured: No kernel could be timed.
            Stuck: A process cannot be ended, and the device cannot be used any more; the error
                names the kernels that hang, if they can be found.
        """
        self._open(problem_json(problem))
        found = Measurements(times_us={}, faulty={}, unfit={}, missing={})
        right = []
        for name in names:
            failure = self._failure("verify", name)
            if failure is None:
                right.append(name)
            else:
                _reasons(found, failure)[name] = str(failure)
        while right:
            times = self._times(right)
            if not isinstance(times, Exception):
                found.times_us.update(zip(right, times, strict=True))
                return found
            guilty = {name: e for name in right if (e := self._failure("time", [name]))}
            if not guilty:
                raise NotMeasured(f"timing all kernels in turn failed, each alone did not: {times}")
            for name, failure in guilty.items():
                _reasons(found, failure)[name] = str(failure)
            right = [name for name in right if name not in guilty]
        reasons = {**found.missing, **found.unfit, **found.faulty}
        name, reason = next(iter(reasons.items()))
        raise NotMeasured(f"no kernel works; {name}: {reason}")

    def _times(self, names: list[str]) -> list[float] | Lost | Refused:
        """
        Time kernels in turn and return their microseconds, or the failure; after a failure the next
        request gets a new process.

        Raises:
            Stuck: The process cannot be ended; the error names the kernels that hang, if timing
                each alone in another process shows them.
        """
        try:
            answer = self._answer("time", names, self._limit_s * len(names))
        except Stuck as error:
            self._end()
            error.kernels = self._hung(names)
            if not error.kernels:
                told = f"one of these kernels hangs, and which one is not known: {', '.join(names)}"
                raise Stuck(f"{error}; {told}") from None
            raise
        return cast("list[float] | Lost | Refused", answer)

    def _hung(self, names: list[str]) -> tuple[str, ...]:
        """
        Return those of `names` that hang when they are timed alone, or a single name at once; none
        if no other works, because then the device may be the cause.
        """
        if len(names) == 1:
            return tuple(names)
        found = []
        for name in names:
            try:
                failure = self._failure("time", [name])
            except Stuck:
                self._end()
                found.append(name)
            except NotMeasured:  # the device serves no other process
                return ()
            else:
                if isinstance(failure, Lost) and not failure.is_passing:
                    found.append(name)
        return tuple(found) if len(found) < len(names) else ()

    def _failure(self, method: str, argument: str | list[str]) -> Lost | Refused | None:
        """
        Send a request for one kernel and return the failure, if any; after a failure the next
        request gets a new process.
        """
        try:
            answer = self._answer(method, argument, self._limit_s)
        except Stuck as error:
            error.kernels = (argument,) if isinstance(argument, str) else tuple(argument)
            raise
        return answer if isinstance(answer, (Lost, Refused)) else None

    def _answer(self, method: str, argument: object, limit_s: float) -> object:
        """
        Send a request and return its result, or the failure, after which the next request gets a
        new process: after an illegal access every call of the old one fails.
        """
        try:
            return self._ask(method, argument, limit_s=limit_s)
        except (Lost, Refused) as error:
            self._end()
            return error

    def _ask(self, method: str, argument: object, *, limit_s: float) -> object:
        worker = self._worker or self._start()
        return worker.ask(method, argument, timeout_s=limit_s)

    def _open(self, problem: dict[str, object]) -> None:
        self._problem = problem
        if self._worker is not None:
            try:
                self._worker.ask("open", problem, str(self._arch), timeout_s=self._limit_s)
            except (Lost, Refused):
                self._end()  # an earlier problem may have broken the process: try once more

    def _start(self) -> Worker:
        """Return a new process, with the problem open in it."""
        worker = self._stack.enter_context(Worker(TRIALS, self._environment))
        self._worker = worker
        try:
            limit_s = _START_S + self._limit_s
            worker.ask("open", self._problem, str(self._arch), timeout_s=limit_s)
        except (Lost, Refused) as error:
            self._end()
            raise NotMeasured(f"its operands cannot be made: {error}") from None
        return worker

    def _end(self) -> None:
        self._worker = None
        self._stack.close()


def _reasons(found: Measurements, failure: Lost | Refused) -> dict[str, str]:
    """Return the dict that the reason of `failure` belongs to."""
    kind = failure.kind if isinstance(failure, Refused) else ""
    if kind in _UNTRIED or failure.is_passing:
        return found.missing
    return found.unfit if kind in _UNFIT else found.faulty
