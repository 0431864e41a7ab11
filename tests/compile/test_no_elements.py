# SPDX-License-Identifier: Apache-2.0
"""Tensors without elements: a rank without tokens calls what all others call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import jitgen
import jitgen.torch
from jitgen import quantize
from jitgen.config import BLayout
from tests import needs
from tests.moe_cases import make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

GROUPS, N, K = 4, 64, 256
OFFS = torch.zeros(GROUPS, dtype=torch.int32)
BF16, FP8, INT = torch.bfloat16, torch.float8_e4m3fn, torch.int32

New = Callable[..., Tensor]


def dense(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def expanded(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    """As the gradient of a sum is: all strides are 0."""
    return torch.zeros((), dtype=dtype).expand(shape)


def turned(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))


strides = pytest.mark.parametrize("new", [dense, expanded, turned])


@pytest.fixture(scope="module")
def w() -> Tensor:
    return torch.randn(GROUPS, N, K).bfloat16()


@strides
def test_products(new: New, w: Tensor) -> None:
    assert jitgen.grouped_gemm(new(0, K), w, offs=OFFS).shape == (0, N)
    assert jitgen.grouped_gemm(new(0, K), w, m_indices=new(0, dtype=INT)).shape == (0, N)
    assert jitgen.grouped_gemm(new(GROUPS, 0, K), w, masked_m=OFFS).shape == (GROUPS, 0, N)
    out = new(0, N)
    assert jitgen.grouped_gemm(new(0, K), w, offs=OFFS, out=out) is out


@strides
def test_quantised_products(new: New, w: Tensor) -> None:
    b, b_scale = quantize.per_block(w)
    scale = new(0, K // 128, dtype=torch.float32)
    assert jitgen.grouped_gemm(new(0, K, dtype=FP8), b, scale, b_scale, offs=OFFS).shape == (0, N)
    prepacked = quantize.prepack_mxfp4_from(w.float(), layout=BLayout.WIDE1)
    assert jitgen.grouped_gemm(new(0, K), prepacked, offs=OFFS).shape == (0, N)
    assert jitgen.grouped_gemm(new(GROUPS, 0, K), prepacked, masked_m=OFFS).shape == (GROUPS, 0, N)


@strides
def test_gradients(new: New, w: Tensor) -> None:
    """The gradient of a sum was refused for strides that no caller had given."""
    for given, shape in (
        ({"offs": OFFS}, (0, K)),
        ({"m_indices": torch.zeros(0, dtype=INT)}, (0, K)),
        ({"masked_m": OFFS}, (GROUPS, 0, K)),
    ):
        x, b = new(*shape).clone().requires_grad_(), w.clone().requires_grad_()
        jitgen.grouped_gemm(x, b, **given).sum().backward()

        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert b.grad is not None
        assert not b.grad.any()


@strides
def test_the_gradient_of_weights(new: New) -> None:
    ragged = jitgen.grouped_gemm_wgrad(new(0, N), new(0, K), offs=OFFS)
    masked = jitgen.grouped_gemm_wgrad(new(GROUPS, 0, N), new(GROUPS, 0, K), masked_m=OFFS)

    for found in (ragged, masked):
        assert found.shape == (GROUPS, N, K)
        assert not found.any()


@strides
def test_between_products(new: New) -> None:
    q, scale = jitgen.activation_quantize(new(0, 2 * N), offs=OFFS)
    assert (q.shape, scale.shape) == ((0, N), (0, 1))  # type: ignore[union-attr]
    q, scale = jitgen.activation_quantize(new(GROUPS, 0, 2 * N), masked_m=OFFS)
    assert (q.shape, scale.shape) == ((GROUPS, 0, N), (GROUPS, 0, 1))  # type: ignore[union-attr]
    rows, _ = jitgen.permute_quantize(new(0, N), new(0, dtype=INT), top_k=2, offs=OFFS)
    assert rows.shape == (0, N)


@strides
def test_routes(new: New) -> None:
    found = jitgen.route(new(0, 16, dtype=torch.float32), top_k=2)
    assert found.topk_ids.shape == (0, 2)
    assert not found.offs.any()
    assert not jitgen.sort_pairs(new(0, 2, dtype=INT), experts=16).offs.any()


@strides
def test_sums(new: New) -> None:
    """Of no tokens, and of tokens none of whose rows are here."""
    weights = torch.ones(3, 2)
    none = jitgen.combine(new(0, N), new(0, 2, dtype=INT), new(0, 2, dtype=torch.float32))
    assert none.shape == (0, N)
    elsewhere = torch.full((3, 2), -1, dtype=INT)
    assert not jitgen.combine(new(0, N), elsewhere, weights).any()
    shared = torch.randn(3, N).bfloat16()
    assert torch.equal(jitgen.combine(new(0, N), elsewhere, weights, shared=shared), shared)


@strides
def test_quantising(new: New) -> None:
    for quantise in (quantize.mxfp8, quantize.mxfp4, quantize.nvfp4, quantize.per_token_group):
        for shape in ((0, K), (GROUPS, 0, K)):
            assert quantise(new(*shape))[0].shape[:-1] == shape[:-1]


@strides
@pytest.mark.parametrize("form", ["bf16", "block128"])
def test_layers(new: New, form: str) -> None:
    case = make(form)
    hidden, experts = case.config.hidden, case.config.experts
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=4)
    ids, weights = new(0, 2, dtype=torch.int64), new(0, 2, dtype=torch.float32)

    assert layer(new(0, hidden), weights, ids).shape == (0, hidden)
    counts = torch.zeros(experts, dtype=INT)
    assert layer.experts(new(experts, 0, hidden), counts).shape == (experts, 0, hidden)


@strides
def test_drop_ins(new: New, w: Tensor) -> None:
    turned_w = w.transpose(1, 2)
    assert jitgen.torch.grouped_mm(new(0, K), turned_w, offs=OFFS).shape == (0, N)
    assert jitgen.torch.grouped_mm(new(GROUPS, 0, K), turned_w).shape == (GROUPS, 0, N)
    assert not jitgen.torch.grouped_mm(new(N, 0), new(0, K), offs=OFFS).any()
