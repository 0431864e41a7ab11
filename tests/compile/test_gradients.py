# SPDX-License-Identifier: Apache-2.0
"""Gradients of `grouped_gemm`: right, under every tracer, and refused where there are none."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.call import CALL
from jitgen.ops.tracing.library import traced
from tests import needs
from tests.arguments import int32

operation = traced(CALL).operation

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Input .* is not a double precision:UserWarning"),
]

G, N, K = 3, 40, 24
LAYOUTS = ("offs", "masked_m", "m_indices")


def call(layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """a, b, and whose rows are whose: one group has none, and some rows belong to none."""
    torch.manual_seed(0)
    b = torch.randn(G, N, K).to(dtype)
    if layout == "offs":
        return torch.randn(24, K).to(dtype), b, {layout: int32(8, 8, 20)}
    if layout == "masked_m":
        return torch.randn(G, 9, K).to(dtype), b, {layout: int32(4, 0, 9)}
    owners = torch.full((384,), -1, dtype=torch.int32)
    owners[:5], owners[128:200] = 2, 0
    return torch.randn(384, K).to(dtype), b, {layout: owners}


def owned(a: Tensor, groups: dict[str, Tensor]) -> Tensor:
    """Which rows belong to a group, with one dimension more."""
    ((layout, tensor),) = groups.items()
    rows = torch.arange(a.shape[-2])
    found = {
        "offs": lambda: rows < tensor[-1],
        "masked_m": lambda: rows < tensor[:, None],
        "m_indices": lambda: tensor >= 0,
    }[layout]()
    return found[..., None]


def expected(a: Tensor, b: Tensor, dy: Tensor, groups: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The gradients in float64, group by group."""
    a, b, dy = a.detach().double(), b.detach().double(), dy.double()
    ((layout, tensor),) = groups.items()
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    start = 0
    for g in range(G):
        rows: Any = (tensor == g).nonzero().flatten()
        if layout == "offs":
            start, rows = int(tensor[g]), slice(start, int(tensor[g]))
        elif layout == "masked_m":
            rows = (g, slice(0, int(tensor[g])))
        da[rows] = dy[rows] @ b[g]
        db[g] = dy[rows].T @ a[rows]
    return da, db


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        *((layout, torch.float32) for layout in LAYOUTS),
        ("offs", torch.bfloat16),
        ("offs", torch.float16),
        *(pytest.param(x, torch.bfloat16, marks=pytest.mark.nightly) for x in LAYOUTS[1:]),
    ],
    ids=str,
)
def test_right(layout: str, dtype: torch.dtype) -> None:
    """A gradient that is NaN in padding rows stays there; those of a are 0, not left alone."""
    a, b, groups = call(layout, dtype)
    a.requires_grad_(), b.requires_grad_()
    y = jitgen.grouped_gemm(a, b, **groups, out_dtype=dtype)
    rows = owned(a, groups)
    dy = torch.randn(y.shape).to(dtype).masked_fill(~rows, float("nan"))
    y.backward(dy)  # type: ignore[no-untyped-call]

    bits = torch.finfo(dtype).eps * 8  # of the largest value: sums over tens of rows
    for found, wanted in zip((a.grad, b.grad), expected(a, b, dy, groups), strict=True):
        assert found is not None
        assert found.dtype is dtype
        assert (found.double() - wanted).abs().max() < bits * wanted.abs().max()
    assert not a.grad[~rows[..., 0]].any()  # type: ignore[index]
    assert not b.grad[1].any()  # type: ignore[index]  # a group without rows


def test_float32_operands_as_documented() -> None:
    """
    A product of float32 operands was bfloat16 by default, and so was its gradient: a layer that was
    moved from torch lost bits. It is float32, unless bfloat16 is asked for.
    """
    a, b, groups = call("offs")
    a.requires_grad_(), b.requires_grad_()
    rows = owned(a, groups)
    errors = []
    for out_dtype in (torch.bfloat16, None):
        y = jitgen.grouped_gemm(a, b, **groups, out_dtype=out_dtype)
        assert y.dtype is (out_dtype or torch.float32)
        dy = torch.rand(y.shape).masked_fill(~rows, 0.0)
        da, db = torch.autograd.grad((y * dy).masked_fill(~rows, 0.0).sum(), (a, b))
        assert da.dtype is db.dtype is torch.float32
        wanted = expected(a, b, dy, groups)
        errors.append((db - wanted[1]).norm() / wanted[1].norm())

    assert errors[0] > 2.0**-12  # bfloat16 has 8 bits
    assert errors[1] < 2.0**-20


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        ("offs", torch.float32),
        ("m_indices", torch.bfloat16),
        *(pytest.param(x, torch.float32, marks=pytest.mark.nightly) for x in LAYOUTS[1:]),
    ],
    ids=str,
)
def test_of_a_bias(layout: str, dtype: torch.dtype) -> None:
    """Sums of rows in float32, whatever the operands are; the other gradients do not change."""
    a, b, groups = call(layout, dtype)
    bias = torch.randn(G, N).requires_grad_()
    a.requires_grad_(), b.requires_grad_()
    y = jitgen.grouped_gemm(a, b, **groups, bias=bias, out_dtype=dtype)
    rows = owned(a, groups)
    dy = torch.randn(y.shape).to(dtype).masked_fill(~rows, float("nan"))
    da, db, dbias = torch.autograd.grad(y, (a, b, bias), dy)
    plain = jitgen.grouped_gemm(a, b, **groups, out_dtype=dtype)
    _, wanted = expected(torch.ones_like(a), b, dy, groups)

    assert dbias.dtype is torch.float32
    assert (dbias.double() - wanted[..., 0]).abs().max() < 1e-6 * wanted.abs().max()
    assert not dbias[1].any()  # a group without rows
    assert all(map(torch.equal, (da, db), torch.autograd.grad(plain, (a, b), dy)))


