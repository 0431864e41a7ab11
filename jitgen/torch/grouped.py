# SPDX-License-Identifier: Apache-2.0
"""`jitgen.torch.grouped_mm`: torch's function of that name."""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.torch.forms import Scales, product


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """
    Do what ``torch.nn.functional.grouped_mm`` and ``torch._grouped_mm`` do.

    ==================  =====================  ===============  =================
    mat_a               mat_b                  offs             result
    ==================  =====================  ===============  =================
    (M, K)              (G, K, N)              (G,), along M    (M, N)
    (G, M, K)           (G, K, N)              None             (G, M, N)
    (M, K)              (K, N)                 (G,), along K    (G, M, N)
    (G, M, K)           (K, N)                 (G,), along N    (M, N)
    ==================  =====================  ===============  =================

    The third is `jitgen.grouped_gemm_wgrad`; a mat_a with K contiguous costs it a copy. The last is
    computed as its transpose, so that M is contiguous in its result.

    Args:
        mat_a: bfloat16, on a CPU also float32, K contiguous; in the third form M.
        mat_b: As `mat_a`. K contiguous, which ``w.transpose(-2, -1)`` of (G, N, K) is; or N, which
            (G, K, N) is: see docs/torch.md for where that takes no copy. In the last form K, in the
            third N.
        offs: int32, cumulative ends of groups. Rows, in the last form columns, from ``offs[-1]`` on
            are not written.
        bias: (N,) or (G, N) of any type that float32 holds, added to each row of a group before
            it is rounded; see `jitgen.grouped_gemm`. Not in the last two forms. torch takes none.
        out_dtype: Type of the result: that of `mat_a` by default; bfloat16, float16 or float32,
            where torch has that of `mat_a` alone.

    Raises:
        InputError: An argument is wrong, or there is no kernel for the form: the message says what
            is allowed. What `jitgen.grouped_gemm` raises is about a = `mat_a`, and about b =
            `mat_b` transposed.
        JitgenError: As `jitgen.grouped_gemm`.
    """
    return product(mat_a, mat_b, Scales(), offs, bias, out_dtype)
