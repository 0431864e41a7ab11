# SPDX-License-Identifier: Apache-2.0
"""
Random operands of grouped GEMMs with prepacked weights.

Weights are drawn in the form of checkpoints and then prepacked, so that prepacking is tested as
well. Exponents of exact problems stay in the range that every layout keeps exactly; those of other
problems differ so much that folding rounds some values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jitgen.config import BLayout, DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import ConfigError
from jitgen.formats import find_format, int4
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats import prepacked_scales as scales
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.formats.prepacked_int4 import prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.protocol import Rows
from jitgen.formats.split import PARTS, split_bf16
from jitgen.ops.grouped_gemm.draws import Draw

_NEAR, _FAR = (125, 130), (118, 131)
"""Ranges of exponents: of exact problems, and of others."""


def activations(draw: Draw, problem: GroupedGemmProblem, rows: Rows) -> tuple[Tensor, Tensor]:
    """
    Return a and its scales, as kernels read them; no scales for an a without them.

    The two parts of an exact e4m3x2, and their scales, are drawn independently, so that a kernel
    which confuses the parts is wrong by more than rounding.
    """
    granularity = problem.a_scale_granularity
    if granularity is ScaleGranularity.NONE:
        return draw.values((*rows.shape, problem.k), problem.a_dtype), draw.floats(0)
    if problem.a_dtype is not DType.E4M3X2:
        form = find_format(granularity or problem.scale_granularity)
        scale = form.readable(draw.floats(*form.a_shape(rows, problem.k)))
        return draw.values((*rows.shape, problem.k), problem.a_dtype), scale
    if draw.is_exact:
        parts = draw.values((*rows.shape, PARTS, problem.k), DType.E4M3X2)
        return parts, draw.floats(*rows.shape, PARTS)
    return split_bf16(draw.values((*rows.shape, problem.k), DType.BF16))


def weights(draw: Draw, problem: GroupedGemmProblem, is_idle: Tensor | None) -> PrepackedWeights:
    """
    Return random prepacked weights, the argument b.

    Args:
        draw: The source of random values.
        problem: The sizes and the layout.
        is_idle: (G,) bool: groups whose scales are all NaN; None: no group. Each other group has
            one NaN scale, which makes one column NaN, and blocks are NaN beyond N.
    """
    groups, n, k = problem.groups, problem.n, problem.k
    form = PrepackedFormat.of(problem.operands.b_dtype, problem.scale_granularity)
    if form is None:
        raise ConfigError(f"{problem.types} is no format of prepacked weights")
    packed, scale = _quantised(draw, form, (groups, n, k))
    if is_idle is not None:
        is_byte = form.facts.scale_granularity is ScaleGranularity.MX32
        nan = scales.NAN if is_byte else math.nan
        for group, idle in enumerate(is_idle.tolist()):
            if idle:
                scale[group] = nan
            else:
                scale[group, (7 * group + 3) % n, group % scale.shape[-1]] = nan
    prepacked = _prepacked(draw, form, packed, scale, problem.b_layout)
    beyond = n - math.ceil(n / blocks.ROWS) * blocks.ROWS
    if is_idle is not None and beyond:  # the scales of rows that there are not
        prepacked.values[:, -1, :, beyond * form.facts.scale_words :] = -1
    return prepacked


def _quantised(
    draw: Draw, form: PrepackedFormat, sizes: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Return values and scales as checkpoints have them, the scales of nvfp4 in float32."""
    shape = (*sizes[:2], form.facts.scales_of(sizes[2]))
    if form.facts.b_dtype is DType.INT4:
        values = draw.integers(0, 16, sizes).int() - int4.MIDDLE
        return int4.packed_of(values), draw.floats(*shape).bfloat16()
    packed = draw.values(sizes, form.facts.b_dtype)
    if form is PrepackedFormat.NVFP4:
        return packed, draw.floats(*shape).clamp(2.0**-9, 448.0)
    scale = draw.integers(*(_NEAR if draw.is_exact else _FAR), shape)
    if draw.reach != (0, 0):  # each group has its own, for a group's lie around its largest
        scale += draw.integers(0, sum(map(abs, draw.reach)), (sizes[0], 1, 1))
        scale += draw.reach[0]
    return packed, scale


def _prepacked(
    draw: Draw, form: PrepackedFormat, packed: Tensor, scale: Tensor, layout: BLayout
) -> PrepackedWeights:
    if form is PrepackedFormat.MXFP4:
        return prepack_mxfp4(packed, scale, layout=layout)
    if form is PrepackedFormat.MXFP8:
        return prepack_mxfp8(packed, scale, layout=layout)
    if form is PrepackedFormat.NVFP4:
        overall = draw.floats(len(packed))
        return prepack_nvfp4(packed, scale.to(torch.float8_e4m3fn), overall, layout=layout)
    return prepack_int4(packed, scale, layout=layout)
