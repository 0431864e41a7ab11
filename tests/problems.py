# SPDX-License-Identifier: Apache-2.0
"""Problems with known answers, for every layout and scale, and what an answer must satisfy."""

from __future__ import annotations

from typing import Any

import torch

from jitgen.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.ops.sums import ACCUMULATOR_BITS

POISON = float("nan")


def make(
    layout: Layout | str,
    scales: ScaleGranularity | str,
    rows: list[int],
    n: int,
    k: int,
    *,
    device: str = "cpu",
    dtype: DType = DType.E4M3,
    b_dtype: DType | None = None,
    a_scales: ScaleGranularity | None = None,
    b_layout: BLayout = BLayout.PLAIN,
    out_dtype: DType = DType.BF16,
    bias: bool = False,
    is_exact: bool = False,
    seed: int = 0,
) -> Solved:
    """
    Return a problem of `rows` for each group.

    Args:
        layout: How rows belong to groups; every layout gets padding rows.
        scales: How many values share one scale.
        rows: Rows of each group.
        n: Columns of the output.
        k: Length of the sums.
        device: Device of the tensors.
        dtype: Type of a and b.
        b_dtype: Type of b where it is another one.
        a_scales: How many values of a share one scale, where that is otherwise than b's.
        b_layout: Layout of b.
        out_dtype: Type of the output.
        bias: Whether there is one.
        is_exact: Small integers and power-of-two scales: every sum is exact in float32.
        seed: Seed of the random numbers.
    """
    problem = GroupedGemmProblem(
        layout=Layout(layout),
        groups=len(rows),
        m=sum(rows),
        n=n,
        k=k,
        a_dtype=dtype,
        b_dtype=b_dtype,
        out_dtype=out_dtype,
        scale_granularity=ScaleGranularity(scales),
        a_scale_granularity=a_scales,
        b_layout=b_layout,
        bias=bias,
    )
    call = random_call(problem, rows, is_exact=is_exact, has_spare=True, seed=seed)
    return Solved.of(call.copy(device), is_exact=is_exact)  # one machine's values are another's


def make_for(config: GroupedGemmConfig, rows: list[int], n: int, k: int, **options: Any) -> Solved:
    """Return the problem that `make` returns for the layout, scales and types of `config`."""
    types = config.operands
    return make(
        config.layout,
        types.scale_granularity,
        rows,
        n,
        k,
        dtype=types.a_dtype,
        b_dtype=types.b_dtype,
        a_scales=types.a_scale_granularity,
        b_layout=types.b_layout,
        out_dtype=types.out_dtype,
        bias=config.epilogue.bias,
        **options,
    )


def verify(case: Solved, out: torch.Tensor, *, accumulator_bits: int = ACCUMULATOR_BITS) -> None:
    """
    Assert that `out` answers `case`.

    The tolerance is that of `Solved.allowed`. An accumulator that keeps b bits rounds each of the 4
    steps of a 128-block by 2**-b of the sum of absolute values, and promotions are float32.

    Args:
        case: The problem.
        out: The computed result.
        accumulator_bits: Bits that the accumulator keeps: float32 with its additions unless given,
            13 for Hopper's FP8 tensor cores.
    """
    untouched = out[~case.is_owned]
    assert untouched.isnan().all(), "a row that belongs to no group was written"
    have, want = out[case.is_owned].float(), case.expected[case.is_owned]
    is_nan = want.isnan()  # a scale may be NaN, and then whatever is multiplied by it
    assert torch.equal(have.isnan(), is_nan), "a row of a group was not written, or has a NaN"
    assert out.dtype is case.out.dtype
    tolerance = case.allowed(accumulator_bits)[case.is_owned]
    beyond = ((have - want).abs() - tolerance)[~is_nan]
    worst = beyond.max() if beyond.numel() else torch.tensor(-1.0)
    assert worst <= 0, f"beyond the tolerance by {worst.item():.3g}"


def verify_exact(case: Solved, out: torch.Tensor) -> None:
    """Assert that `out` is the rounded exact result, bit for bit, and nothing else was written."""
    assert out[~case.is_owned].isnan().all(), "a row that belongs to no group was written"
    have, want = out[case.is_owned], case.expected[case.is_owned].to(out.dtype)
    assert torch.equal(have.isnan(), want.isnan())
    assert torch.equal(have[~want.isnan()], want[~want.isnan()])
