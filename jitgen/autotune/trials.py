# SPDX-License-Identifier: Apache-2.0
"""The worker process of tuning: for one problem it verifies kernels, then times them in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call
from jitgen.autotune.measure.workload import Expected, Workload
from jitgen.autotune.row_distributions import row_distributions
from jitgen.autotune.turns import in_turn
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.selection.record import parse_problem

_KEPT_BYTES = 2**32
"""
References of at most this number of bytes are kept for the next kernel, because decoding the
weights takes longest.
"""

_CHUNK_BYTES = 2**28
"""Values compared at a time: torch needs one more byte for each."""


class Proof:
    """Checks the results of calls with the operands of one workload."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._verified: Tensor | None = None
        self._expected: tuple[Expected, ...] | None = None

    def verify(self, call: Call) -> None:
        """
        Run `call` and check its result.

        Raises:
            WrongResult: The result is wrong.
            JitgenError: The kernel is not compiled, or it refuses the call.
        """
        # The result of an earlier kernel must not pass for this one's.
        self.workload.out.fill_(torch.nan)
        call()
        bits = self.workload.out.view(-1).view(torch.uint8)
        if self._verified is not None and _are_equal(bits, self._verified):
            return
        self.workload.check("its result", expected=self._reference())
        if self._verified is None:
            self._verified = bits.clone()

    def _reference(self) -> Iterable[Expected]:
        """Return the reference, computed once unless it is too large to keep."""
        if self.workload.out.numel() * torch.float32.itemsize > _KEPT_BYTES:
            return self.workload.reference()
        if self._expected is None:
            self._expected = tuple(self.workload.reference())
        return self._expected


class Trials:
    """
    The kernels of one problem at a time, on this process's device.

    Every method takes and returns JSON values, because its caller is another process.
    """

    def __init__(self) -> None:
        self._proofs: list[Proof] = []
        # Launches are remembered by the identity of their config.
        self._configs: dict[str, GroupedGemmConfig] = {}
        self._arch = Arch.CPU

    def open(self, problem: dict[str, object], arch: str) -> None:
        """Make the operands of `problem`, a problem in JSON form, and drop earlier operands."""
        self._proofs.clear()
        self._arch = Arch.parse(arch)
        if self._arch.is_gpu:
            torch.cuda.empty_cache()
        sizes = cast("GroupedGemmProblem", parse_problem(problem))
        device = "cuda" if self._arch.is_gpu else "cpu"
        for counts in row_distributions(sizes, self._arch):
            self._proofs.append(Proof(Workload.random(sizes, counts, device=device)))

    def verify(self, name: str) -> None:
        """
        Run kernel `name` and check its results.

        Raises:
            WrongResult: A result is wrong.
            JitgenError: The kernel is not compiled, or it refuses the call.
        """
        for proof in self._opened():
            proof.verify(self._call(name, proof.workload))

    def time(self, names: list[str]) -> list[float]:
        """
        Return the microseconds of each kernel, timed in turn, over all row distributions: see
        `over_all`, and `jitgen.autotune.turns`.
        """

        def calls(workload: Workload) -> list[Call]:
            return [self._call(name, workload) for name in names]

        on_gpu = self._arch.is_gpu
        found = [in_turn(calls, proof.workload, on_gpu=on_gpu) for proof in self._opened()]
        return [each * 1e6 for each in over_all(found)]

    def _call(self, name: str, workload: Workload) -> Call:
        if name not in self._configs:
            self._configs[name] = GroupedGemmConfig.parse(name)[0]
        config = self._configs[name]
        return lambda: workload.call(config=config)

    def _opened(self) -> list[Proof]:
        if not self._proofs:
            raise RuntimeError("no problem is open")
        return self._proofs


def over_all(found: Sequence[Sequence[float]]) -> list[float]:
    """
    Return one time of each kernel from its times with each row distribution.

    It is the mean of the best times, longer by the root mean square of the parts by which the
    kernel is slower. So a kernel that is a little slower with each distribution is ahead of one
    that is the best with some and much slower with others: a call may have any of them.
    """
    best = [min(times) for times in found]
    behind = [
        [us / least - 1 for us, least in zip(of_one, best, strict=True)]
        for of_one in zip(*found, strict=True)
    ]
    lost = [math.sqrt(statistics.fmean(part**2 for part in parts)) for parts in behind]
    return [statistics.fmean(best) * (1 + each) for each in lost]


def _are_equal(one: Tensor, other: Tensor) -> bool:
    chunks = zip(torch.split(one, _CHUNK_BYTES), torch.split(other, _CHUNK_BYTES), strict=True)
    return all(torch.equal(*pair) for pair in chunks)
