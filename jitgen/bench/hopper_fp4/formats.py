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
from jitgen.bench.hopper_fp4.sides import ROW, WIDE, Kind, Own, fp8_bits, ready
from jitgen.bench.peers import Unavailable
from jitgen.bench.runner import Ready
from jitgen.config import BLayout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.config.prepacked import PrepackedFormat
from jitgen.formats.prepacked_int4 import prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.prepacked_weights import PrepackedWeights


class Fp8Rows(Own):
    """jitgen's FP8 kernel with a scale for each row of tokens and of weights."""

    name = "fp8 row"
    note = "e4m3 weights with a scale for each output channel"
    types: Mapping[str, object] = {"scale_granularity": ScaleGranularity.ROW}

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """Return a function that returns the side with a given kernel."""
        b = weights.once("fp8 row", lambda: copies(fp8_bits(weights)))
        groups, n, _ = weights.sizes
        chance = torch.Generator(b[0].device).manual_seed(2)
        b_scale = torch.rand((groups, n), device=b[0].device, generator=chance) + 0.5
        a, a_scale = ROW.quantize(tokens.x)
        return partial(
            ready,
            tokens,
            [partial(jitgen.grouped_gemm, a, each, a_scale, b_scale) for each in b],
            tokens.product(
                self.name,
                partial(ROW.values, tokens.x, a, a_scale),
                lambda: b[0].float() * b_scale.unsqueeze(-1),
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
        return case.k % self._form.facts.values == 0

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """
        Return a function that returns the side with a given kernel.

        Raises:
            Unavailable: K is no multiple of what the format needs.
        """
        if not self.fits(tokens.case):
            size = self._form.facts.values
            raise Unavailable(f"K is a multiple of {size} there (got {tokens.case.k})")
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
        first = _MAKERS[self._form](weights, self._layout)
        return [first, *(replace(first, values=first.values.clone()) for _ in range(SETS - 1))]


def _int4(size: int, weights: Weights, layout: BLayout) -> PrepackedWeights:
    """Return the bits of the MXFP4 weights as INT4, with a random scale for each `size` values."""
    groups, n, k = weights.sizes
    device = weights.packed.device
    chance = torch.Generator(device).manual_seed(3)
    scale = torch.rand((groups, n, k // size), device=device, generator=chance) / 100 + 0.001
    words = weights.packed.contiguous().view(torch.int32)
    return prepack_int4(words, scale.bfloat16(), layout=layout)


def _nvfp4(weights: Weights, layout: BLayout) -> PrepackedWeights:
    """Return the codes of the MXFP4 weights as NVFP4, with a random scale for each 16 values."""
    groups, n, k = weights.sizes
    device = weights.packed.device
    chance = torch.Generator(device).manual_seed(4)
    scale = torch.rand((groups, n, k // 16), device=device, generator=chance) * 400 + 1
    overall = torch.full((groups,), 1e-4, device=device)
    return prepack_nvfp4(weights.packed, scale.to(torch.float8_e4m3fn), overall, layout=layout)


def _mxfp8(weights: Weights, layout: BLayout) -> PrepackedWeights:
    """Return the bits of the FP8 weights with the scales of the MXFP4 ones."""
    return prepack_mxfp8(fp8_bits(weights), weights.scale, layout=layout)


_MAKERS: dict[PrepackedFormat, Callable[[Weights, BLayout], PrepackedWeights]] = {
    PrepackedFormat.INT4_32: partial(_int4, 32),
    PrepackedFormat.INT4_128: partial(_int4, 128),
    PrepackedFormat.NVFP4: _nvfp4,
    PrepackedFormat.MXFP8: _mxfp8,
}

FORMATS: tuple[Own, ...] = (
    Fp8Rows(),
    *(
        Prepacked(f"{form} {words}", form, layout, kind)
        for form in _MAKERS
        for words, layout, kind in (("e4m3", BLayout.EXACT1, ROW), ("bf16", BLayout.WIDE1, WIDE))
    ),
)
"""The sides that ``--formats`` adds."""
