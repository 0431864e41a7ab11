# SPDX-License-Identifier: Apache-2.0
"""
The steps of an MoE layer around its GEMMs, each beside torch and beside a copy of as many bytes.

Each module here is one operation: its function ``cases`` yields the cases to measure on a target. A
new operation is a new file, and nothing else.

On a GPU all sides of a case take turns, each as a CUDA graph of several calls whose operands share
no memory: they are cold, and no host is too slow. Kernels are those that the selector chooses.
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
"""Calls of a graph, each with operands of its own."""

_MOST_BYTES = 2 * 2**30
"""Most bytes of the operands of one side; a larger case has fewer calls in a graph."""


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
        others: Calls like `ours` with the other candidate kernels, by short name.
        kernel: The names of the kernels, where it is not the one for the case's problem.
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
        problem: What is computed; several are computed one after the other.
        operands: Returns a call with operands of its own, the same for the same seed, on a device.
        budgets: As those of every case.
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
    """Yield ours by every kernel that may be chosen, torch's, inductor's and a copy."""
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
    """Compile `plain` with inductor for the sizes of its first call."""
    torch._dynamo.reset()
    return torch.compile(plain, dynamic=False)


def _side(
    every: Sequence[Operands], calls: Sequence[Call], kernel: str = ""
) -> Callable[[], Ready]:
    """Return a function that makes a side of calls; the check covers all of them."""

    def check() -> None:
        for each, call in zip(every, calls, strict=True):
            each.check(call())

    return lambda: Ready(calls=tuple(calls), check=check, kernel=kernel)


def operations() -> tuple[str, ...]:
    """Return the modules that measure an operation, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def cases(arch: Arch) -> Iterator[KernelCase]:
    """Yield the cases of every operation for a device of `arch`."""
    for name in operations():
        yield from importlib.import_module(f"{__name__}.{name}").cases(arch)


SUITE = KernelSuite(name="glue", cases=cases, in_graphs=True)
rows = SUITE.rows
