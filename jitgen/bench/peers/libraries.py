# SPDX-License-Identifier: Apache-2.0
"""Grouped products of libraries that have one function for them: cuBLASLt, torch and FlashInfer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, imported, require
from jitgen.bench.runner import Ready
from jitgen.config import Layout, ScaleGranularity
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.formats.protocol import Index, ceil_div

_ROWS = 16
"""
cuBLASLt has its fast kernels for multiples of this number of rows of a; groups are padded to it.
"""

_ALLOWANCE = 4.0
"""
Factor of the allowed error: torch's fast accumulation keeps the few bits of the tensor core's
accumulators over the whole of K.
"""

_GRAIN, _PAIR_ROWS = 4, 256
"""
FlashInfer: the number of rows of a group must be a multiple of the first; from the second on, two
SMs compute a tile together.
"""


class CublasLt(Peer):
    """
    `torch.nn.functional.scaled_mm` with scales of 1x128 and 128x128: the same numerics as jitgen.
    """

    name = "cublaslt"
    note = "one dense product for each group"
    function = "scaled_mm"

    def __init__(self) -> None:
        self._scaled_mm: Any = getattr(functional, "scaled_mm", None)
        self._recipes: Any = getattr(functional, "ScalingType", None)
        has_both = self._scaled_mm is not None and hasattr(self._recipes, "BlockWise1x128")
        require(has_both, "this torch has no scaled_mm with block scales")

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """Return a loop of one product for each group that has rows, each on a copy of its rows."""
        is_aligned = not workload.b_scale.shape[2] % 4
        require(is_aligned, "scaled_mm wants K of a multiple of 512 for scales of 128x128")
        operands = [_operands(workload, group, where) for group, where in workload.valid_rows()]
        results: list[Any] = []

        def call() -> None:
            results[:] = [
                self._scaled_mm(
                    a,
                    b,
                    a_scale,
                    self._recipes.BlockWise1x128,
                    b_scale,
                    self._recipes.BlockWise128x128,
                    output_dtype=workload.out.dtype,
                )
                for a, b, a_scale, b_scale in operands
            ]

        def check() -> None:
            for (_, where), result in zip(workload.valid_rows(), results, strict=True):
                valid = workload.out[where]
                valid.copy_(result[: len(valid)])
            workload.check("cublaslt")

        return Ready(calls=(call,), check=check)


def _operands(workload: Workload, group: int, where: Index) -> tuple[Tensor, ...]:
    """Return one group's a, b as (K, N), and their scales, outer dimension contiguous."""
    a = workload.a[where].view(torch.uint8)
    rows = ceil_div(len(a), _ROWS) * _ROWS
    padded = torch.zeros(rows, a.shape[1], dtype=torch.uint8, device=a.device)
    padded[: len(a)] = a
    scale = torch.ones(workload.b_scale.shape[2], rows, device=a.device)
    scale[:, : len(a)] = workload.a_scale[where].T
    return (
        padded.view(torch.float8_e4m3fn),
        workload.b[group].T,
        scale.T,
        workload.b_scale[group].T,
    )


class TorchGrouped(Peer):
    """
    `torch._scaled_grouped_mm` with its fast accumulation.

    It has one scale for each row instead of one for each 128 values of K: the numerics differ, and
    there is less work.
    """

    name = "torch_grouped"
    note = "row-wise scales: other numerics, less work"
    function = "_scaled_grouped_mm"
    has_same_numerics = False
    has_masked = False

    def __init__(self) -> None:
        require(hasattr(torch, self.function), f"this torch has no {self.function}")

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """Return the product of the same operands with random scales for rows."""
        problem, device = workload.problem, workload.a.device
        by_row = replace(
            workload,
            problem=replace(problem, scale_granularity=ScaleGranularity.ROW),
            a_scale=torch.rand(len(workload.a), device=device) + 0.5,
            b_scale=torch.rand(problem.groups, problem.n, device=device) + 0.5,
        )
        offs = torch.tensor(ends_of_groups(workload), dtype=torch.int32, device=device)
        b = workload.b.transpose(1, 2)
        results: list[torch.Tensor] = []

        def call() -> None:
            results[:] = [
                torch._scaled_grouped_mm(
                    workload.a,
                    b,
                    by_row.a_scale,
                    by_row.b_scale,
                    offs=offs,
                    out_dtype=workload.out.dtype,
                    use_fast_accum=True,
                )
            ]

        def check() -> None:
            product = replace(by_row, out=results[0])
            product.check("torch._scaled_grouped_mm", allowance=_ALLOWANCE)

        return Ready(calls=(call,), check=check)


class FlashInfer(Peer):
    """`flashinfer.gemm.group_gemm_fp8_nt_groupwise`, for Blackwell: the same numerics as jitgen."""

    name = "flashinfer"
    note = f"two SMs a tile from {_PAIR_ROWS} rows a group on"
    function = "group_gemm_fp8_nt_groupwise"
    has_masked = False

    def __init__(self) -> None:
        module = imported("flashinfer.gemm", "flashinfer")
        self._function: Any = getattr(module, self.function, None)
        require(self._function is not None, f"this flashinfer has no {self.function}")
        is_blackwell = torch.cuda.get_device_capability()[0] == 10
        require(is_blackwell, f"{self.function} is for Blackwell alone")

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """
        Return the call, with copies of the scales in which neighbours along M, or along N for b,
        are adjacent.
        """
        problem = workload.problem
        has_blocks = not problem.n % SCALE_BLOCK and not problem.k % SCALE_BLOCK
        require(has_blocks, f"{self.function} wants N and K of multiples of 128")
        ends = [0, *ends_of_groups(workload)]
        is_aligned = not any(end % _GRAIN for end in ends)
        require(
            is_aligned, f"{self.function} wants groups that start at multiples of {_GRAIN} rows"
        )
        call = partial(
            self._function,
            workload.a,
            workload.b,
            workload.a_scale.T.contiguous(),
            workload.b_scale.transpose(1, 2).contiguous(),
            torch.tensor(ends, dtype=torch.int32, device=workload.a.device),
            scale_granularity_mnk=(1, SCALE_BLOCK, SCALE_BLOCK),
            scale_major_mode="MN",
            mma_sm=2 if expected_m >= _PAIR_ROWS else 1,
            out=workload.out,
            out_dtype=workload.out.dtype,
        )
        return Ready(calls=(call,), check=partial(workload.check, self.name))


def ends_of_groups(workload: Workload) -> list[int]:
    """Return where groups end in a; padding counts to the group before it."""
    if workload.problem.layout is Layout.RAGGED:
        return list(accumulate(workload.row_counts))
    padded = (ceil_div(count, GROUP_ALIGNMENT) * GROUP_ALIGNMENT for count in workload.row_counts)
    return list(accumulate(padded))
