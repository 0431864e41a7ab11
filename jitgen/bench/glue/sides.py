# SPDX-License-Identifier: Apache-2.0
"""What every operation of the suite shares: the sides of a case, checked, timed, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Batch, Call, compete, compete_in_batches
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row
from jitgen.bench.sides import attempt
from jitgen.config import Arch
from jitgen.support.frozen import frozen

COPY, OURS, EAGER, INDUCTOR = "copy", "jitgen", "torch", "inductor"

SUITE = "glue"
_CALLS = 8
"""Of a graph, each with operands of its own."""

_MOST_BYTES = 2 * 2**30
"""Of the operands of one side; a case of much more has fewer calls in a graph."""

_ROUNDS, _REPETITIONS = 5, 9


@frozen
class Operands:
    """
    One call of a case, on operands that no other has.

    Attributes:
        ours: Makes it, and returns the results.
        plain: What a model does without us, in torch: it takes `arguments`, and inductor compiles
            it. No operation in it waits for the device.
        arguments: See there.
        check: Takes results of one or the other and raises a WrongResult.
        others: The same as `ours` by kernels that were not chosen, by what tells them apart.
    """

    ours: Callable[[], Any]
    plain: Callable[..., Any]
    arguments: tuple[Tensor, ...]
    check: Callable[[Any], None]
    others: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def others(problem: Any, ours: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Return the call `ours` by what else the selector may choose for `problem`."""
    found = jitgen.select(problem).candidates[1:]
    return {each.config.short: partial(ours, config=each.config) for each in found}


class Case(Protocol):
    """One measurement; as a string, what tables call it."""

    @property
    def num_bytes(self) -> int:
        """What has to cross memory, read and written, each once."""
        ...

    @property
    def budgets(self) -> Mapping[str, float]:
        """Our rate over that of another side, at least; by the side's name."""
        ...

    def kernel(self, arch: Arch) -> str:
        """Return the name of the kernel that serves it."""
        ...

    def operands(self, device: str, seed: int) -> Operands:
        """Return a call with operands of its own, the same for the same `seed`."""
        ...


def measured(case: Case, arch: Arch) -> Iterator[Row]:
    """
    Yield the rows of one case; sides that cannot take part are left out with their reasons.

    Raises:
        WrongResult: Our kernel computes something wrong.
    """
    device = "cuda" if arch.is_gpu else "cpu"
    count = max(1, min(_CALLS, _MOST_BYTES // case.num_bytes)) if arch.is_gpu else 1
    every = [case.operands(device, seed) for seed in range(count)]
    for each in every:
        each.check(each.ours())
    missing: dict[str, str] = {}
    calls = _sides(every, missing)
    calls[COPY] = [_copy(case.num_bytes, device) for _ in every]
    times = _timed(calls, arch, missing)
    if OURS not in times:
        raise WrongResult(f"jitgen's calls of {case} cannot be captured: {missing[OURS]}")
    notes = [f"without {name}: {reason}" for name, reason in missing.items()]
    for name, found in times.items():
        more = [case.kernel(arch), *notes] if name == OURS else []
        yield _rate(case, name, found, more)
    for name, budget in case.budgets.items():
        if name in times:
            yield Row(
                suite=SUITE,
                what=f"rate of {OURS} over that of {name}: {case}",
                value=times[name].median / times[OURS].median,
                unit="x",
                budget=budget,
                is_rate=True,
            )


def _sides(every: Sequence[Operands], missing: dict[str, str]) -> dict[str, list[Call]]:
    """Return the calls of each side, all of which gave right results."""
    calls: dict[str, list[Call]] = {OURS: [each.ours for each in every]}

    def add(name: str, found: list[Call]) -> None:
        for each, call in zip(every, found, strict=True):
            each.check(call())
        calls[name] = found

    for other in every[0].others:
        name = f"{OURS} {other}"
        attempt(name, partial(add, name, [each.others[other] for each in every]), missing)
    plain = every[0].plain
    for name, function in ((EAGER, plain), (INDUCTOR, compiled(plain))):
        attempt(
            name,
            partial(add, name, [partial(function, *each.arguments) for each in every]),
            missing,
        )
    return calls


def compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what inductor makes of `plain` for the sizes that it gets."""
    torch._dynamo.reset()
    return torch.compile(plain, dynamic=False)


def _copy(num_bytes: int, device: str) -> Call:
    source, target = (
        torch.empty(max(1, num_bytes // 2), dtype=torch.uint8, device=device) for _ in range(2)
    )
    return partial(target.copy_, source)


def _timed(calls: dict[str, list[Call]], arch: Arch, missing: dict[str, str]) -> dict[str, Times]:
    """Return the times of each side; what no graph can hold is left out."""
    if not arch.is_gpu:
        found = compete(
            [of_side[0] for of_side in calls.values()],
            rounds=_ROUNDS,
            repetitions=_REPETITIONS,
            on_gpu=False,
        )
        return dict(zip(calls, found, strict=True))
    batches: dict[str, Batch] = {}

    def add(name: str) -> None:
        batches[name] = Batch.capture(calls[name])

    for name in calls:
        attempt(name, partial(add, name), missing)
    found = compete_in_batches([*batches.values()], rounds=_ROUNDS, repetitions=_REPETITIONS)
    return dict(zip(batches, found, strict=True))


def _rate(case: Case, name: str, times: Times, more: list[str]) -> Row:
    size = case.num_bytes
    words = [f"{times.median * 1e6:.2f} us", f"{size / 1e6:.3f} MB", times.detail(1e6, "us")]
    return Row(
        suite=SUITE,
        what=f"{name}: {case}",
        value=size / times.median * 1e-9,
        unit="GB/s",
        is_rate=True,
        detail="; ".join([*words, *more]),
    )
