# SPDX-License-Identifier: Apache-2.0
"""
Operands that targets share: with prepacked weights, and with MXFP4 weights beside bf16 tokens.
"""

from __future__ import annotations

from itertools import product

from jitgen.config.config import BLayout, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Operands
from jitgen.config.prepacked import PrepackedFormat
from jitgen.targets.protocol import Refusal, refuse_unless

OUTPUTS = (DType.BF16, DType.F16, DType.F32)

_KINDS = (
    *product((DType.E4M3,), (ScaleGranularity.ROW, ScaleGranularity.BLOCK128)),
    (DType.E4M3X2, ScaleGranularity.ROW),
)
"""Types of e4m3 activations and the granularities of their scales."""


def _kinds(form: PrepackedFormat) -> tuple[tuple[DType, ScaleGranularity, BLayout], ...]:
    """
    Return type and scales of the activations that weights of a format are multiplied with, and the
    layouts of these weights.
    """
    narrow = [layout for layout in form.facts.partials if layout is not BLayout.WIDE1]
    return (
        *((*kind, layout) for kind in _KINDS for layout in narrow),
        (DType.BF16, ScaleGranularity.NONE, BLayout.WIDE1),
    )


OPERANDS = tuple(
    Operands(
        a_dtype=a_dtype,
        b_dtype=form.facts.b_dtype,
        out_dtype=out_dtype,
        scale_granularity=form.facts.scale_granularity,
        a_scale_granularity=scales,
        b_layout=b_layout,
    )
    for form in PrepackedFormat
    for out_dtype in OUTPUTS
    for a_dtype, scales, b_layout in _kinds(form)
)
"""All operands with prepacked weights that there are kernels for."""


def format_of(types: Operands) -> PrepackedFormat:
    """
    Return the format of prepacked weights.

    Raises:
        Refusal: There is none with such values and scales; the code is ``E_MMA``.
    """
    dtype, scales = types.b_dtype, types.scale_granularity
    found = PrepackedFormat.of(dtype, scales)
    if found is None:
        raise Refusal("E_MMA", f"{dtype} with {scales} scales is no format of prepacked weights")
    return found


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
    values = [
        f"{each.facts.b_dtype} with {each.facts.scale_granularity} scales"
        for each in PrepackedFormat
    ]
    refuse_unless(
        types in OPERANDS,
        "E_MMA",
        f"{types.a_dtype} with {types.a_scale_granularity} scales x {types.b_dtype} with "
        f"{types.scale_granularity} scales, {types.b_layout} -> {types.out_dtype} has no "
        f"{arch} kernel; b is one of {', '.join(values)}, a with its scales and b_layout one of "
        f"{', '.join(dict.fromkeys(legal))} (folded1 of e2m1 alone), and the output bf16, f16 or "
        "f32",
    )
