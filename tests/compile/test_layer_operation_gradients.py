# SPDX-License-Identifier: Apache-2.0
"""Gradients of the operations of a layer that are called alone, which were refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.errors import InputError
from jitgen.layer.reference import relative_error
from jitgen.ops.activation_quantize.reference import activated
from jitgen.ops.combine import gradients
from tests import needs
from tests.arguments import int32

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 21, 5, 2, 64, 32


def pairs() -> jitgen.Sorting:
    """Rows of three of five experts; other pairs have none."""
    torch.manual_seed(0)
    ids = torch.randn(TOKENS, EXPERTS).topk(TOP_K)[1].int()
    return jitgen.sort_pairs(ids, experts=EXPERTS, first_expert=1, local_experts=3)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


class TestGather:
    def test_right(self) -> None:
        """The sum of a token's rows, whatever rows of no expert hold."""
        order = pairs()
        x = draw(TOKENS, HIDDEN).requires_grad_()
        named: dict[str, Any] = {"offs": order.offs, "inverse": order.inverse, "format": "none"}
        rows, scale = jitgen.permute_quantize(x, order.permutation, top_k=TOP_K, **named)
        end = int(order.offs[-1])
        dy = draw(TOKENS * TOP_K, HIDDEN)
        dy[end:] = float("nan")
        (found,) = torch.autograd.grad(rows, x, dy)
        tokens = order.permutation[:end].long() // TOP_K
        expected = torch.zeros(TOKENS, HIDDEN).index_add_(0, tokens, dy[:end].float())

        assert scale is None
        assert relative_error(found, expected) < 0.005

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"format": "block128"}, "x: .* quantised rows have none: gather by format='none'"),
            ({"inverse": None}, "x: .* it is found by the inverse: give inverse="),
        ],
        ids=["format", "inverse"],
    )
    def test_what_has_none(self, change: dict[str, Any], words: str) -> None:
        order, x = pairs(), draw(TOKENS, HIDDEN).requires_grad_()
        named = {"offs": order.offs, "inverse": order.inverse, "format": "none", **change}
        for _ in ("fresh", "remembered"):
            with pytest.raises(InputError, match=words):
                jitgen.permute_quantize(x, order.permutation, top_k=TOP_K, **named)


class TestActivation:
    @pytest.mark.parametrize("layout", ["offs", "masked_m"])
    def test_right(self, layout: str) -> None:
        """0 in rows of no group, whatever x and dy hold there."""
        torch.manual_seed(0)
        shape = (9,) if layout == "offs" else (2, 9)
        groups, owned = int32(4, 7), torch.arange(9) < 7
        if layout == "masked_m":
            owned = torch.arange(9) < groups[:, None]
        x, dy = draw(*shape, 2 * INTERMEDIATE), draw(*shape, INTERMEDIATE)
        x[~owned], dy[~owned] = float("nan"), float("nan")
        x.requires_grad_()
        y, _ = jitgen.activation_quantize(x, **{layout: groups}, format="none")  # type: ignore[arg-type]
        (found,) = torch.autograd.grad(y, x, dy)
        wide = x.detach().float().where(owned[..., None], 0.0).requires_grad_()
        (expected,) = torch.autograd.grad(
            activated(wide), wide, dy.float().where(owned[..., None], 0.0)
        )

        assert not found[~owned].any()
        assert relative_error(found, expected) < 0.005

    def test_what_has_none(self) -> None:
        x = draw(9, 2 * INTERMEDIATE).requires_grad_()
        for _ in ("fresh", "remembered"):
            with pytest.raises(InputError, match=r"x: .* quantised results have none: activate by"):
                jitgen.activation_quantize(x, offs=int32(4, 7))


