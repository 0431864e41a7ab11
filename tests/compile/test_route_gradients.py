# SPDX-License-Identifier: Apache-2.0
"""The gradient of `route`, of logits through the weights of the chosen: it was refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config.route import COMPUTED
from jitgen.errors import InputError
from jitgen.ops.route import gradients, reference
from tests import needs

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

TOKENS, EXPERTS, TOP_K, VOCABULARY = 21, 16, 4, 40


def logits(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return (2 * torch.randn(TOKENS, EXPERTS)).to(dtype)


def table() -> dict[str, Tensor]:
    """Experts by a table: one that is there twice, one that there is not, a token id too many."""
    torch.manual_seed(1)
    found = torch.randint(EXPERTS, (VOCABULARY, TOP_K), dtype=torch.int32)
    found[:, 1] = found[:, 0]
    found[3, 2] = EXPERTS
    ids = torch.arange(TOKENS, dtype=torch.int32) % VOCABULARY
    ids[5] = VOCABULARY
    return {"token_ids": ids, "hash_table": found}


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"routed_scaling_factor": 2.5},
    "softcap": {"softcap": 3.0},
    "bias": {"correction_bias": torch.linspace(-1, 1, EXPERTS)},
    "groups": {"expert_groups": 4, "top_groups": 2},
    "table": table(),
    "as they are": {"renormalize": False, "routed_scaling_factor": 0.5},
    "as they are, table, softcap": {"renormalize": False, "softcap": 3.0, **table()},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_scoring = pytest.mark.parametrize("scoring", COMPUTED, ids=str)


def options(kind: str, scoring: str) -> dict[str, Any]:
    return {"top_k": TOP_K, "scoring": str(scoring), **KINDS[kind]}


def weights_of(values: Tensor, given: dict[str, Any], dw: Tensor) -> Tensor:
    """A loss that is different for each weight."""
    return (jitgen.route(values, **given).topk_weights * dw).sum()


@every_kind
@every_scoring
def test_beside_autograd_of_the_reference(kind: str, scoring: str) -> None:
    given = options(kind, scoring)
    values = logits().double().add(8.0 * (scoring == "identity")).requires_grad_()
    expected = reference.route(values, **given)
    dw = torch.randn(TOKENS, TOP_K)
    (wanted,) = torch.autograd.grad((expected.topk_weights * dw).sum(), values)

    leaf = values.detach().float().requires_grad_()
    routing = jitgen.route(leaf, **given)
    (found,) = torch.autograd.grad((routing.topk_weights * dw).sum(), leaf)
    assert torch.equal(routing.topk_ids, expected.topk_ids)
    assert found.dtype is torch.float32
    assert (found - wanted).abs().max() < 5e-5 * wanted.abs().max()


@every_kind
@every_scoring
def test_gradcheck(kind: str, scoring: str) -> None:
    """The formulas in float64, beside differences of the weights for experts that stay chosen."""
    given = options(kind, scoring)
    values = logits().double().add(8.0 * (scoring == "identity"))
    ids = reference.route(values, **given).topk_ids

    class Weights(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor) -> Tensor:
            ctx.save_for_backward(values)
            scores = reference.scored(reference.softcapped(values, given.get("softcap")), scoring)
            chosen = scores.gather(1, ids.clamp(min=0).long()).where(ids >= 0, 0.0)
            if given.get("renormalize", True):
                chosen = chosen / (chosen.sum(1, keepdim=True) + reference.SMALLEST_SUM)
            return chosen * given.get("routed_scaling_factor", 1.0)

        @staticmethod
        def backward(ctx: Any, *found: Tensor) -> Tensor:
            return gradients.of_logits(
                found[0],
                *ctx.saved_tensors,
                ids,
                scoring=scoring,
                renormalize=given.get("renormalize", True),
                routed_scaling_factor=given.get("routed_scaling_factor", 1.0),
                softcap=given.get("softcap"),
                is_hashed="hash_table" in given,
            )

    assert torch.autograd.gradcheck(Weights.apply, values.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_logits(dtype: torch.dtype) -> None:
    """Their gradient is computed in float32, and rounded once."""
    given, dw = options("plain", "softmax"), torch.randn(TOKENS, TOP_K)
    narrow, wide = logits(dtype).requires_grad_(), logits(dtype).float().requires_grad_()
    for leaf in (narrow, wide):
        weights_of(leaf, given, dw).backward()  # type: ignore[no-untyped-call]

    assert torch.equal(narrow.grad, wide.grad.to(dtype))  # type: ignore[arg-type, union-attr]


def test_under_tracers() -> None:
    given, dw = options("bias", "sigmoid"), torch.randn(TOKENS, TOP_K)
    leaf = logits().requires_grad_()
    (expected,) = torch.autograd.grad(weights_of(leaf, given, dw), leaf)

    def loss(values: Tensor) -> Tensor:
        return weights_of(values, given, dw)

    found = torch.func.grad(loss)(logits())
    graph = make_fx(torch.func.grad(loss))(logits())
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    (of_graph,) = torch.autograd.grad(compiled(leaf), leaf)
    assert torch.equal(found, expected)
    assert torch.equal(graph(logits()), expected)
    assert torch.equal(of_graph, expected)


def test_loads_are_counted_once() -> None:
    """In the forward alone, and the same with a gradient and without."""
    loads = []
    for leaf in (logits(), logits().requires_grad_()):
        load = torch.zeros(EXPERTS, dtype=torch.int32)
        found = jitgen.route(leaf, top_k=TOP_K, load=load).topk_weights
        if leaf.requires_grad:
            found.sum().backward()  # type: ignore[no-untyped-call]
        loads.append(load)

    assert torch.equal(*loads)
    assert loads[0].sum() == TOKENS * TOP_K


def test_a_warm_call_is_not_taken() -> None:
    given = options("plain", "softmax")
    without = jitgen.route(logits(), **given)
    found = jitgen.route(logits().requires_grad_(), **given)

    assert not without.topk_weights.requires_grad
    assert found.topk_weights.requires_grad
    assert not found.topk_ids.requires_grad
    assert all(map(torch.equal, found, without))


def test_a_router_trains_through_a_layer() -> None:
    """Logits get what the experts' results say of their weights."""
    torch.manual_seed(0)
    w13, w2 = torch.randn(EXPERTS, 64, 32).bfloat16(), torch.randn(EXPERTS, 32, 32).bfloat16()
    x, leaf = torch.randn(TOKENS, 32).bfloat16(), logits().requires_grad_()
    routing = jitgen.route(leaf, top_k=TOP_K)
    out = jitgen.moe(x, w13, w2, routing.topk_weights, routing.topk_ids, sorting=routing)
    dout = torch.randn(TOKENS, 32).bfloat16()
    (found,) = torch.autograd.grad(out, leaf, dout, retain_graph=True)

    weights = routing.topk_weights.detach().requires_grad_()
    again = jitgen.moe(x, w13, w2, weights, routing.topk_ids)
    (dweights,) = torch.autograd.grad(again, weights, dout)
    assert torch.equal(torch.autograd.grad(routing.topk_weights, leaf, dweights)[0], found)
    assert found.any(1).all()


def test_a_bias_has_none() -> None:
    bias, words = torch.zeros(EXPERTS).requires_grad_(), r"correction_bias: .* experts are chosen"
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            jitgen.route(logits(), top_k=TOP_K, correction_bias=bias)


def test_what_is_written_to_out_has_none() -> None:
    out, words = jitgen.route(logits(), top_k=TOP_K), r"logits: .* what is written to out has none"
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            jitgen.route(logits().requires_grad_(), top_k=TOP_K, out=out)
