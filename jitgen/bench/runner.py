# SPDX-License-Identifier: Apache-2.0
"""
The runner: every side of a case is checked first, then all sides are timed in turn, in one process.

On a GPU each launch, or graph of launches, begins with an empty L2. `Contest` does this for one
case of any suite. `KernelSuite` is a suite in which each case is one operation and each figure is a
row: a rate, a time, or the ratio of two sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import jitgen
from jitgen.autotune.measure.clock import (
    Batch,
    Call,
    compete,
    compete_in_batches,
    has_gpu,
    require_gpu,
)
from jitgen.autotune.measure.times import Times
from jitgen.bench import gpu
from jitgen.bench.protocol import Row, conditions
from jitgen.bench.report import OURS, Report
from jitgen.config import Arch
from jitgen.selection.device import covered
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import target

ROUNDS = 7
"""Rounds of a case of grouped GEMMs."""

_DEVICE = "cuda"
_COPY_BYTES = 2 * 2**30

Tolerated = type[Exception] | tuple[type[Exception], ...]

NEEDED: Tolerated = ()
"""Tolerated errors of a side whose failure ends the suite: none."""

COPY, EAGER, INDUCTOR = "copy", "torch", "inductor"


@frozen
class Ready:
    """
    A side with the operands of a case.

    Attributes:
        calls: Functions that enqueue the work, each on separate operands, without waiting for the
            device.
        check: Returns the error of a result; raises WrongResult. With `out` it checks what the
            first call wrote there, otherwise it makes a call itself.
        out: The tensor that the first call writes, or a function that returns it; it is filled with
            NaN before the call. None if calls return new tensors.
        kernel: Name of the kernel, if jitgen's selector chose one.
        num_bytes: Bytes of operands, scales and results, each counted once; 0 if the case has this
            number.
        padding: Functions that enqueue the conversion of operands to the form that a call reads, if
            a caller has to do this for each call.
        note: Caveat about the side in this case, for readers.
    """

    calls: tuple[Call, ...]
    check: Callable[[], Any]
    out: Any = None
    kernel: str = ""
    num_bytes: int = 0
    padding: tuple[Call, ...] = ()
    note: str = ""


@dataclass(slots=True, kw_only=True)
class Contest:
    """
    The sides of one case.

    Attributes:
        on_gpu: Whether calls enqueue work on a GPU.
        in_graphs: Whether the calls of a side are captured in one CUDA graph; otherwise only the
            first call is timed.
        batches: The calls of each side with a right result.
        ready: The same sides, by name, with all of their properties.
        errors: The errors that their checks returned.
        missing: The other sides, each with the reason.
    """

    on_gpu: bool = True
    in_graphs: bool = True
    batches: dict[str, Batch] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    errors: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(
        self,
        name: str,
        prepare: Callable[[], Ready],
        *,
        tolerated: Tolerated = Exception,
        watch: AbstractContextManager[Any] | None = None,
    ) -> bool:
        """
        Add a side if its result is right, and return whether it is.

        Code of other libraries and kernels under test may raise any error; the side is then left
        out, with the error as reason.

        Args:
            name: Name of the side in tables.
            prepare: Returns the side with its operands.
            tolerated: The errors that leave the side out; any other error ends the suite.
            watch: A context manager for the side's first calls.
        """

        def check() -> None:
            ready = prepare()
            batch = self.batch(ready.calls)
            if ready.out is not None:
                out = ready.out() if callable(ready.out) else ready.out
                out.fill_(float("nan"))
                batch.replay()
            self.errors[name] = ready.check()
            self.batches[name], self.ready[name] = batch, ready

        with watch or nullcontext():
            return attempt(name, check, self.missing, tolerated)

    def batch(self, calls: Sequence[Call]) -> Batch:
        """
        Return `calls` as one timed batch: captured in a CUDA graph, or without graphs the first one
        alone.
        """
        if self.in_graphs and self.on_gpu:
            return Batch.capture(calls)
        return Batch(calls=tuple(calls), replay=calls[0])

    def times(self, *, rounds: int = 5, repetitions: int = 9) -> dict[str, Times]:
        """
        Time all sides in turn; on a GPU each launch, or graph of launches, begins with an empty L2.
        """
        found = self.timed(list(self.batches.values()), rounds, repetitions)
        return dict(zip(self.batches, found, strict=True))

    def timed(self, batches: Sequence[Batch], rounds: int, repetitions: int) -> list[Times]:
        """Return the times of `batches`, which take turns."""
        if not batches:
            return []
        if self.in_graphs and self.on_gpu:
            return compete_in_batches(batches, rounds=rounds, repetitions=repetitions)
        calls = [each.replay for each in batches]
        return compete(calls, rounds=rounds, repetitions=repetitions, on_gpu=self.on_gpu)


def device() -> str:
    """Return the device of operands in suites of one GPU, by torch's name."""
    return _DEVICE


