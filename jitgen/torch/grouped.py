# SPDX-License-Identifier: Apache-2.0
"""`jitgen.torch.grouped_mm`: torch's function of that name."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.torch.forms import Scales, product
from jitgen.torch.rules import Given, check

_NAME = "grouped_mm"


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """
    Replace ``torch.nn.functional.grouped_mm`` and ``torch._grouped_mm``.

    ==================  =====================  ===============  =================
    mat_a               mat_b                  offs             result
    ==================  =====================  ===============  =================
    (M, K)              (G, K, N)              (G,), along M    (M, N)
    (G, M, K)           (G, K, N)              None             (G, M, N)
    (M, K)              (K, N)                 (G,), along K    (G, M, N)
    (G, M, K)           (K, N)                 (G,), along N    (M, N)
    ==================  =====================  ===============  =================

    The third is `jitgen.grouped_gemm_wgrad`. The last is computed as its transpose, so that M is
    contiguous in its result. All have gradients of both operands, and of a bias.

    Every order of dimensions is taken. Those that kernels read as they lie are named below; in
    others an operand is copied at each call, and a warning says so once, with the bytes.

    Args:
        mat_a: bfloat16 or float16, on a CPU also float32. K contiguous; in the third form M; in the
            last K or M.
        mat_b: As `mat_a`. K contiguous, which ``w.transpose(-2, -1)`` of (G, N, K) is; or N, which
            (G, K, N) is. In the third form N, in the last K.
        offs: int32, cumulative ends of groups. Rows, in the last form columns, from ``offs[-1]`` on
            are not written; their gradients are 0.
        bias: (N,) or (G, N) of any type that float32 holds, added to each row of a group before
            it is rounded; see `jitgen.grouped_gemm`. Not in the last two forms. torch takes none.
        out_dtype: Type of the result: that of `mat_a` by default; bfloat16, float16 or float32,
            where torch has that of `mat_a` alone.

    Raises:
        InputError: An argument is wrong, or there is no kernel: the message says what is allowed.
        JitgenError: As `jitgen.grouped_gemm`.
    """
    given = Given(mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias)
    check(_NAME, given, (), ("out_dtype", out_dtype))
    return product(_NAME, given, Scales(), out_dtype or mat_a.dtype)
