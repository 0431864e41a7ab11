# SPDX-License-Identifier: Apache-2.0
"""Small layers of experts, each in one format, with tokens and their routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.config.activation_quantize import Activation
from jitgen.layer import reference

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 6, 2
MASKED_ROWS = 48
"""Rows of each expert's matrix in the masked layout, where a GPU has them."""
GPT_OSS: dict[str, Any] = {
    "activation": "swiglu_oai",
    "interleaved": True,
    "swiglu_limit": 7.0,
    "swiglu_alpha": 1.702,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layer, its tokens, and what must come out."""

    config: jitgen.MoEConfig
    weights: jitgen.ExpertWeights
    x: Tensor
    topk_weights: Tensor
    topk_ids: Tensor

    @property
    def given(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.topk_weights, self.topk_ids

    @property
    def named(self) -> dict[str, Any]:
        """The weights as `jitgen.moe` takes them."""
        names = ("w13", "w2", "w13_scale", "w2_scale", "w13_bias", "w2_bias", "activation_format")
        return {name: getattr(self.weights, name) for name in names}

    def expected(self, shared: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return reference.moe(
            self.x, self.weights, self.topk_weights, self.topk_ids, self.config, shared, weights
        )

    def error(
        self, found: Tensor, shared: Tensor | None = None, weights: Tensor | None = None
    ) -> float:
        return reference.relative_error(found, self.expected(shared, weights))

    @property
    def tolerance(self) -> float:
        return reference.TOLERANCE[str(self.weights.activation_format)]


_INT4 = ("int4_wide1", "int4_exact1", "int4_exact1_row")
_NVFP4 = ("nvfp4_wide1", "nvfp4_exact1_row")
_MXFP4 = ("wide1", "exact1", "exact1_row")
_MXFP8 = ("mxfp8_wide1", "mxfp8_exact1")
FORMATS = ("bf16", "bf16_bias", "block128", "row", *_MXFP4, *_INT4, *_NVFP4, *_MXFP8)
_ON_EVERY_PUSH = ("bf16", "block128", "wide1", "int4_wide1")
SOME_FORMATS = tuple(
    form if form in _ON_EVERY_PUSH else pytest.param(form, marks=pytest.mark.nightly)
    for form in FORMATS
)
"""A few formats with every push, all at night: each has kernels of its own to compile."""


def make(form: str, tokens: int = 19, seed: int = 0, **config: Any) -> Case:
    """Return a layer in one of `FORMATS`; the last expert has no token."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    is_gated = Activation(config.get("activation", "swiglu")).is_gated
    rows = (1 + is_gated) * INTERMEDIATE
    w13 = normal(EXPERTS, rows, HIDDEN) * HIDDEN**-0.5
    w2 = normal(EXPERTS, HIDDEN, INTERMEDIATE) * INTERMEDIATE**-0.5
    biases: dict[str, Tensor] = {}
    if form.startswith(("exact1", "wide1")) or form == "bf16_bias":
        config = {**GPT_OSS, **config}
        biases = {
            "w13_bias": normal(EXPERTS, rows),
            "w2_bias": normal(EXPERTS, HIDDEN),
        }
    order = torch.rand(tokens, EXPERTS - 1, generator=generator).argsort(-1)
    return Case(
        config=jitgen.MoEConfig(
            hidden=HIDDEN, intermediate=INTERMEDIATE, experts=EXPERTS, top_k=TOP_K, **config
        ),
        weights=jitgen.ExpertWeights(**_quantised(form, w13, w2), **biases),
        x=normal(tokens, HIDDEN).bfloat16(),
        topk_weights=torch.rand(tokens, TOP_K, generator=generator),
        topk_ids=order[:, :TOP_K].to(torch.int32),
    )


def _quantised(form: str, w13: Tensor, w2: Tensor) -> dict[str, Any]:
    if form.startswith("bf16"):
        return {"w13": w13.bfloat16(), "w2": w2.bfloat16()}
    if form in ("block128", "row"):
        quantise = jitgen.quantize.per_block if form == "block128" else jitgen.quantize.per_row
        (q13, s13), (q2, s2) = quantise(w13), quantise(w2)
        return {"w13": q13, "w2": q2, "w13_scale": s13, "w2_scale": s2}
    if form.startswith("int4_"):
        layout, _, activations = form.removeprefix("int4_").partition("_")
        return {
            "w13": _int4(w13, 32, layout),
            "w2": _int4(w2, 128, layout),
            "activation_format": activations or None,
        }
    if form.startswith(("nvfp4_", "mxfp8_")):
        name, layout, activations = (*form.split("_"), "")[:3]
        make = _nvfp4 if name == "nvfp4" else _mxfp8
        found = {name: make(each, layout) for name, each in (("w13", w13), ("w2", w2))}
        return {**found, "activation_format": activations or None}
    layout, _, activations = form.partition("_")
    prepare = jitgen.quantize.prepack_mxfp4_from
    return {
        "w13": prepare(w13, layout=layout),  # type: ignore[arg-type]
        "w2": prepare(w2, layout=layout),  # type: ignore[arg-type]
        "activation_format": activations or None,
    }


def _int4(w: Tensor, group: int, layout: str) -> jitgen.quantize.PrepackedWeights:
    """Return weights rounded to INT4 with a scale for each group along K, and prepacked."""
    parts = w.unflatten(-1, (-1, group))
    scale = (parts.abs().amax(-1) / 7).bfloat16()
    codes = (parts / scale.float().unsqueeze(-1)).round().clamp(-8, 7).flatten(-2).int() + 8
    words = (codes.unflatten(-1, (-1, 8)) << torch.arange(0, 32, 4)).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).int()
    return jitgen.quantize.prepack_int4(words, scale, layout=layout)


def _nvfp4(w: Tensor, layout: str) -> jitgen.quantize.PrepackedWeights:
    """Return weights quantised to NVFP4, and prepacked."""
    packed, scale, overall = jitgen.quantize.nvfp4(w)
    plain = jitgen.quantize.from_atoms(scale, w.shape[1], w.shape[2] // 16)
    return jitgen.quantize.prepack_nvfp4(packed, plain, overall, layout=layout)


def _mxfp8(w: Tensor, layout: str) -> jitgen.quantize.PrepackedWeights:
    """Return weights quantised to MXFP8, and prepacked."""
    q, scale = jitgen.quantize.mxfp8(w)
    plain = jitgen.quantize.from_atoms(scale, w.shape[1], w.shape[2] // 32)
    return jitgen.quantize.prepack_mxfp8(q, plain, layout=layout)
