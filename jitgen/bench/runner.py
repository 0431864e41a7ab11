# SPDX-License-Identifier: Apache-2.0
"""
The runner: every side of a case is checked first, then all are timed in turn, in one process. On a
GPU each launch, or graph of launches, finds nothing in L2.

`Contest` is that for one case of any suite. `KernelSuite` is a suite whose cases are one operation
each and whose figures are rows: a rate, a time, or how one side compares with another.
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
"""Errors tolerated from a side whose failure ends the suite: none."""

COPY, EAGER, INDUCTOR = "copy", "torch", "inductor"


@frozen
class Ready:
    """
    A side with the operands of a case.

    Attributes:
        calls: Enqueue the work, each on operands of its own; none waits for the device.
        check: Returns the error of a result. Raises WrongResult. With `out` it looks at what the
            first of the last calls wrote there, else it makes a call itself.
        out: The tensor that the first call writes, or returns it; it is filled with NaN before.
            None where calls return new tensors.
        kernel: Name of the kernel, where jitgen's selector chose it.
        num_bytes: Operands, scales and results, each once; 0 where the case says it.
        padding: Enqueue what brings operands into the form that a call reads, where a caller would
            have to do so for each call.
        note: Caveat of the side in this case, for readers.
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
        in_graphs: Whether the calls of a side are captured in one CUDA graph; else only the first
            is timed.
        batches: For each side that is right, its calls.
        ready: The same sides with further facts.
        errors: What their checks returned.
        missing: The other sides, and why.
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
        Let a side take part if its result is right, and return whether it is.

        Others' code and kernels under test may raise anything: then the side is left out with its
        reason.

        Args:
            name: Its name in tables.
            prepare: Returns it.
            tolerated: What it may raise; anything else ends the suite.
            watch: Entered around its first calls.
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
        """Return the calls of one timed batch."""
        if self.in_graphs and self.on_gpu:
            return Batch.capture(calls)
        return Batch(calls=tuple(calls), replay=calls[0])

    def times(self, *, rounds: int = 5, repetitions: int = 9) -> dict[str, Times]:
        """Time all sides in turn; on a GPU each launch, or graph, finds nothing in L2."""
        found = self.timed(list(self.batches.values()), rounds, repetitions)
        return dict(zip(self.batches, found, strict=True))

    def timed(self, batches: Sequence[Batch], rounds: int, repetitions: int) -> list[Times]:
        """Time batches in turn."""
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
    Return the kernels that `names` returns as each device that `arch` knows chooses, or that of
    JITGEN_DEVICE alone: what to prewarm for a machine whose GPU is not known yet.
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
    """Do `step` and return whether it succeeded; if it raised a `tolerated` error, note why."""
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
        prepare: Returns it with its operands.
        tolerated: What may keep it from taking part; anything else ends the suite.
        has_notes: Whether the detail of its row says who was left out.
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
    Return copies of `num_bytes`, bytes read and written counted together: the highest rate
    possible.
    """

    def call() -> Call:
        size = max(1, int(num_bytes) // 2)
        source, target = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
        return partial(target.copy_, source)

    ready = Ready(calls=tuple(call() for _ in range(count)), check=lambda: None)
    return Side(name=COPY, prepare=lambda: ready, has_notes=has_notes)


def device_of(arch: Arch) -> str:
    """Return where operands for kernels of a target live, as torch calls it."""
    return "cuda" if arch.is_gpu else "cpu"


@frozen
class Ratio:
    """
    Speed of one side of a case relative to another.

    Attributes:
        what: In words.
        fast: The side whose time is divided by.
        slow: The other one.
        budget: The least; None where there is no budget.
        detail: What else there is to say.
    """

    what: str
    fast: str
    slow: str
    budget: float | None = None
    detail: str = ""

    @classmethod
    def of_rates(cls, fast: str, slow: str, budget: float) -> Ratio:
        """Return the ratio of the rates of two sides that move as many bytes."""
        what = f"rate of {fast} over that of {slow}"
        return cls(what=what, fast=fast, slow=slow, budget=budget)


@frozen
class KernelCase:
    """
    One measurement of a `KernelSuite`.

    Attributes:
        name: Its name in tables.
        problem: What is computed, which a kernel is chosen for.
        sides: Yields the ways to compute it on the device of a target, in the order of the rows.
        budgets: Our rate over that of another side, at least; by the side's name.
        ratios: What is compared besides. A ratio of a side that was left out is left out, too.
        flop: Operations, where the suite counts them.
    """

    name: str
    problem: Any
    sides: Callable[[Arch], Iterable[Side]]
    budgets: Mapping[str, float] = field(default_factory=dict)
    ratios: tuple[Ratio, ...] = ()
    flop: float = 0.0

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    @property
    def amount(self) -> float:
        """Operations, or bytes that have to cross memory, each once."""
        return self.flop or float(self.problem.traffic_bytes)


@frozen
class KernelSuite:
    """
    A suite of single operations on whatever device is there: a GPU, else this machine's CPU.

    Attributes:
        name: The word of the command line.
        cases: Yields the cases to measure on a device of a target.
        unit: Of the rows: ``GB/s``, ``TFLOP/s``, or ``us``.
        counts_flop: Whether the amount of a case are operations, not bytes.
        in_graphs: Whether a side has several calls, captured in a CUDA graph.
        rounds: Rounds in which each side has its turn.
        repetitions: Launches in a turn; its figure is their median.
        needs_gpu: What a message says that needs a GPU; empty: the suite runs on a CPU, too.
    """

    name: str
    cases: Callable[[Arch], Iterable[KernelCase]]
    unit: str = "GB/s"
    counts_flop: bool = False
    in_graphs: bool = False
    rounds: int = 5
    repetitions: int = 9
    needs_gpu: str = ""

    def rows(self) -> Iterator[Row]:
        """
        Yield for each case a figure of every side, and how they compare.

        Raises:
            NoDevice: There is no GPU that jitgen has kernels for, and the suite needs one.
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
        """Yield how the sides of a case compare."""
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
        if self.unit == "us" and self.counts_flop:
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
