# SPDX-License-Identifier: Apache-2.0
"""
The steps of an MoE layer around its GEMMs, each timed beside torch and beside a copy of the same
number of bytes.

Each module here is one operation: its function ``cases`` yields the cases to measure on a target. A
new operation only needs a new file.

On a GPU the sides of a case are timed in turn. Each side is a CUDA graph of several calls whose
operands share no memory. So operands are not in the cache, and the speed of the host does not
matter. The selector chooses the kernels.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.clock import Call
from jitgen.bench.report import OURS
from jitgen.bench.runner import (
    EAGER,
    INDUCTOR,
    NEEDED,
    KernelCase,
    KernelSuite,
    Ready,
    Side,
    copy_side,
    device_of,
)
from jitgen.config import Arch
from jitgen.support.frozen import frozen

_CALLS = 8
"""Number of calls in a graph, each with its own operands."""

_MOST_BYTES = 2 * 2**30
"""Most bytes of the operands of one side; larger cases have fewer calls in a graph."""


@frozen
class Operands:
    """
    One call of a case, with its own operands.

    Attributes:
        ours: Runs the call of jitgen, and returns the results.
        plain: The same computation in torch, as a model without jitgen has it: it takes
            `arguments`, and inductor compiles it. None of its operations waits for the device.
        arguments: The arguments of `plain`.
        check: Takes the results of `ours` or `plain`; raises a WrongResult if they are wrong.
        others: Calls like `ours` with the other candidate kernels, by short name.
        kernel: Names of the kernels; empty: that of the kernel for the case's problem.
    """

    ours: Callable[[], Any]
    plain: Callable[..., Any]
    arguments: tuple[Tensor, ...]
    check: Callable[[Any], None]
    others: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    kernel: str = ""


def others(problem: Any, ours: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Return the call `ours` with every other candidate kernel for `problem`, by name."""
    found = jitgen.select(problem).candidates[1:]
    return {each.config.short: partial(ours, config=each.config) for each in found}


def case(
    name: str,
    problem: Any,
    operands: Callable[[str, int], Operands],
    budgets: Mapping[str, float] | None = None,
) -> KernelCase:
    """
    Return a case of an operation.

    Args:
        name: Its name in tables.
        problem: The problem of the operation, or an object for several operations that run one
            after another, with the same attributes.
        operands: Takes a device and a seed; returns a call with new operands on that device, equal
            for equal seeds.
        budgets: For names of other sides, the least rate of jitgen divided by the rate of that
            side.
    """
    return KernelCase(
        name=name,
        problem=problem,
        sides=partial(_sides, problem, operands),
        budgets=budgets or {},
    )


def kernel_of(problem: Any, arch: Arch) -> str:
    """Return the name of the kernel that serves a problem."""
    return str(jitgen.select(problem, arch).config.name(arch))


def _sides(problem: Any, operands: Callable[[str, int], Operands], arch: Arch) -> Iterator[Side]:
    """Yield the sides: jitgen with every candidate kernel, torch, inductor, and a copy."""
    device, num_bytes = device_of(arch), problem.traffic_bytes
    count = max(1, min(_CALLS, int(_MOST_BYTES // num_bytes))) if arch.is_gpu else 1
    every = [operands(device, seed) for seed in range(count)]
    first = every[0]
    kernel = first.kernel or kernel_of(problem, arch)
    ours = _side(every, [each.ours for each in every], kernel)
    yield Side(name=OURS, prepare=ours, tolerated=NEEDED, has_notes=True)
    for other in first.others:
        calls = [each.others[other] for each in every]
        yield Side(name=f"{OURS} {other}", prepare=_side(every, calls))
    for name, function in ((EAGER, first.plain), (INDUCTOR, compiled(first.plain))):
        calls = [partial(function, *each.arguments) for each in every]
        yield Side(name=name, prepare=_side(every, calls))
    yield copy_side(num_bytes, device, count=count)


def compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return `plain` compiled by inductor for the sizes of its first call."""
    torch._dynamo.reset()
    return torch.compile(plain, dynamic=False)


def _side(
    every: Sequence[Operands], calls: Sequence[Call], kernel: str = ""
) -> Callable[[], Ready]:
    """Return a function that returns a side with these calls; its check covers all of them."""

    def check() -> None:
        for each, call in zip(every, calls, strict=True):
            each.check(call())

    return lambda: Ready(calls=tuple(calls), check=check, kernel=kernel)


def operations() -> tuple[str, ...]:
    """Return the names of the modules that measure an operation, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases of every operation for a device of `arch`."""
    for name in operations():
        yield from importlib.import_module(f"{__name__}.{name}").cases(arch)


SUITE = KernelSuite(name="glue", cases=cases, in_graphs=True)
rows = SUITE.rows
