# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` under torch's tracers: the right graph or one clear error, and never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile
from jitgen.errors import ConfigError, InputError
from jitgen.ops.grouped_gemm.call import CALL, grouped_gemm
from jitgen.ops.tracing.library import traced
from jitgen.runtime import devices
from jitgen.runtime.session import current
from tests.arguments import MISTAKES, good, int32

operation, operation_out = traced(CALL).operation, traced(CALL).operation_out

pytestmark = [
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:FutureWarning"),
]

CONFIG = GroupedGemmConfig(
    layout="ragged",
    operands=Operands(a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor"),
    tile=Tile(m=8, n=64, k=128),
)


def operands(rows: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and offs, other values for other rows."""
    torch.manual_seed(rows)
    a, b = torch.randn(rows, 72).bfloat16(), torch.randn(3, 40, 72).bfloat16()
    return a, b, int32(rows // 3, rows // 3, rows)


def layer(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return grouped_gemm(a * 2, b, offs=offs) + 1


def layer_into(a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> Tensor:
    return grouped_gemm(a * 2, b, offs=offs, out=out) + 1


def empty(rows: int = 24) -> Tensor:
    return torch.zeros(rows, 40, dtype=torch.bfloat16)


def faked(mode: FakeTensorMode, given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: mode.from_tensor(value) if isinstance(value, Tensor) else value
        for name, value in given.items()
    }


def calls(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def message(call: Callable[[], object]) -> str:
    with pytest.raises((InputError, ConfigError)) as raised:
        call()
    return f"{raised.type.__name__} {raised.value}"


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("layout", ["ragged", "contiguous", "masked"])
def test_fake_tensors_never_reach_a_kernel(layout: str, *, is_inside: bool) -> None:
    """Nor where a real call of the same shapes is remembered, nor outside of their mode."""
    given = good(layout)
    mode = FakeTensorMode()
    shape = (*given["a"].shape[:-1], given["b"].shape[1])
    out = torch.empty(shape, dtype=torch.float32)
    for _ in ("fresh", "remembered"):
        before = len(current.get().memo)
        given_fake, fake_out = faked(mode, given), mode.from_tensor(out)
        with mode if is_inside else torch.no_grad():
            result = grouped_gemm(**given_fake, out_dtype=torch.float16)
            into = grouped_gemm(**given_fake, out=fake_out)

        assert isinstance(result, FakeTensor)
        assert (result.shape, result.dtype) == (shape, torch.float16)
        assert into is fake_out
        assert len(current.get().memo) == before
        for _ in range(2):
            grouped_gemm(**given, out_dtype=torch.float16)
            grouped_gemm(**given, out=out)


@pytest.mark.parametrize("name", ["a", "b", "a_scale", "b_scale", "offs", "out"])
def test_one_fake_tensor_among_real_ones(name: str) -> None:
    """Torch refuses the mixture in its own words; a remembered launch is not tried."""
    given = good() | {"out": torch.empty(24, 136, dtype=torch.bfloat16)}
    grouped_gemm(**given)
    fake = faked(FakeTensorMode(), {name: given[name]})

    with pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors"):
        grouped_gemm(**given | fake)


def test_unknown_sizes() -> None:
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    a, b, offs = (mode.from_tensor(x, static_shapes=False) for x in operands())
    result = grouped_gemm(a, b, offs=offs)

    assert (result.shape[0], result.shape[1]) == (a.shape[0], b.shape[1])
    assert all(isinstance(size, torch.SymInt) for size in result.shape)
    assert not shapes.guards, "it fixes no size"


@pytest.mark.parametrize(("_name", "given", "_words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistakes_are_told_alike(_name: str, given: dict[str, Any], _words: str) -> None:
    mode = FakeTensorMode()

    assert message(lambda: grouped_gemm(**faked(mode, given))) == message(
        lambda: grouped_gemm(**given)
    )


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(tracing_mode: str) -> None:
    """The graph holds the product, whatever ran before, and serves other values."""
    other = tuple(torch.flip(x, (0,)) for x in operands()[:2]) + operands()[2:]
    for _ in ("fresh", "remembered"):
        graph = make_fx(layer, tracing_mode=tracing_mode)(*operands())
        into = make_fx(layer_into, tracing_mode=tracing_mode)(*operands(), empty())
        out = empty()

        assert calls(graph)[1] == "jitgen.grouped_gemm.default"
        assert calls(into)[1] == "jitgen.grouped_gemm.out"
        assert torch.equal(graph(*other), layer(*other))
        assert torch.equal(into(*other, out), layer(*other))
        assert torch.equal(out + 1, layer(*other))


def test_make_fx_of_symbols_serves_other_sizes() -> None:
    graph = make_fx(layer, tracing_mode="symbolic")(*operands(24))

    assert torch.equal(graph(*operands(33)), layer(*operands(33)))


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
def test_jit_trace() -> None:
    for _ in ("fresh", "remembered"):
        traced = torch.jit.trace(layer, operands(24))
        into = torch.jit.trace(layer_into, (*operands(24), empty(24)))
        out = empty(33)

        assert torch.equal(traced(*operands(33)), layer(*operands(33)))
        assert torch.equal(into(*operands(33), out), layer(*operands(33)))
        assert torch.equal(out + 1, layer(*operands(33)))


@pytest.mark.parametrize("batched", ["a", "b", "offs", "out"])
def test_vmap_is_refused(batched: str) -> None:
    a, b, offs = operands()
    given = {"a": a, "b": b, "offs": offs, "out": empty()}
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=f"{batched}: must not be batched by torch.vmap"):
            torch.vmap(lambda x: grouped_gemm(**given | {batched: x}))(
                torch.stack([given[batched]] * 2)
            )
        grouped_gemm(**given)


def floats() -> dict[str, Any]:
    """Operands of which each can require a gradient, scales too."""
    a, b, offs = operands()
    scales = {"a_scale": torch.ones(1), "b_scale": torch.ones(3)}
    return {"a": a, "b": b, "offs": offs, "out": empty(), **scales}


@pytest.mark.parametrize("name", ["a", "b", "a_scale", "b_scale", "out"])
def test_gradients_are_refused(name: str) -> None:
    """No layer trains wrongly: not at the first call, and not once shapes are known."""
    given = floats()
    wanting = given | {name: given[name].clone().requires_grad_()}
    words = rf"{name}: must not require a gradient.*torch.no_grad\(\), or give {name}.detach\(\)"
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            grouped_gemm(**wanting)
        with torch.no_grad():
            assert torch.equal(grouped_gemm(**wanting), grouped_gemm(**given))
        with torch.inference_mode():
            grouped_gemm(**wanting)
    wanting[name] = wanting[name].detach()

    assert not grouped_gemm(**wanting).requires_grad


def test_gradients_are_refused_of_what_was_computed() -> None:
    """An activation has a gradient to pass on, though it is no parameter."""
    a, b, offs = operands()
    scales = {"a_scale": torch.ones(1), "b_scale": torch.ones(3)}
    grouped_gemm(a, b, **scales, offs=offs)

    with pytest.raises(InputError, match="a: must not require a gradient"):
        grouped_gemm(a.clone().requires_grad_() * 2, b, **scales, offs=offs)


def scaled(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    """A product that has no gradient."""
    return grouped_gemm(a * 2, b, torch.ones(1), torch.ones(3), offs=offs) + 1


@pytest.mark.parametrize(
    "trace",
    [
        lambda f, x: make_fx(f)(*x),
        torch.jit.trace,
        lambda f, x: torch.func.grad(lambda a: f(a, *x[1:]).float().sum())(x[0]),
        lambda _, x: operation(x[0], x[1], torch.ones(1), torch.ones(3), x[2]),
        lambda _, x: operation_out(empty(), x[0], x[1], offs=x[2]),
    ],
    ids=["make_fx", "jit", "grad", "operation", "operation_out"],
)
def test_tracers_refuse_gradients(trace: Callable[..., object]) -> None:
    """Where there are none; test_gradients.py has those that there are."""
    a, b, offs = operands()
    scaled(a, b, offs)

    with pytest.raises(InputError, match="a: must not require a gradient"):
        trace(scaled, (a.requires_grad_(), b, offs))


class Watch(TorchDispatchMode):
    """Notes which operations it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, call: Any, _types: Any, given: Any = (), named: Any = None
    ) -> object:
        self.seen.append(str(call))
        return call(*given, **(named or {}))


def test_a_mode_sees_each_call() -> None:
    """Calls that it was told not to see are not remembered for those that it is to see."""
    expected = layer(*operands())
    with Watch() as watch:
        with no_dispatch():
            hidden = layer(*operands())

        assert torch.equal(hidden, expected)
        assert "jitgen.grouped_gemm.default" not in watch.seen
        for count in (1, 2):
            layer(*operands())
            assert watch.seen.count("jitgen.grouped_gemm.default") == count


class Plain(Tensor):
    """A subclass with nothing of its own, as libraries mark weights."""


def test_subclasses_that_dispatch_nothing_are_tensors() -> None:
    a, b, offs = operands()
    expected = layer(a, b, offs)
    for weight in (torch.nn.Parameter(b, requires_grad=False), b.as_subclass(Plain)):
        for _ in range(2):
            assert torch.equal(layer(a, weight, offs).as_subclass(Tensor), expected)


def test_configs_are_names_in_graphs() -> None:
    a, b, offs = operands()
    graph = make_fx(lambda a: grouped_gemm(a, b, offs=offs, config=CONFIG))(a)
    (node,) = [node for node in graph.graph.nodes if node.op == "call_function"]

    assert node.args[-1] == CONFIG.name(Arch.CPU)
    for _ in range(3):
        assert torch.equal(graph(a), grouped_gemm(a, b, offs=offs, config=CONFIG))
    assert len(current.get().memo) == 2, "a launch for the graph's config, and one for ours"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fast", "is no kernel name"),
        (CONFIG.name(Arch.SM_90A), "config: must be for cpu, as the tensors are"),
        (CONFIG.name(Arch.CPU).replace("ragged", "masked"), "config: must be for ragged"),
    ],
)
def test_names_of_other_configs_are_refused(name: str, words: str) -> None:
    a, b, offs = operands()
    mode = FakeTensorMode()
    for x in ((a, b, offs), tuple(mode.from_tensor(x) for x in (a, b, offs))):
        with pytest.raises((InputError, ConfigError), match=words):
            operation(x[0], x[1], offs=x[2], config=name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU says what it is")
def test_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors may lie on a GPU that this machine lacks: then JITGEN_ARCH says which."""
    with FakeTensorMode():
        a, b, narrow_a, narrow_b = (
            torch.empty(shape, device="cuda", dtype=torch.bfloat16)
            for shape in ((8, 64), (2, 32, 64), (8, 63), (2, 32, 63))
        )
        offs = torch.empty(2, device="cuda", dtype=torch.int32)
        with pytest.raises(InputError, match=r"a: .*no GPU .* set JITGEN_ARCH"):
            grouped_gemm(a, b, offs=offs)
        monkeypatch.setenv("JITGEN_ARCH", "sm_90a")

        assert devices.find(a.device, current.get()).arch is Arch.SM_90A
        assert grouped_gemm(a, b, offs=offs).device == a.device
        with pytest.raises(InputError, match="b: must have K a multiple of 8 on sm_90a"):
            grouped_gemm(narrow_a, narrow_b, offs=offs)


@pytest.mark.parametrize("given", ["bf16", "into"])
def test_torch_accepts_the_registration(given: str) -> None:
    """Schema, mutation, fake results and compiled ones agree, says torch's own check."""
    a, b, offs = operands()
    if given == "into":
        torch.library.opcheck(operation_out, (empty(), a, b, None, None, offs))
    else:
        torch.library.opcheck(operation, (a, b, torch.ones(1), torch.ones(3), offs))
