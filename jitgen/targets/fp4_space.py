# SPDX-License-Identifier: Apache-2.0
"""Operands of kernels for MXFP4 weights, prepacked or beside bf16, which targets share."""

from __future__ import annotations

from itertools import product

from jitgen.config.config import BLayout, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.targets.protocol import refuse_unless

OUTPUTS = (DType.BF16, DType.F16, DType.F32)

_KINDS = (
    *product((DType.E4M3,), (ScaleGranularity.ROW, ScaleGranularity.BLOCK128)),
    (DType.E4M3X2, ScaleGranularity.ROW),
)
"""Types of e4m3 activations and the granularities of their scales."""

OPERANDS = tuple(
    Operands(
        a_dtype=a_dtype,
        b_dtype=DType.E2M1,
        out_dtype=out_dtype,
        scale_granularity=ScaleGranularity.MX32,
        a_scale_granularity=scales,
        b_layout=b_layout,
    )
    for out_dtype in OUTPUTS
    for a_dtype, scales, b_layout in (
        *((*kind, b_layout) for kind in _KINDS for b_layout in (BLayout.EXACT1, BLayout.FOLDED1)),
        (DType.BF16, ScaleGranularity.NONE, BLayout.WIDE1),
    )
)
"""All operands with prepacked weights that there are kernels for."""

UNSCALED = tuple(
    Operands(
        a_dtype=DType.BF16,
        b_dtype=DType.E2M1,
        out_dtype=out_dtype,
        scale_granularity=ScaleGranularity.MX32,
        a_scale_granularity=ScaleGranularity.NONE,
    )
    for out_dtype in OUTPUTS
)
"""bf16 tokens, and weights as they were quantised."""


def refuse_other_operands(types: Operands, arch: str) -> None:
    """Refuse prepacked weights with operands that no kernel has."""
    legal = [f"{each.a_dtype} {each.a_scale_granularity} {each.b_layout}" for each in OPERANDS]
    refuse_unless(
        types in OPERANDS,
        "E_MMA",
        f"{types.a_dtype} with {types.a_scale_granularity} scales x {types.b_dtype} with "
        f"{types.scale_granularity} scales, {types.b_layout} -> {types.out_dtype} has no "
        f"{arch} kernel; b is e2m1 with mx32 scales, a with its scales and b_layout one of "
        f"{', '.join(dict.fromkeys(legal))}, and the output bf16, f16 or f32",
    )