def begin(report: Report, distributions: Sequence[str] = ()) -> None:
    """Record in `report` the conditions of its figures, and the rate of a copy."""
    report.conditions.update({**conditions(distributions), **gpu.conditions()})
    report.copy_rate = report.copy_rate or copy_rate()


def copy_rate() -> float:
    """Return the bytes a second of a large copy within the device's memory, read and written."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)
    (times,) = compete([partial(target.copy_, source)], rounds=ROUNDS, on_gpu=True)
    return 2 * _COPY_BYTES / times.median


def of_every_device(arch: Arch, names: Callable[[], Iterable[str]]) -> list[str]:
    """
    Return the kernels that `names` returns for every known device of `arch`, or only for the device
    in JITGEN_DEVICE. Prewarming needs them all if the GPU is not yet known.
    """
    found: dict[str, None] = {}
    for each in target(arch).devices:
        if each.name in covered(arch):
            with jitgen.Session(device=each.name):
                found |= dict.fromkeys(names())
    return sorted(found)


def attempt(
    name: str, step: Call, missing: dict[str, str], tolerated: Tolerated = Exception
) -> bool:
    """
    Call `step` and return whether it succeeded; if it raised a `tolerated` error, add the reason to
    `missing`.
    """
    try:
        step()
    except tolerated as error:  # others' code may raise anything
        text = " ".join(str(error).split())
        missing[name] = f"{type(error).__name__}: {text[:300]}"
        return False
    return True


@frozen
class Side:
    """
    One way to compute a case of a `KernelSuite`.

    Attributes:
        name: Its name in tables.
        prepare: Returns the side with its operands.
        tolerated: Errors that leave the side out; any other error ends the suite.
        has_notes: Whether the detail of its row names the sides that were left out.
    """

    name: str
    prepare: Callable[[], Ready]
    tolerated: Tolerated = Exception
    has_notes: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        call: Call,
        check: Callable[[Any], object],
        *,
        kernel: str = "",
        tolerated: Tolerated = Exception,
        has_notes: bool = False,
    ) -> Side:
        """Return a side with a single call, whose result `check` looks at."""
        ready = Ready(calls=(call,), check=lambda: check(call()), kernel=kernel)
        return cls(name=name, prepare=lambda: ready, tolerated=tolerated, has_notes=has_notes)


def copy_side(num_bytes: float, device: str, *, count: int = 1, has_notes: bool = False) -> Side:
    """
    Return a side of copies, whose rate is the highest possible. `num_bytes` counts reads and writes
    together.
    """

    def call() -> Call:
        size = max(1, int(num_bytes) // 2)
        source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
        return partial(target.copy_, source)

    ready = Ready(calls=tuple(call() for _ in range(count)), check=lambda: None)
    return Side(name=COPY, prepare=lambda: ready, has_notes=has_notes)


def device_of(arch: Arch) -> str:
    """Return the device of operands for kernels of a target, by torch's name."""
    return "cuda" if arch.is_gpu else "cpu"


@frozen
class Ratio:
    """
    Speed of one side of a case relative to another.

    Attributes:
        what: Description of the ratio.
        fast: The side whose time is the divisor.
        slow: The side whose time is divided by it.
        budget: The smallest allowed ratio; None if there is no budget.
        detail: Further text for the row.
    """

    what: str
    fast: str
    slow: str
    budget: float | None = None
    detail: str = ""

    @classmethod
    def of_rates(cls, fast: str, slow: str, budget: float) -> Ratio:
        """Return the ratio of the rates of two sides with the same number of bytes."""
        what = f"rate of {fast} over that of {slow}"
        return cls(what=what, fast=fast, slow=slow, budget=budget)


