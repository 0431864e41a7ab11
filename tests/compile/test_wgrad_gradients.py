# SPDX-License-Identifier: Apache-2.0
"""Gradients of `grouped_gemm_wgrad`, which were refused: right, and found by every tracer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm_wgrad.call import CALL
from jitgen.ops.tracing.library import traced
from tests import needs
from tests.arguments import int32

operation = traced(CALL).operation

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore:Input .* is not a double precision:UserWarning"),
]

G, N, K = 3, 40, 24
NAN = float("nan")


def call(layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """dy, a, and whose rows are whose: one group has none, and some rows belong to none: NaN."""
    torch.manual_seed(0)
    if layout == "offs":
        groups, front, owned = int32(8, 8, 20), (24,), torch.arange(24) < 20
    else:
        groups, front = int32(4, 0, 9), (G, 9)
        owned = torch.arange(9) < groups[:, None]
    pair = (torch.randn(*front, columns).to(dtype) for columns in (N, K))
    dy, a = (each.masked_fill(~owned[..., None], NAN).requires_grad_() for each in pair)
    return dy, a, {layout: groups}


def rows_of(groups: dict[str, Tensor]) -> list[Any]:
    """Return where the rows of each group are."""
    ((layout, ends),) = groups.items()
    starts = [0, *ends.tolist()]
    if layout == "offs":
        return [slice(start, end) for start, end in zip(starts, ends.tolist(), strict=False)]
    return [(g, slice(0, count)) for g, count in enumerate(ends.tolist())]


def expected(
    dy: Tensor, a: Tensor, dout: Tensor, groups: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradients in float64, group by group; 0 in rows of no group."""
    dy, a, dout = dy.detach().double(), a.detach().double(), dout.double()
    ddy, da = torch.zeros_like(dy), torch.zeros_like(a)
    for rows, matrix in zip(rows_of(groups), dout, strict=True):
        ddy[rows], da[rows] = a[rows] @ matrix.T, dy[rows] @ matrix
    return ddy, da


@pytest.mark.parametrize("layout", ["offs", "masked_m"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_right(layout: str, dtype: torch.dtype) -> None:
    dy, a, groups = call(layout, dtype)
    out = jitgen.grouped_gemm_wgrad(dy, a, **groups, out_dtype=dtype)
    dout = torch.randn(out.shape).to(dtype)
    out.backward(dout)  # type: ignore[no-untyped-call]

    near = torch.finfo(dtype).eps * 8  # of the largest value: sums over tens of columns
    for found, wanted in zip((dy.grad, a.grad), expected(dy, a, dout, groups), strict=True):
        assert found is not None
        assert found.dtype is dtype
        assert (found.double() - wanted).abs().max() < near * wanted.abs().max()
        assert torch.equal(found[wanted == 0], torch.zeros_like(found[wanted == 0]))


@pytest.mark.parametrize("wanting", ["dy", "a"])
def test_only_what_is_asked_for(wanting: str) -> None:
    """The other product is not computed, and what it needs is not kept."""
    dy, a, groups = call("offs")
    given = {"dy": dy.detach(), "a": a.detach()}
    given[wanting].requires_grad_()
    out = jitgen.grouped_gemm_wgrad(**given, **groups, out_dtype=torch.float32)
    kept = [each for each in out.grad_fn.saved_tensors if each is not None]  # type: ignore[union-attr]
    out.sum().backward()  # type: ignore[no-untyped-call]  # a gradient that is spread from one value

    assert len(kept) == 2  # the other operand, and offs
    ones = torch.ones(G, N, K)
    wanted = dict(zip(("dy", "a"), expected(dy, a, ones, groups), strict=True))[wanting]
    assert torch.allclose(given[wanting].grad.double(), wanted, rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("layout", ["offs", "masked_m"])
def test_gradcheck(layout: str) -> None:
    """In torch's own way, as far as differences of float32 go."""
    dy, a, groups = call(layout)
    dy, a = (x.detach()[..., :5].nan_to_num(0.5).clone().requires_grad_() for x in (dy, a))

    def product(dy: Tensor, a: Tensor) -> Tensor:
        return jitgen.grouped_gemm_wgrad(dy, a, **groups, out_dtype=torch.float32)

    options: dict[str, Any] = {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-2, "fast_mode": True}
    assert torch.autograd.gradcheck(product, (dy, a), **options)


@pytest.mark.parametrize(
    "run",
    [
        lambda f, x: make_fx(f)(*x)(*x),
        lambda _, x: operation(x[0], x[1], x[2]),
        lambda f, x: torch.compile(f, fullgraph=True, backend="aot_eager")(*x),
    ],
    ids=["make_fx", "operation", "compile"],
)
def test_under_tracers(run: Callable[..., Tensor]) -> None:
    dy, a, groups = call("offs", torch.bfloat16)

    def product(dy: Tensor, a: Tensor, offs: Tensor) -> Tensor:
        return jitgen.grouped_gemm_wgrad(dy, a, offs=offs)

    given = dy, a, groups["offs"]
    found, wanted = (
        torch.autograd.grad(each.float().square().sum(), (dy, a))
        for each in (run(product, given), product(*given))
    )
    assert all(map(torch.equal, found, wanted))


def test_under_torch_func() -> None:
    dy, a, groups = call("offs", torch.bfloat16)

    def loss(dy: Tensor, a: Tensor) -> Tensor:
        return jitgen.grouped_gemm_wgrad(dy, a, **groups).float().square().sum()

    wanted = torch.autograd.grad(loss(dy, a), (dy, a))
    found = torch.func.grad(loss, argnums=(0, 1))(dy.detach(), a.detach())
    assert all(map(torch.equal, found, wanted))


def test_results_of_another_type() -> None:
    """A gradient in float32 is rounded to the operands' type before it is multiplied."""
    dy, a, groups = call("offs", torch.bfloat16)
    out = jitgen.grouped_gemm_wgrad(dy, a, **groups, out_dtype=torch.float32)
    dout = torch.randn(out.shape)
    found = torch.autograd.grad(out, (dy, a), dout, retain_graph=True)
    again = torch.autograd.grad(out, (dy, a), dout.bfloat16().float())

    assert all(each.dtype is torch.bfloat16 for each in found)
    assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("wanting", [0, 1])
def test_twice_is_refused(wanting: int) -> None:
    dy, a, groups = call("offs")
    out = jitgen.grouped_gemm_wgrad(dy, a, **groups, out_dtype=torch.float32)
    (first,) = torch.autograd.grad(out.square().sum(), (dy, a)[wanting], create_graph=True)

    assert torch.isfinite(first).all()
    with pytest.raises(InputError, match="gradients of grouped_gemm_wgrad have no gradient"):
        first.sum().backward()  # type: ignore[no-untyped-call]


def test_of_what_is_written_to_out_there_is_none() -> None:
    """At the first call, and once shapes are known; without autograd it is computed."""
    dy, a, groups = call("offs", torch.bfloat16)
    out = torch.empty(G, N, K, dtype=torch.bfloat16)
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=r"dy: must not require a gradient, .* `out`"):
            jitgen.grouped_gemm_wgrad(dy, a.detach(), **groups, out=out)
        jitgen.grouped_gemm_wgrad(dy.detach(), a.detach(), **groups, out=out)
