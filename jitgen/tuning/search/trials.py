# SPDX-License-Identifier: Apache-2.0
"""What a worker process does with a problem: verify kernels, then time them in turn."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.tuning.measure.clock import Batch, Call, compete, compete_in_batches, sustain
from jitgen.tuning.measure.rotation import rotation
from jitgen.tuning.measure.workload import Workload
from jitgen.tuning.record import parse_problem

LONG_S = 5e-4
"""
Calls from here on are those of prefill, one behind the other for seconds, and a GPU that multiplies
for so long is at its power limit: they are timed like that.
"""

_CHUNK_BYTES = 2**28
"""Compared at a time: torch takes a byte more for each."""

SPREAD = 0.5
"""Rows of a group lie between this part less and this part more than their mean: as in routing."""


def row_counts(problem: Problem) -> tuple[int, ...]:
    """
    Return the rows of each group, the same for the same problem: together about as many as it has,
    spread around their mean; in the contiguous layout whole blocks of 128, or fewer rows alike.
    """
    groups, mean = problem.groups, problem.rows_per_group
    if problem.layout is not Layout.CONTIGUOUS:
        chance = random.Random(0)  # noqa: S311  # nobody has to be surprised
        parts = [chance.uniform(1 - SPREAD, 1 + SPREAD) for _ in range(groups)]
        share = groups * mean / sum(parts)  # few draws do not meet their mean, the bucket's rows
        return tuple(max(1, round(part * share)) for part in parts)
    if mean < GROUP_ALIGNMENT:
        return (mean,) * groups
    blocks = problem.m // GROUP_ALIGNMENT
    ends = [blocks * group // groups for group in range(groups + 1)]
    return tuple((ends[i + 1] - ends[i]) * GROUP_ALIGNMENT for i in range(groups))


class Trials:
    """
    The kernels of one problem at a time, on this process's device.

    Every method takes and returns JSON values, for its caller is another process.
    """

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._verified: Tensor | None = None
        self._configs: dict[str, KernelConfig] = {}  # launches are remembered by their identity
        self._arch = Arch.CPU

    def open(self, problem: dict[str, Any], arch: str) -> None:
        """Make the operands of `problem`, a `Problem` in JSON form, in place of earlier ones."""
        self._workload = self._verified = None
        self._arch = Arch.parse(arch)
        if self._arch.is_gpu:
            torch.cuda.empty_cache()
        sizes = parse_problem(problem)
        device = "cuda" if self._arch.is_gpu else "cpu"
        self._workload = Workload.random(sizes, row_counts(sizes), device=device)

    def verify(self, name: str) -> None:
        """
        Run kernel `name` and check its result.

        Raises:
            WrongResult: It is wrong.
            JitgenError: The kernel is not here, or refuses.
        """
        workload = self._opened()
        # What an earlier kernel left there must not pass for this one's result.
        workload.out.fill_(torch.nan)
        self._call(name, workload)()
        bits = workload.out.view(-1).view(torch.uint8)
        if self._verified is not None and _are_equal(bits, self._verified):
            return
        workload.check("its result")
        if self._verified is None:
            self._verified = bits.clone()

    def time(self, names: list[str]) -> list[float]:
        """
        Return the microseconds of each kernel, timed in turn.

        On a GPU each call of a batch has operands of its own: one launch behind each flush would
        favour kernels that stream past L2. Long calls are timed back to back instead.
        """
        calls = [self._call(name, self._opened()) for name in names]
        if not self._arch.is_gpu:
            return [each.median * 1e6 for each in compete(calls, on_gpu=False)]
        sets = rotation(self._opened())
        times = compete_in_batches(
            [Batch.capture([self._call(name, each) for each in sets]) for name in names]
        )
        if min(each.median for each in times) >= LONG_S:
            times = sustain(calls, seconds=0.2, rounds=2)
        return [each.median * 1e6 for each in times]

    def _call(self, name: str, workload: Workload) -> Call:
        if name not in self._configs:
            self._configs[name] = KernelConfig.parse(name)[0]
        config = self._configs[name]
        return lambda: workload.call(config=config)

    def _opened(self) -> Workload:
        if self._workload is None:
            raise RuntimeError("no problem is open")
        return self._workload


def _are_equal(one: Tensor, other: Tensor) -> bool:
    chunks = zip(torch.split(one, _CHUNK_BYTES), torch.split(other, _CHUNK_BYTES), strict=True)
    return all(torch.equal(*pair) for pair in chunks)
