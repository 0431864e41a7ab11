# SPDX-License-Identifier: Apache-2.0
"""What the operations of the suite share: the sides of a case and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Call
from jitgen.bench.report import OURS
from jitgen.bench.runner import EAGER, INDUCTOR, Ratio, Ready, Side, copy_side, device_of
from jitgen.config import Arch
from jitgen.support.frozen import frozen

_CALLS = 8
"""Of a graph, each with operands of its own."""

_MOST_BYTES = 2 * 2**30
"""Of the operands of one side; a case of much more has fewer calls in a graph."""


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


@frozen
class Case:
    """
    One measurement; as a string, what tables call it.

    Attributes:
        problem: What is computed, which a kernel is chosen for.
        budgets: Our rate over that of another side, at least; by the side's name.
    """

    problem: Any = None
    budgets: Mapping[str, float] = field(default_factory=dict)

    @property
    def amount(self) -> int:
        """Bytes that have to cross memory, read and written, each once."""
        return int(self.problem.traffic_bytes)

    def kernel(self, arch: Arch) -> str:
        """Return the name of the kernel that serves it."""
        return str(jitgen.select(self.problem, arch).config.name(arch))

    def operands(self, device: str, seed: int) -> Operands:
        """Return a call with operands of its own, the same for the same `seed`."""
        raise NotImplementedError

    def sides(self, arch: Arch) -> Iterator[Side]:
        """Yield ours by every kernel that may be chosen, torch's, inductor's and a copy."""
        device = device_of(arch)
        count = max(1, min(_CALLS, _MOST_BYTES // self.amount)) if arch.is_gpu else 1
        every = [self.operands(device, seed) for seed in range(count)]
        first = every[0]
        ours = _side(every, [each.ours for each in every], self.kernel(arch))
        yield Side(name=OURS, prepare=ours, is_needed=True, has_notes=True)
        for other in first.others:
            name = f"{OURS} {other}"
            yield Side(name=name, prepare=_side(every, [each.others[other] for each in every]))
        for name, function in ((EAGER, first.plain), (INDUCTOR, compiled(first.plain))):
            calls = [partial(function, *each.arguments) for each in every]
            yield Side(name=name, prepare=_side(every, calls))
        yield copy_side(self.amount, device, count=count)

    def ratios(self, _: Arch) -> Iterator[Ratio]:
        """Yield the budgets."""
        for other, least in self.budgets.items():
            yield Ratio.of_rates(OURS, other, least)


def compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what inductor makes of `plain` for the sizes that it gets."""
    torch._dynamo.reset()
    return torch.compile(plain, dynamic=False)


def _side(
    every: Sequence[Operands], calls: Sequence[Call], kernel: str = ""
) -> Callable[[], Ready]:
    """Return what makes a side of calls, all of which are checked."""

    def check() -> None:
        for each, call in zip(every, calls, strict=True):
            each.check(call())

    return lambda: Ready(calls=tuple(calls), check=check, kernel=kernel)
