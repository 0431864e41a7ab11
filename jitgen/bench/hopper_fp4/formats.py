# SPDX-License-Identifier: Apache-2.0
"""Sides whose weights are not MXFP4: INT4, NVFP4, MXFP8, and FP8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jitgen
from jitgen.bench.hopper_fp4.operands import Tokens, Weights, copies
from jitgen.bench.hopper_fp4.plain import FP8_ROW, plain
from jitgen.bench.hopper_fp4.sides import ROW, WIDE, Own, Prepacked, ready
from jitgen.bench.runner import Ready
from jitgen.config import BLayout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.prepacked import PrepackedFormat


class Fp8Rows(Own):
    """jitgen's FP8 kernel with a scale for each row of tokens and of weights."""

    name = FP8_ROW
    note = "e4m3 weights with a scale for each output channel"
    types: Mapping[str, object] = {"scale_granularity": ScaleGranularity.ROW}

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """Return a function that returns the side with a given kernel."""
        found = plain(weights, self.name)
        b = weights.once(self.name, lambda: copies(found.codes))
        b_scale = found.scale.float().squeeze(-1)
        a, a_scale = ROW.quantize(tokens.x)
        return partial(
            ready,
            tokens,
            [partial(jitgen.grouped_gemm, a, each, a_scale, b_scale) for each in b],
            tokens.product(
                self.name,
                partial(ROW.values, tokens.x, a, a_scale),
                found.values,
            ),
            b[0].nbytes + b_scale.nbytes + a.nbytes + a_scale.nbytes,
        )


FORMATS: tuple[Own, ...] = (
    Fp8Rows(),
    *(
        Prepacked(f"{form} {words}", layout, kind, form)
        for form in PrepackedFormat
        if form is not PrepackedFormat.MXFP4
        for words, layout, kind in (("e4m3", BLayout.EXACT1, ROW), ("bf16", BLayout.WIDE1, WIDE))
    ),
)
"""The sides that ``--formats`` adds."""
