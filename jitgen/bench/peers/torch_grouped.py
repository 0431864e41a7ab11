# SPDX-License-Identifier: Apache-2.0
"""torch's grouped FP8 product: other numerics, one scale for each row instead of each 128 of K."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch

from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, Prepared, Unavailable
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.formats.protocol import ceil_div

_ALLOWANCE = 4.0
"""Fast accumulation keeps the tensor core's few bits over all of K."""


class TorchGrouped(Peer):
    """`torch._scaled_grouped_mm` with its fast accumulation."""

    name = "torch_grouped"
    note = "row-wise scales: other numerics, less work"
    has_same_numerics = False

    def __init__(self) -> None:
        if not hasattr(torch, "_scaled_grouped_mm"):
            raise Unavailable("this torch has no _scaled_grouped_mm")

    def prepare(self, workload: Workload, expected_m: int) -> Prepared:  # noqa: ARG002
        """Return the product of the same operands with random scales for rows."""
        problem = workload.problem
        if problem.layout is Layout.MASKED:
            raise Unavailable("_scaled_grouped_mm has no masked layout")
        if problem.a_dtype is not DType.E4M3 or problem.out_dtype is not DType.BF16:
            raise Unavailable("_scaled_grouped_mm takes FP8 operands and gives bfloat16")
        device = workload.a.device
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

        return Prepared(call=call, check=check)


def ends_of_groups(workload: Workload) -> list[int]:
    """Return where groups end in a; padding counts to the group before it."""
    if workload.problem.layout is Layout.RAGGED:
        return list(accumulate(workload.row_counts))
    padded = (ceil_div(count, GROUP_ALIGNMENT) * GROUP_ALIGNMENT for count in workload.row_counts)
    return list(accumulate(padded))
