# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's grouped FP8 product with block scales, for Blackwell: the same numerics."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, Prepared, Unavailable
from jitgen.bench.peers.torch_grouped import ends_of_groups
from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.config.config import SCALE_BLOCK

_NAME = "group_gemm_fp8_nt_groupwise"
_GRAIN = 4
"""Rows of which every group has a multiple."""

_PAIR_ROWS = 256
"""Rows of a group from which two SMs work on a tile together."""


class FlashInfer(Peer):
    """`flashinfer.gemm.group_gemm_fp8_nt_groupwise`."""

    name = "flashinfer"
    note = f"two SMs a tile from {_PAIR_ROWS} rows a group on"
    has_same_numerics = True

    def __init__(self) -> None:
        try:
            module = importlib.import_module("flashinfer.gemm")
        except ImportError as error:
            raise Unavailable(f"flashinfer cannot be imported: {error}") from None
        self._function: Any = getattr(module, _NAME, None)
        if self._function is None:
            raise Unavailable(f"this flashinfer has no {_NAME}")
        if torch.cuda.get_device_capability()[0] != 10:
            raise Unavailable(f"{_NAME} is for Blackwell alone")

    def prepare(self, workload: Workload, expected_m: int) -> Prepared:
        """Return the call with scales whose rows, and columns of b, are contiguous."""
        problem = workload.problem
        if problem.layout is Layout.MASKED:
            raise Unavailable(f"{_NAME} has no masked layout")
        if problem.a_dtype is not DType.E4M3:
            raise Unavailable(f"{_NAME} takes FP8 operands")
        has_blocks = problem.scale_granularity is ScaleGranularity.BLOCK128
        if not has_blocks or problem.n % SCALE_BLOCK or problem.k % SCALE_BLOCK:
            raise Unavailable(f"{_NAME} wants block128 scales, N and K of multiples of 128")
        ends = [0, *ends_of_groups(workload)]
        if any(end % _GRAIN for end in ends):
            raise Unavailable(f"{_NAME} wants groups that start at multiples of {_GRAIN} rows")
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
        return Prepared(call=call, check=partial(workload.check, self.name))