@frozen
class KernelCase:
    """
    One measurement of a `KernelSuite`.

    Attributes:
        name: Its name in tables.
        problem: The problem for which a kernel is chosen.
        sides: Yields the ways to compute it on the device of a target, in the order of the rows.
        budgets: The smallest allowed ratio of jitgen's rate to that of another side, by the side's
            name.
        ratios: Further ratios. A ratio with a side that was left out is also left out.
        flop: Number of operations; 0 if bytes are counted instead.
    """

    name: str
    problem: Any
    sides: Callable[[Arch], Iterable[Side]]
    budgets: Mapping[str, float] = field(default_factory=dict)
    ratios: tuple[Ratio, ...] = ()
    flop: float = 0.0

    def __str__(self) -> str:
        """Return the case's name."""
        return self.name

    @property
    def amount(self) -> float:
        """Number of operations, or of bytes that must be read and written, each counted once."""
        return self.flop or float(self.problem.traffic_bytes)


@frozen
class KernelSuite:
    """
    A suite of single operations on the GPU, or on the CPU if there is no GPU.

    Attributes:
        name: The word of the command line.
        cases: Yields the cases to measure on a device of a target.
        unit: Unit of the figures of sides: ``GB/s``, ``TFLOP/s``, or ``us``; that of ratios is
            ``x``.
        in_graphs: Whether a side has several calls, captured in a CUDA graph.
        rounds: Rounds in which each side has its turn.
        repetitions: Launches in a turn; its figure is their median.
        needs_gpu: What needs a GPU, for the message without one; empty: the suite also runs on a
            CPU.
    """

    name: str
    cases: Callable[[Arch], Iterable[KernelCase]]
    unit: str = "GB/s"
    in_graphs: bool = False
    rounds: int = 5
    repetitions: int = 9
    needs_gpu: str = ""

    def rows(self) -> Iterator[Row]:
        """
        Yield for each case a figure of every side, and their ratios.

        Raises:
            NoDevice: The suite needs a GPU, and there is none that jitgen has kernels for.
            WrongResult: A kernel computes something wrong.
        """
        if self.needs_gpu:
            require_gpu(self.needs_gpu)
        arch = default_arch() if has_gpu() else Arch.CPU
        for case in self.cases(arch):
            yield from self.measured(case, arch)
            if arch.is_gpu:
                torch.cuda.empty_cache()

    def measured(self, case: KernelCase, arch: Arch) -> Iterator[Row]:
        """Yield the rows of one case; raises as `rows`."""
        contest = Contest(on_gpu=arch.is_gpu, in_graphs=self.in_graphs)
        sides = list(case.sides(arch))
        for side in sides:
            contest.add(side.name, side.prepare, tolerated=side.tolerated)
        times = contest.times(rounds=self.rounds, repetitions=self.repetitions)
        is_rate = self.unit != "us"
        notes = [f"without {name}: {reason}" for name, reason in contest.missing.items()]
        for side in sides:
            if side.name in times:
                kernel = contest.ready[side.name].kernel
                more = [kernel, *(notes if side.has_notes and is_rate else [])]
                yield self._row(case, side.name, times[side.name], more)
        for name, reason in {} if is_rate else contest.missing.items():
            yield Row(suite=self.name, what=f"{name}: {case}", value=0.0, unit="us", detail=reason)
        yield from self.compared(case, times)

    def compared(self, case: KernelCase, times: Mapping[str, Times]) -> Iterator[Row]:
        """Yield the ratios of the sides of a case."""
        budgets = (Ratio.of_rates(OURS, other, least) for other, least in case.budgets.items())
        for ratio in (*budgets, *case.ratios):
            if {ratio.fast, ratio.slow} <= times.keys():
                yield Row(
                    suite=self.name,
                    what=f"{ratio.what}: {case}",
                    value=times[ratio.slow].median / times[ratio.fast].median,
                    unit="x",
                    budget=ratio.budget,
                    is_rate=True,
                    detail=ratio.detail,
                )

    def _row(self, case: KernelCase, name: str, times: Times, more: Sequence[str]) -> Row:
        """Return the figure of a side: a rate with its time, or a time with its rate."""
        rate, us = case.amount / times.median, times.median * 1e6
        value, words = {
            "GB/s": (rate * 1e-9, f"{us:.2f} us; {case.amount / 1e6:.3f} MB"),
            "TFLOP/s": (rate * 1e-12, f"{us:.1f} us"),
            "us": (us, f"{rate * 1e-9:.0f} GB/s"),
        }[self.unit]
        if self.unit == "us" and case.flop:
            words = f"{rate * 1e-12:.0f} TFLOPS"
        detail = (words, times.detail(1e6, "us"), *more)
        return Row(
            suite=self.name,
            what=f"{name}: {case}",
            value=value,
            unit=self.unit,
            is_rate=self.unit != "us",
            detail="; ".join(word for word in detail if word),
        )
