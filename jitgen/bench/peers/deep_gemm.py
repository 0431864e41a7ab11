# SPDX-License-Identifier: Apache-2.0
"""
DeepGEMM: the same numerics as jitgen, for groups that start at multiples of 128 rows or are masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from jitgen.autotune.measure.workload import Workload
from jitgen.bench.peers import Peer, Unavailable, imported
from jitgen.bench.runner import Ready
from jitgen.config import Layout
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.quantize import kernel_layout

_CONTIGUOUS = ("m_grouped_fp8_gemm_nt_contiguous",)
_MASKED = ("m_grouped_fp8_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nt_masked")
"""The names of the masked call, in releases without and with FP4."""


class DeepGemm(Peer):
    """The module `deep_gemm`, which compiles a kernel at the first call with new sizes."""

    name = "deep_gemm"
    note = "on Blackwell with scales of powers of two, which it packs at every call"
    function = "deep_gemm"

    def __init__(self) -> None:
        self._module = imported("deep_gemm")

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """
        Return the grouped call of the workload's layout.

        A ragged workload whose groups are no multiples of 128 rows is padded to such multiples by
        `padding`, and computed as a contiguous one.
        """
        problem = workload.problem
        if _wants_powers_of_two():
            workload = replace(
                workload,
                a_scale=power_of_two(workload.a_scale),
                b_scale=power_of_two(workload.b_scale),
            )
        check = partial(workload.check, "deep_gemm")
        b = (workload.b, workload.b_scale)
        if problem.layout is Layout.MASKED:
            function = self._function(*_MASKED)
            a = (workload.a, workload.a_scale)
            call = partial(function, a, b, workload.out, workload.groups, expected_m)
            return Ready(calls=(call,), check=check)
        function = self._function(*_CONTIGUOUS)
        if problem.layout is Layout.CONTIGUOUS:
            a = (workload.a, workload.a_scale)
            call = partial(function, a, b, workload.out, workload.groups)
            return Ready(calls=(call,), check=check)
        return _padded(workload, function)

    def _function(self, *names: str) -> Callable[..., object]:
        for name in names:
            found: Callable[..., object] | None = getattr(self._module, name, None)
            if found is not None:
                return found
        raise Unavailable(f"this deep_gemm has no {names[0]}")


def _wants_powers_of_two() -> bool:
    """
    Return whether DeepGEMM's kernels for this GPU only use the exponent of each scale, which has
    eight bits.
    """
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 10


def power_of_two(scale: Tensor) -> Tensor:
    """Return scales rounded up to powers of two, in the same layout."""
    rounded = torch.exp2(torch.ceil(torch.log2(scale)))
    return torch.empty_strided(
        scale.shape, scale.stride(), dtype=scale.dtype, device=scale.device
    ).copy_(rounded)


def _padded(workload: Workload, function: Callable[..., object]) -> Ready:
    """Return the contiguous call for a ragged workload."""
    indices, places = _places(workload.row_counts)
    device = workload.a.device
    places, m_indices = places.to(device), indices.to(device)
    rows, k = len(m_indices), workload.problem.k
    a = torch.zeros(rows, k, dtype=torch.uint8, device=device)
    a_scale = kernel_layout(torch.ones(rows, workload.a_scale.shape[1], device=device))
    out = torch.empty(rows, workload.problem.n, dtype=workload.out.dtype, device=device)

    def padding() -> None:
        a.index_copy_(0, places, workload.a.view(torch.uint8))
        a_scale.index_copy_(0, places, workload.a_scale)

    def check() -> None:
        workload.out.copy_(out[places])
        workload.check("deep_gemm on padded rows")

    padding()
    operands = ((a.view(torch.float8_e4m3fn), a_scale), (workload.b, workload.b_scale))
    call = partial(function, *operands, out, m_indices)
    is_aligned = all(count % GROUP_ALIGNMENT == 0 for count in workload.row_counts)
    return Ready(calls=(call,), check=check, padding=() if is_aligned else (padding,))


def _places(row_counts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the group of each padded row, -1 for padding, and the padded place of each row."""
    indices: list[int] = []
    places: list[int] = []
    for group, count in enumerate(row_counts):
        places += range(len(indices), len(indices) + count)
        indices += [group] * count + [-1] * (-count % GROUP_ALIGNMENT)
    return torch.tensor(indices, dtype=torch.int32), torch.tensor(places)
