# SPDX-License-Identifier: Apache-2.0
"""Sides whose weights are not MXFP4: INT4, NVFP4, MXFP8, and FP8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch

import jitgen
from jitgen.bench.cases import Case
from jitgen.bench.hopper_fp4.operands import SETS, Tokens, Weights, copies
from jitgen.bench.hopper_fp4.plain import FP8_ROW, Plain, fits, plain
from jitgen.bench.hopper_fp4.sides import ROW, WIDE, Kind, Own, ready
from jitgen.bench.runner import Ready
from jitgen.config import BLayout, DType, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.prepacked import PrepackedFormat
from jitgen.formats.prepacked_int4 import prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.prepacked_weights import PrepackedWeights


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


class Prepacked(Own):
    """jitgen's kernels for prepacked weights of a format, on random weights in that format."""

    note = ""

    def __init__(self, name: str, form: PrepackedFormat, layout: BLayout, kind: Kind) -> None:
        self.name = name
        self._form, self._layout, self._kind = form, layout, kind
        self.types = {
            "a_dtype": kind.dtype,
            "b_dtype": form.facts.b_dtype,
            "scale_granularity": form.facts.scale_granularity,
            "a_scale_granularity": kind.scales,
            "b_layout": layout,
        }

    def fits(self, case: Case) -> bool:
        """Return whether K is a multiple of the number of values that share a scale."""
        return fits(self._form, case.k)

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """
        Return a function that returns the side with a given kernel.

        Raises:
            Unavailable: K is no multiple of what the format needs.
        """
        prepacked = weights.once(f"{self._form} {self._layout}", partial(self._weights, weights))
        a, *scales = self._kind.quantize(tokens.x)
        return partial(
            ready,
            tokens,
            [partial(jitgen.grouped_gemm, a, each, *scales) for each in prepacked],
            tokens.product(
                f"{self._form} {self._layout} {self._kind.product}",
                partial(self._kind.values, tokens.x, a, *scales),
                prepacked[0].weights,
            ),
            prepacked[0].nbytes + sum(x.nbytes for x in (a, *scales)),
        )

    def _weights(self, weights: Weights) -> list[PrepackedWeights]:
        """Return random weights, and copies of them for other launches."""
        first = _prepack(plain(weights, self._form), self._layout)
        return [first, *(replace(first, values=first.values.clone()) for _ in range(SETS - 1))]


def _prepack(found: Plain, layout: BLayout) -> PrepackedWeights:
    """Return the weights prepacked for a layout."""
    if found.dtype is DType.INT4:
        return prepack_int4(found.codes.view(torch.int32), found.scale, layout=layout)
    if found.factor is not None:
        return prepack_nvfp4(found.codes, found.scale, found.factor, layout=layout)
    return prepack_mxfp8(found.codes, found.scale, layout=layout)


FORMATS: tuple[Own, ...] = (
    Fp8Rows(),
    *(
        Prepacked(f"{form} {words}", form, layout, kind)
        for form in PrepackedFormat
        if form is not PrepackedFormat.MXFP4
        for words, layout, kind in (("e4m3", BLayout.EXACT1, ROW), ("bf16", BLayout.WIDE1, WIDE))
    ),
)
"""The sides that ``--formats`` adds."""