def test_of_a_bias_alone() -> None:
    """Neither operand is kept for it, in eager mode and in a graph; a warm call is not taken."""
    a, b, groups = call("offs", torch.bfloat16)
    bias = torch.randn(G, N)
    jitgen.grouped_gemm(a, b, **groups, bias=bias)
    bias.requires_grad_()

    def product(bias: Tensor) -> Tensor:
        return jitgen.grouped_gemm(a, b, **groups, bias=bias)[:20].float().square().sum()

    y = jitgen.grouped_gemm(a, b, **groups, bias=bias)
    kept = [each for each in y.grad_fn.saved_tensors if each is not None]  # type: ignore[union-attr]
    (found,) = torch.autograd.grad(product(bias), bias)

    assert len(kept) == 1  # offs
    assert torch.equal(torch.func.grad(product)(bias.detach()), found)
    assert torch.equal(torch.autograd.grad(make_fx(product)(bias)(bias), bias)[0], found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str) -> None:
    """In float32, as far as differences of float32 go: of every input, and in torch's own way."""
    a, b, groups = call(layout)
    a, b = a[..., :6].clone().requires_grad_(), b[:, :5, :6].clone().requires_grad_()
    bias = torch.randn(G, 5).requires_grad_()
    rows = owned(a, groups)

    def product(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        y = jitgen.grouped_gemm(a, b, **groups, bias=bias, out_dtype=torch.float32)
        return y.masked_fill(~rows, 0.0)

    given = (a, b, bias)
    assert torch.autograd.gradcheck(product, given, eps=1e-2, atol=1e-2, rtol=1e-2, fast_mode=True)


@pytest.mark.parametrize("wanting", ["a", "b"])
def test_only_what_is_asked_for(wanting: str) -> None:
    """The other product is not computed, and what it needs is not kept."""
    a, b, groups = call("offs")
    given = {"a": a, "b": b}
    given[wanting].requires_grad_()
    y = jitgen.grouped_gemm(**given, **groups, out_dtype=torch.float32)
    kept = [each for each in y.grad_fn.saved_tensors if each is not None]  # type: ignore[union-attr]
    y[:20].sum().backward()  # type: ignore[no-untyped-call]

    assert len(kept) == 2  # the other operand, and offs
    assert given[wanting].grad is not None
    assert [each.grad is None for each in given.values()].count(True) == 1


def test_results_of_another_type() -> None:
    """A gradient in float32 is rounded to the operands' type before it is multiplied."""
    a, b, groups = call("offs", torch.bfloat16)
    a.requires_grad_(), b.requires_grad_()
    y = jitgen.grouped_gemm(a, b, **groups, out_dtype=torch.float32)
    dy = torch.randn(y.shape)
    grads = torch.autograd.grad(y, (a, b), dy, retain_graph=True)
    again = torch.autograd.grad(y, (a, b), dy.bfloat16().float())

    assert all(each.dtype is torch.bfloat16 for each in grads)
    assert all(map(torch.equal, grads, again))


def test_what_was_computed_passes_gradients_on() -> None:
    """Operands need not be leaves, and a dy that is spread from one value is read as it means."""
    a, b, groups = call("offs")
    a, b = a.requires_grad_(), b.requires_grad_()
    y = jitgen.grouped_gemm(a * 2, b.exp(), **groups, out_dtype=torch.float32)
    y[:20].sum().backward()  # type: ignore[no-untyped-call]
    dy = owned(a, groups).expand(24, N).float()
    da, db = expected(a * 2, b.exp(), dy, groups)

    assert torch.allclose(a.grad.double(), da * 2, rtol=1e-5)  # type: ignore[union-attr]
    assert torch.allclose(b.grad.double(), db * b.detach().exp(), rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]


def test_the_session_of_the_call_serves_its_gradients() -> None:
    """Autograd goes back in threads of its own, which entered no session."""
    a, b, groups = call("offs")
    a.requires_grad_(), b.requires_grad_()
    with jitgen.Session() as session:
        y = jitgen.grouped_gemm(a, b, **groups, out_dtype=torch.float32)
    kept = len(session.memo)
    thread = Thread(target=lambda: y[:20].sum().backward())  # type: ignore[no-untyped-call]
    thread.start()
    thread.join()

    assert a.grad is not None
    assert len(session.memo) == kept + 2


@pytest.mark.parametrize(
    "run",
    [
        lambda f, x: make_fx(f)(*x)(*x),
        # Its check would compare padding rows, which are never written.
        lambda f, x: torch.jit.trace(f, x, check_trace=False)(*x),
        lambda _, x: operation(x[0], x[1], None, None, x[2]),
    ],
    ids=["make_fx", "jit", "operation"],
)
def test_under_tracers(run: Callable[..., Tensor]) -> None:
    a, b, groups = call("offs", torch.bfloat16)
    wanted = _gradients(a, b, groups["offs"], lambda f, x: f(*x))

    assert all(map(torch.equal, _gradients(a, b, groups["offs"], run), wanted))


def test_under_torch_func() -> None:
    a, b, groups = call("offs", torch.bfloat16)
    wanted = _gradients(a, b, groups["offs"], lambda f, x: f(*x))

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return jitgen.grouped_gemm(a, b, **groups)[:20].float().square().sum()

    assert all(map(torch.equal, torch.func.grad(loss, argnums=(0, 1))(a, b), wanted))


def _gradients(a: Tensor, b: Tensor, offs: Tensor, run: Callable[..., Tensor]) -> list[Tensor]:
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()

    def product(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return jitgen.grouped_gemm(a, b, offs=offs)

    y = run(product, (a, b, offs))
    return list(torch.autograd.grad(y[:20].float().square().sum(), (a, b)))


class Experts(torch.nn.Module):
    """Two products and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = torch.nn.Parameter(torch.randn(G, N, K).bfloat16())
        self.down = torch.nn.Parameter(torch.randn(G, K, N).bfloat16())

    def forward(self, a: Tensor, offs: Tensor) -> Tensor:
        h = torch.nn.functional.silu(jitgen.grouped_gemm(a, self.up, offs=offs))
        return jitgen.grouped_gemm(h, self.down, offs=offs)


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)]
)
def test_a_compiled_module_trains(backend: str) -> None:
    """One graph forwards and one backwards, with gradients as without a compiler."""
    experts = Experts()
    compiled = torch.compile(experts, fullgraph=True, backend=backend, dynamic=True)
    for rows in (24, 31):
        found = []
        for layer in (experts, compiled):
            torch.manual_seed(rows)
            a = torch.randn(rows, K).bfloat16().requires_grad_()
            layer(a, int32(8, 8, rows)).float().square().sum().backward()
            found.append([a.grad, experts.up.grad, experts.down.grad])
            experts.zero_grad()
        near = {"rtol": 0.0, "atol": 0.0} if backend == "aot_eager" else {"rtol": 0.02, "atol": 1.0}
        for mine, wanted in zip(*found, strict=True):
            assert torch.allclose(mine, wanted, **near)


@pytest.mark.parametrize("wanting", ["a", "b"])
def test_twice_is_refused(wanting: str) -> None:
    """A gradient is given with create_graph, too; only its own gradient is not there."""
    a, b, groups = call("offs")
    given = {"a": a, "b": b}
    given[wanting].requires_grad_()
    y = jitgen.grouped_gemm(**given, **groups, out_dtype=torch.float32)[:20].square().sum()
    (first,) = torch.autograd.grad(y, given[wanting], create_graph=True)

    assert torch.isfinite(first).all()
    with pytest.raises(
        InputError, match="create_graph: gradients of grouped_gemm have no gradient"
    ):
        first.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"b": torch.zeros(3, 40, 24).to(torch.float8_e4m3fn)},
            "a: must not require a gradient, because quantised operands have none: train with",
        ),
        (
            {"a_scale": torch.ones(1), "b_scale": torch.ones(3)},
            "a: must not require a gradient, because products with scales have none: multiply",
        ),
        (
            {"out": torch.zeros(24, 40, dtype=torch.bfloat16)},
            "a: must not require a gradient, because what is written to out has none: leave out",
        ),
    ],
    ids=["fp8", "scales", "out"],
)
def test_what_has_none(change: dict[str, Any], words: str) -> None:
    """At the first call and once shapes are known; without autograd it is computed."""
    a, b, groups = call("offs", torch.bfloat16)
    given = {"a": a, "b": b, **groups, **change}
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            jitgen.grouped_gemm(**{**given, "a": a.clone().requires_grad_()})
        if given["b"].dtype is torch.bfloat16:
            jitgen.grouped_gemm(**given)


def test_a_call_without_gradients_stays_off_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is registered or recorded for inference: a warm call is one tvm-ffi call."""
    from jitgen.ops.grouped_gemm import call as eager

    a, b, groups = call("offs", torch.bfloat16)
    jitgen.grouped_gemm(a, b, **groups)
    with torch.no_grad():
        jitgen.grouped_gemm(a.clone().requires_grad_(), b, **groups)

    def never(*_: Any) -> None:
        raise AssertionError("a warm call does not come here")

    monkeypatch.setattr(type(eager.CALL), "run", never)
    jitgen.grouped_gemm(a, b, **groups)
    with torch.no_grad():
        jitgen.grouped_gemm(a.requires_grad_(), b, **groups)
