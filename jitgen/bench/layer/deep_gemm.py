# SPDX-License-Identifier: Apache-2.0
"""
DeepGEMM's products with glue in Triton, as serving engines have it: the honest peer at decode.

Masked, each expert has a matrix with room for every token; contiguous, experts begin at multiples
of 128 rows. Which is better depends on the tokens, so both are measured where memory allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.layer.operands import Operands, Ready
from jitgen.bench.peers import Unavailable, imported, require
from jitgen.config.layouts import GROUP_ALIGNMENT
from jitgen.formats.block128 import FORMAT
from jitgen.formats.protocol import Rows, ceil_div

MASKED, CONTIGUOUS = "deep-gemm-masked", "deep-gemm-contiguous"
NOTE = "same numerics; glue in Triton, all of it replayed as one graph"

_MOST_MASKED_ROWS = 2**17
"""Of all experts together; beyond them nobody would lay out memory like that."""

_TILE_ROWS = 128
"""
Rows of which a masked matrix has a multiple: DeepGEMM stores whole tiles of up to so many, and one
that reached beyond its matrix would overwrite the next expert's rows.
"""

_NAMES = {
    MASKED: ("m_grouped_fp8_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nt_masked"),
    CONTIGUOUS: ("m_grouped_fp8_gemm_nt_contiguous",),
}

_NO_ROUTER = "the glue begins with experts that are chosen and all here"

Product = Callable[[tuple[Tensor, Tensor], tuple[Any, Any], Tensor, Tensor, int], object]
"""Rows and weights with their scales, the result, counts or owners of rows, and rows expected."""


def prepare_masked(operands: Operands) -> Ready:
    """
    Return the layer with a matrix for each expert.

    Raises:
        Unavailable: DeepGEMM or Triton is not installed, or matrices would be too large.
    """
    return masked(operands, find(MASKED))


def prepare_contiguous(operands: Operands) -> Ready:
    """
    Return the layer with experts at multiples of 128 rows.

    Raises:
        Unavailable: DeepGEMM or Triton is not installed.
    """
    product = find(CONTIGUOUS)
    return contiguous(operands, lambda a, b, out, owners, _: product(a, b, out, owners))


def find(kind: str) -> Any:
    """
    Return a function of DeepGEMM's.

    Raises:
        Unavailable: It is not installed, or has none.
    """
    module = imported("deep_gemm")
    for name in _NAMES[kind]:
        if hasattr(module, name):
            return getattr(module, name)
    raise Unavailable(f"this deep_gemm has no {_NAMES[kind][0]}")


def masked(operands: Operands, product: Product) -> Ready:
    """Return the layer with a matrix for each expert, multiplied by `product`."""
    glue = _glue()
    require(operands.router is None, _NO_ROUTER)
    case, x = operands.case, operands.x
    height = ceil_div(case.tokens, _TILE_ROWS) * _TILE_ROWS
    fits = case.experts * height <= _MOST_MASKED_ROWS
    require(fits, f"{case.experts} matrices of {height} rows are too large")
    counts = x.new_empty(case.experts, dtype=torch.int32)
    place = partial(glue.place_masked, operands.topk_ids, counts, height=height)
    return _layer(operands, (case.experts, height), counts, place, product)


def contiguous(operands: Operands, product: Product) -> Ready:
    """Return the layer with experts at multiples of 128 rows, multiplied by `product`."""
    glue = _glue()
    require(operands.router is None, _NO_ROUTER)
    case, x = operands.case, operands.x
    is_power = not case.experts & (case.experts - 1)
    require(is_power, f"the glue counts powers of two of experts, not {case.experts}")
    tiles = min(case.rows, case.rows // GROUP_ALIGNMENT + case.experts)
    owners = x.new_empty(tiles * GROUP_ALIGNMENT, dtype=torch.int32)
    counts = glue.new_counts(case.experts, x.device)
    place = partial(glue.place_contiguous, operands.topk_ids, counts, owners=owners)
    return _layer(operands, (len(owners),), owners, place, product)


def _layer(
    operands: Operands,
    front: tuple[int, ...],
    groups: Tensor,
    give_places: Callable[[Tensor], object],
    product: Product,
) -> Ready:
    """Return six or seven launches with memory of their own."""
    glue = _glue()
    case, x, weights = operands.case, operands.x, operands.by_block
    fp8, bf16 = torch.float8_e4m3fn, torch.bfloat16
    rows = Rows(front)
    place = x.new_zeros(case.rows, dtype=torch.int32)
    a, a_scale = x.new_empty((*front, case.hidden), dtype=fp8), FORMAT.new_a(x, rows, case.hidden)
    h = x.new_empty((*front, 2 * case.intermediate), dtype=bf16)
    q = x.new_empty((*front, case.intermediate), dtype=fp8)
    q_scale = FORMAT.new_a(x, rows, case.intermediate)
    y = x.new_empty((*front, case.hidden), dtype=bf16)
    out = torch.empty_like(x)
    mean = max(1, ceil_div(case.rows, case.experts))

    def call() -> None:
        give_places(place)
        glue.gather(x, place, a, a_scale, case.top_k)
        product((a, a_scale), (weights.w13, weights.w13_scale), h, groups, mean)
        glue.swiglu(h, place, q, q_scale)
        product((q, q_scale), (weights.w2, weights.w2_scale), y, groups, mean)
        glue.combine(y, place, operands.topk_weights, out)

    return Ready(call=call, result=lambda: out, weights=weights)


def _glue() -> Any:
    """
    Return the module with the kernels.

    Raises:
        Unavailable: Triton is not installed.
    """
    return imported("jitgen.bench.layer.glue", "Triton")
