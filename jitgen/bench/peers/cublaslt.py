# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt's dense FP8 product with block scales, once for each group: the same numerics."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, Prepared, Unavailable
from jitgen.config import DType, ScaleGranularity
from jitgen.formats.protocol import ceil_div

_ROWS = 16
"""Rows of a at whose multiples the library has its fast kernels; groups are padded to it."""


class CublasLt(Peer):
    """`torch.nn.functional.scaled_mm` with scales of 1x128 and 128x128."""

    name = "cublaslt"
    note = "one dense product for each group"
    has_same_numerics = True

    def __init__(self) -> None:
        self._scaled_mm: Any = getattr(functional, "scaled_mm", None)
        self._recipes: Any = getattr(functional, "ScalingType", None)
        if self._scaled_mm is None or not hasattr(self._recipes, "BlockWise1x128"):
            raise Unavailable("this torch has no scaled_mm with block scales")

    def prepare(self, workload: Workload, expected_m: int) -> Prepared:  # noqa: ARG002
        """Return a loop over the groups that have rows; each group's rows are a copy of its own."""
        problem = workload.problem
        if problem.a_dtype is not DType.E4M3:
            raise Unavailable("scaled_mm takes FP8 operands")
        if problem.scale_granularity is not ScaleGranularity.BLOCK128:
            raise Unavailable("scaled_mm is called for block128 scales alone")
        if workload.b_scale.shape[2] % 4:
            raise Unavailable("scaled_mm wants K of a multiple of 512 for scales of 128x128")
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

        return Prepared(call=call, check=check)


def _operands(workload: Workload, group: int, where: Any) -> tuple[Any, ...]:
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