class TestCombine:
    def test_right(self) -> None:
        """Of all that it adds up; a row in two places gets the sum, rows of none 0."""
        order = pairs()
        inverse = order.inverse.clone()
        inverse[3], inverse[4, 0] = 0, 0
        given = {
            "y": draw(TOKENS * TOP_K, HIDDEN),
            "topk_weights": torch.rand(TOKENS, TOP_K),
            "shared": draw(TOKENS, HIDDEN),
            "shared_weights": torch.rand(TOKENS),
        }
        dout, found = draw(TOKENS, HIDDEN), []
        for run in (jitgen.combine, plain):
            leaves = {name: each.clone().requires_grad_() for name, each in given.items()}
            out = run(inverse=inverse, **leaves)  # type: ignore[operator]
            found.append(torch.autograd.grad(out, [*leaves.values()], dout.to(out.dtype)))

        for mine, right in zip(*found, strict=True):
            assert relative_error(mine, right) < 0.005
        unused = torch.ones(TOKENS * TOP_K, dtype=torch.bool)
        unused[inverse[inverse >= 0].long()] = False
        assert unused.any()
        assert not found[0][0][unused].any()

    def test_no_rows(self) -> None:
        y, inverse = draw(0, HIDDEN), torch.full((3, TOP_K), -1, dtype=torch.int32)
        dout = draw(3, HIDDEN)

        assert gradients.of_rows(dout, inverse, torch.ones(3, TOP_K), y.shape).shape == y.shape
        assert not gradients.of_weights(dout, inverse, y).any()

    def test_what_is_written_to_out_has_none(self) -> None:
        y, order = draw(TOKENS * TOP_K, HIDDEN).requires_grad_(), pairs()
        for _ in ("fresh", "remembered"):
            with pytest.raises(InputError, match=r"y: .* what is written to out has none"):
                jitgen.combine(
                    y, order.inverse, torch.ones(TOKENS, TOP_K), out=draw(TOKENS, HIDDEN)
                )


def plain(
    y: Tensor, inverse: Tensor, topk_weights: Tensor, shared: Tensor, shared_weights: Tensor
) -> Tensor:
    """The sums in float32 torch, which autograd follows."""
    rows = y.float()[inverse.clamp(min=0).long()].where(inverse[..., None] >= 0, 0.0)
    return (rows * topk_weights[..., None]).sum(1) + shared.float() * shared_weights[:, None]


def by_hand(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, order: jitgen.Sorting) -> Tensor:
    named: dict[str, Any] = {"offs": order.offs}
    rows, _ = jitgen.permute_quantize(
        x, order.permutation, top_k=TOP_K, inverse=order.inverse, format="none", **named
    )
    h = jitgen.grouped_gemm(rows, w13, **named)
    q, _ = jitgen.activation_quantize(h, format="none", **named)
    return jitgen.combine(jitgen.grouped_gemm(q, w2, **named), order.inverse, weights)


def test_a_chain_by_hand_beside_a_layer() -> None:
    """Launch by launch, eagerly and in a graph: near to the gradients of the layer as one node."""
    order = pairs()
    torch.manual_seed(1)
    given = [
        draw(TOKENS, HIDDEN),
        draw(3, 2 * INTERMEDIATE, HIDDEN) / 8,
        draw(3, HIDDEN, INTERMEDIATE) / 6,
        torch.rand(TOKENS, TOP_K),
    ]
    leaves = [each.clone().requires_grad_() for each in given]
    dout, ids = draw(TOKENS, HIDDEN), torch.zeros(TOKENS, TOP_K, dtype=torch.int32)
    found = torch.autograd.grad(by_hand(*leaves, order), leaves, dout)  # type: ignore[arg-type]
    x, w13, w2, weights = leaves
    out = jitgen.moe(x, w13, w2, weights, ids, experts=EXPERTS, first_expert=1, sorting=order)
    expected = torch.autograd.grad(out, leaves, dout)

    def loss(*values: Tensor) -> Tensor:
        return (by_hand(*values, order) * dout).float().sum()  # type: ignore[arg-type]

    graph = make_fx(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(*given)
    for mine, right, of_graph in zip(found, expected, graph(*given), strict=True):
        assert relative_error(mine, right) < 0.01
        assert torch.equal(of_graph, mine)
    torch._dynamo.reset()
    compiled = torch.compile(by_hand, fullgraph=True, backend="aot_eager")
    again = torch.autograd.grad(compiled(*leaves, order), leaves, dout)
    assert all(map(torch.equal, again, found))
