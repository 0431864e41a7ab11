# SPDX-License-Identifier: Apache-2.0
"""What a worker process does with a problem: verify kernels, then time them in turn."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.layouts import GROUP_ALIGNMENT
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.tuning.choice import bucket
from jitgen.tuning.measure.clock import Call
from jitgen.tuning.measure.workload import Expected, Workload
from jitgen.tuning.record import parse_problem
from jitgen.tuning.search.turns import in_turn

_KEPT_BYTES = 2**32
"""References up to this size are kept for the next kernel: decoding weights takes the longest."""

_CHUNK_BYTES = 2**28
"""Compared at a time: torch takes a byte more for each."""

FEW_GROUPS, DRAWS = 16, 3
"""
So few groups are timed with several draws of their rows: which tile suits them best hangs on how
full the last wave happens to be, up to 19 % with eight groups.
"""

SPREAD = 0.5
"""Rows of a group lie between this part less and this part more than their mean: as in routing."""


def row_counts(problem: Problem, draw: int = 0) -> tuple[int, ...]:
    """
    Return the rows of each group, the same for the same problem and draw: together about as many as
    it has, spread around their mean.

    Rows of the contiguous layout are counted with their padding, half a block for each group: they
    are spread, and padded to about as many; of a single group the last block is more or less full.
    Where there are fewer blocks than groups, each block is of a group of its own, and half full.
    """
    groups, mean = problem.groups, float(problem.rows_per_group)
    chance = random.Random(draw)  # noqa: S311  # nobody has to be surprised
    parts = [chance.uniform(1 - SPREAD, 1 + SPREAD) for _ in range(groups)]
    if problem.layout is Layout.CONTIGUOUS:
        blocks = max(1, problem.m // GROUP_ALIGNMENT)
        if blocks < groups:
            ends = [blocks * group // groups for group in range(groups + 1)]
            parts = [part * (ends[i + 1] - ends[i]) for i, part in enumerate(parts)]
            return tuple(round(part * GROUP_ALIGNMENT / 2) for part in parts)
        if groups == 1:
            return (round((blocks - 1 + parts[0] / 2) * GROUP_ALIGNMENT),)
        mean -= GROUP_ALIGNMENT / 2
    share = groups * mean / sum(parts)  # few draws do not meet their mean, the bucket's rows
    return tuple(max(1, round(part * share)) for part in parts)


def draws(problem: Problem, arch: Arch) -> list[tuple[int, ...]]:
    """
    Return the rows of each group, for every draw that is timed.

    The bucket of the fewest rows also serves groups of one row each, which are timed besides: with
    8 rows a tall tile may be level, and with one, most of whose boxes lie beyond the end of a, it
    is 20 % slower.
    """
    count = DRAWS if problem.groups <= FEW_GROUPS else 1
    found = [row_counts(problem, draw) for draw in range(count)]
    if bucket(problem.with_mean(1), arch) == bucket(problem, arch):
        found.append((1,) * problem.groups)
    return list(dict.fromkeys(found))


class Proof:
    """What the results of one workload are held to."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._verified: Tensor | None = None
        self._expected: tuple[Expected, ...] | None = None

    def verify(self, call: Call) -> None:
        """
        Make `call` and check the result that it leaves.

        Raises:
            WrongResult: It is wrong.
            JitgenError: The kernel is not here, or refuses.
        """
        # What an earlier kernel left there must not pass for this one's result.
        self.workload.out.fill_(torch.nan)
        call()
        bits = self.workload.out.view(-1).view(torch.uint8)
        if self._verified is not None and _are_equal(bits, self._verified):
            return
        self.workload.check("its result", expected=self._reference())
        if self._verified is None:
            self._verified = bits.clone()

    def _reference(self) -> Iterable[Expected]:
        """Return what is right, which is found once unless it is too much to keep."""
        if self.workload.out.numel() * torch.float32.itemsize > _KEPT_BYTES:
            return self.workload.reference()
        if self._expected is None:
            self._expected = tuple(self.workload.reference())
        return self._expected


class Trials:
    """
    The kernels of one problem at a time, on this process's device.

    Every method takes and returns JSON values, for its caller is another process.
    """

    def __init__(self) -> None:
        self._proofs: list[Proof] = []
        self._configs: dict[str, KernelConfig] = {}  # launches are remembered by their identity
        self._arch = Arch.CPU

    def open(self, problem: dict[str, Any], arch: str) -> None:
        """Make the operands of `problem`, a `Problem` in JSON form, in place of earlier ones."""
        self._proofs.clear()
        self._arch = Arch.parse(arch)
        if self._arch.is_gpu:
            torch.cuda.empty_cache()
        sizes = parse_problem(problem)
        device = "cuda" if self._arch.is_gpu else "cpu"
        for counts in draws(sizes, self._arch):
            self._proofs.append(Proof(Workload.random(sizes, counts, device=device)))

    def verify(self, name: str) -> None:
        """
        Run kernel `name` and check its results.

        Raises:
            WrongResult: One is wrong.
            JitgenError: The kernel is not here, or refuses.
        """
        for proof in self._opened():
            proof.verify(self._call(name, proof.workload))

    def time(self, names: list[str]) -> list[float]:
        """
        Return the microseconds of each kernel, timed in turn: the mean of all draws.

        See `jitgen.tuning.search.turns`.
        """

        def calls(workload: Workload) -> list[Call]:
            return [self._call(name, workload) for name in names]

        on_gpu = self._arch.is_gpu
        found = [in_turn(calls, proof.workload, on_gpu=on_gpu) for proof in self._opened()]
        return [statistics.fmean(of_one) * 1e6 for of_one in zip(*found, strict=True)]

    def _call(self, name: str, workload: Workload) -> Call:
        if name not in self._configs:
            self._configs[name] = KernelConfig.parse(name)[0]
        config = self._configs[name]
        return lambda: workload.call(config=config)

    def _opened(self) -> list[Proof]:
        if not self._proofs:
            raise RuntimeError("no problem is open")
        return self._proofs


def _are_equal(one: Tensor, other: Tensor) -> bool:
    chunks = zip(torch.split(one, _CHUNK_BYTES), torch.split(other, _CHUNK_BYTES), strict=True)
    return all(torch.equal(*pair) for pair in chunks)
