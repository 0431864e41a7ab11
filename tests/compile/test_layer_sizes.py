# SPDX-License-Identifier: Apache-2.0
"""
Layers whose I or H is no multiple of 128, as ranks have them: every format, beside the reference.

The last scale of a row is then for fewer values than the others. 176, 192 and 320 are 1408, 1536
and 2560 over 8; 48 is less than a block, and no multiple of 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.errors import JitgenError
from jitgen.formats.protocol import ceil_div
from jitgen.layer import reference
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

EXPERTS, TOP_K, TOKENS = 3, 2, 7
SIZES = [(192, 176), (320, 192), (176, 320), (256, 48), (48, 96)]
"""H and I."""

Matrix = Callable[[Tensor], tuple[Any, Tensor | None]]


def _mxfp4(layout: str) -> Matrix:
    return lambda w: (quantize.prepack_mxfp4_from(w, layout=layout), None)


def _mxfp8(layout: str) -> Matrix:
    def made(w: Tensor) -> tuple[Any, None]:
        values, atoms = quantize.mxfp8(w)
        scale = quantize.from_atoms(atoms, w.shape[1], ceil_div(w.shape[2], 32))
        return quantize.prepack_mxfp8(values, scale, layout=layout), None

    return made


def _int4(size: int, layout: str) -> Matrix:
    def made(w: Tensor) -> tuple[Any, None]:
        chance = torch.Generator().manual_seed(w.shape[2])
        shape = w.shape[0], w.shape[1]
        packed = torch.randint(-(2**31), 2**31, (*shape, w.shape[2] // 8), generator=chance)
        scale = torch.rand((*shape, ceil_div(w.shape[2], size)), generator=chance) / 80
        return quantize.prepack_int4(packed.int(), scale.bfloat16(), layout=layout), None

    return made


FORMATS: dict[str, Matrix] = {
    "bf16": lambda w: (w.bfloat16(), None),
    "fp8-block128": quantize.per_block,
    "fp8-row": quantize.per_row,
    **{f"mxfp4-{layout}": _mxfp4(layout) for layout in ("wide1", "exact1", "folded1")},
    **{f"mxfp8-{layout}": _mxfp8(layout) for layout in ("wide1", "exact1")},
    **{
        f"int4_{size}-{layout}": _int4(size, layout)
        for size in (32, 128)
        for layout in ("wide1", "exact1")
    },
}
ERROR = {False: 0.01, True: 0.06}
"""Part of the norm by which a layer may differ from float32 sums: with bfloat16 or FP8 tokens."""


def layer_of(name: str, hidden: int, intermediate: int) -> jitgen.MoELayer:
    """Return a layer with random weights of a format."""
    chance = torch.Generator().manual_seed(0)
    w13 = torch.randn(EXPERTS, 2 * intermediate, hidden, generator=chance) / 12
    w2 = torch.randn(EXPERTS, hidden, intermediate, generator=chance) / 12
    (w13, w13_scale), (w2, w2_scale) = FORMATS[name](w13), FORMATS[name](w2)
    weights = jitgen.ExpertWeights(w13=w13, w2=w2, w13_scale=w13_scale, w2_scale=w2_scale)
    config = jitgen.MoEConfig(
        hidden=hidden, intermediate=intermediate, experts=EXPERTS, top_k=TOP_K
    )
    return jitgen.MoELayer(config, weights)


@pytest.mark.sampled(17)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_a_layer_of_any_size(name: str, sizes: tuple[int, int]) -> None:
    layer, chance = layer_of(name, *sizes), torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, sizes[0], generator=chance).bfloat16()
    chosen = torch.randn(TOKENS, EXPERTS, generator=chance).softmax(-1).topk(TOP_K)

    out = layer(x, *chosen)

    expected = reference.moe(x, layer.weights, *chosen, layer.config)
    most = ERROR[layer.weights.a_dtype is torch.float8_e4m3fn]
    assert reference.relative_error(out, expected) < most
    assert layer.configs("sm_90a", 64), "Hopper has kernels of these sizes"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FORMATS)
def test_sizes_without_kernels_are_refused_by_name(name: str) -> None:
    """Rows of 24 values end in the middle of what a kernel reads at once."""
    with pytest.raises(JitgenError, match=r"K .*multiple of 16"):
        layer_of(name, 24, 8).configs("sm_90a", 64)
