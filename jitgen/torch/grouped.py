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

    The third form is `jitgen.grouped_gemm_wgrad`. The last one is computed as its transpose, so M
    is contiguous in its result. All forms have gradients of both operands, and of a bias.

    Operands may have any strides. Kernels read the orders named below directly; an operand in
    another order is copied at each call, with one warning that gives the bytes.

    Args:
        mat_a: bfloat16 or float16, on a CPU also float32. K is contiguous; in the third form M; in
            the last form K or M.
        mat_b: Types as for `mat_a`. K is contiguous, as in ``w.transpose(-2, -1)`` of (G, N, K); or
            N, as in (G, K, N). In the third form N is contiguous, in the last form K.
        offs: int32, cumulative ends of groups. Rows (in the last form columns) from ``offs[-1]`` on
            are not written; their gradients are 0.
        bias: (N,) or (G, N), of any type whose values float32 represents, added to each row of a
            group before rounding; see `jitgen.grouped_gemm`. Not in the last two forms. torch's
            functions do not support it.
        out_dtype: Type of the result: bfloat16, float16 or float32; default: that of `mat_a`, the
            only one that torch supports.

    Raises:
        InputError: An argument is wrong, or there is no kernel: the message says what is allowed.
        JitgenError: As `jitgen.grouped_gemm`.
    """
    given = Given(mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias)
    check(_NAME, given, (), ("out_dtype", out_dtype))
    return product(_NAME, given, Scales(), out_dtype or mat_a.dtype)
