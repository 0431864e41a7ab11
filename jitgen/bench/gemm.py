# SPDX-License-Identifier: Apache-2.0
"""
Device time of GPU kernels, by CUDA events, on the expert layers of DeepSeek-V3.

Before every repetition 256 MiB are read, so that no operand is left in L2 (read, not written: lines
that have to be written back would slow the kernel that follows). That also gives the host the time
to enqueue the kernel behind its event. Where DeepGEMM is installed it runs the same operands in
turn; its time is a row of its own, never a budget.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import jitgen
from jitgen.bench.protocol import NoDevice, Row, Times
from jitgen.bench.sample import Sample
from jitgen.select import default_arch

FLUSH_BYTES = 256 * 2**20
_REPETITIONS = 20
_WARMUP = 3
_PEER = "m_grouped_fp8_gemm_nt_contiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sizes of one measurement; `rows` is rows in each group."""

    groups: int
    rows: int
    n: int
    k: int

    @property
    def flop(self) -> int:
        """Floating point operations of the product."""
        return 2 * self.groups * self.rows * self.n * self.k

    def __str__(self) -> str:
        """Return the sizes as the table shows them."""
        return f"{self.groups} x ({self.rows} x {self.n} x {self.k})"


CASES = tuple(
    Case(groups=groups, rows=rows, n=n, k=k)
    for groups, rows in ((8, 128), (8, 1024), (8, 4096), (32, 64), (32, 512))
    for n, k in ((4096, 7168), (7168, 2048))
)


def rows() -> Iterator[Row]:
    """
    Yield the rate of every case, and the peer's where there is one.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
        WrongResult: A kernel computes something wrong.
    """
    if not (torch.cuda.is_available() and default_arch().is_gpu):
        raise NoDevice("the gemm suite needs a GPU that jitgen has kernels for")
    for case in CASES:
        sample = Sample.random(case.groups, case.rows, case.n, case.k, device="cuda")
        sample.call(jitgen.grouped_gemm)
        sample.check(f"the kernel for {case}")
        functions: dict[str, Callable[[], object]] = {
            "jitgen": lambda sample=sample: sample.call(jitgen.grouped_gemm),  # type: ignore[misc]
        }
        if (peer := _peer(sample, case)) is not None:
            functions["deep_gemm"] = peer
        for name, times in zip(functions, compete(list(functions.values())), strict=True):
            yield _row(name, case, times)


def _row(name: str, case: Case, times: Times) -> Row:
    return Row(
        suite="gemm",
        what=f"{name}: {case}",
        value=case.flop / times.median * 1e-12,
        unit="TFLOP/s",
        is_rate=True,
        detail=f"{times.median * 1e6:.1f} us; {times.detail(1e6, 'us')}",
    )


def compete(functions: Sequence[Callable[[], object]]) -> list[Times]:
    """Time what `functions` launch, in turn, with nothing in L2; returns seconds of each."""
    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    events: list[list[tuple[Any, Any]]] = [[] for _ in functions]
    for repetition in range(_WARMUP + _REPETITIONS):
        for function, found in zip(functions, events, strict=True):
            start, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
            flush.max()
            start.record()
            function()
            end.record()
            if repetition >= _WARMUP:
                found.append((start, end))
    torch.cuda.synchronize()
    return [
        Times(seconds=tuple(start.elapsed_time(end) * 1e-3 for start, end in found))
        for found in events
    ]


def _peer(sample: Sample, case: Case) -> Callable[[], object] | None:
    """Return DeepGEMM's kernel on the same operands once its result is right; None without it."""
    try:
        function = getattr(importlib.import_module("deep_gemm"), _PEER, None)
    except ImportError:
        return None
    if function is None or case.rows % 128:
        return None  # its groups start at multiples of 128 rows
    groups = torch.arange(case.groups, dtype=torch.int32, device="cuda")
    m_indices = groups.repeat_interleave(case.rows)

    def call() -> None:
        function((sample.a, sample.a_scale), (sample.b, sample.b_scale), sample.out, m_indices)

    call()
    sample.check(f"deep_gemm for {case}")
    return call
