# SPDX-License-Identifier: Apache-2.0
"""Every operation under every tracer of torch's: as an eager call, for other rows too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from jitgen.errors import InputError
from tests import needs
from tests.traced import EVERY, OPERATIONS, OTHER_ROWS, ROWS, Traced

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning"),
]

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
every = pytest.mark.parametrize("traced", EVERY, ids=str)
OFTEN = {"gemm", "gemm_out", "silu", "mxfp8"}
"""An operation of each kind, for every push: with one result, an output, two results, a word."""

some = pytest.mark.parametrize(
    "traced",
    [pytest.param(each, marks=() if each.name in OFTEN else pytest.mark.nightly) for each in EVERY],
    ids=str,
)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()


def parts(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple | list) else (result,)


def agree(found: Any, traced: Traced, rows: int, *, is_exported: bool = False) -> None:
    """
    Compare the results of what was traced with those of an eager call, all of their bits, and their
    strides; an exported program's are the same of the operations' own results alone.
    """
    given, own = traced.tensors(rows), traced.tensors(rows)
    for mine, other in zip(parts(found(*given)), parts(traced.call(*own)), strict=True):
        assert torch.equal(mine, other)
        assert mine.stride() == other.stride() or (is_exported and not traced.targets)
    for mine, other in zip(given, own, strict=True):
        assert torch.equal(mine.float(), other.float()), "what it writes to"


def targets(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


@every
def test_fake_tensors(traced: Traced) -> None:
    given = traced.tensors(ROWS)
    real, mode = parts(traced.call(*given)), FakeTensorMode()
    with mode:
        fake = parts(traced.call(*(mode.from_tensor(x) for x in given)))

    for mine, other in zip(fake, real, strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (other.shape, other.dtype, other.stride())


@some
@pytest.mark.parametrize(
    "tracing_mode",
    [*(pytest.param(mode, marks=pytest.mark.nightly) for mode in ("real", "fake")), "symbolic"],
)
def test_make_fx(traced: Traced, tracing_mode: str) -> None:
    graph = make_fx(traced.call, tracing_mode=tracing_mode)(*traced.tensors(ROWS))

    assert set(traced.targets) <= set(targets(graph))
    for rows in (ROWS, *(OTHER_ROWS if tracing_mode == "symbolic" else ())):
        agree(graph, traced, rows)


@some
def test_one_graph_serves_every_number_of_rows(traced: Traced) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(traced.call, fullgraph=True, dynamic=True, backend=counter)
    for rows in (ROWS, *OTHER_ROWS):
        agree(function, traced, rows)

    (graph,) = [graph for graph in counter.graphs if targets(graph)]
    assert set(traced.targets) <= set(targets(graph))


@every
@needs_gxx
@pytest.mark.nightly
def test_inductor_with_less_overhead(traced: Traced) -> None:
    """CUDA graphs, where there is a GPU; without one it says so and goes on."""
    function = torch.compile(traced.call, fullgraph=True, dynamic=True, mode="reduce-overhead")
    for rows in (ROWS, *OTHER_ROWS):
        agree(function, traced, rows)


class Module(torch.nn.Module):
    def __init__(self, traced: Traced) -> None:
        super().__init__()
        self.call = traced.call

    def forward(self, *tensors: Tensor) -> Any:
        return self.call(*tensors)


def exported(traced: Traced, *, strict: bool) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=2, max=4096)
    shapes = tuple(None if side is None else {side: rows} for side in traced.rows_of)
    return torch.export.export(
        Module(traced), traced.tensors(ROWS), dynamic_shapes=(shapes,), strict=strict
    )


@some
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_export(traced: Traced, strict: bool) -> None:
    program = exported(traced, strict=strict)

    assert set(traced.targets) <= set(targets(program.graph_module))
    for rows in (ROWS, *OTHER_ROWS) if 0 in traced.rows_of else (ROWS,):
        agree(program.module(), traced, rows, is_exported=True)


_WHOLE = [each for each in EVERY if each.name not in {"per_token_group", "per_block"}]
"""
Without those that cut FP8 rows off behind what fits a vector: of such a graph, all of torch's own
operations, inductor's C++ ahead of time writes wrong bytes there (torch 2.13).
"""


@pytest.mark.parametrize("traced", _WHOLE, ids=str)
@needs_gxx
@pytest.mark.nightly
def test_ahead_of_time(traced: Traced, tmp_path: Path) -> None:
    """AOTInductor's package calls the operation by its name."""
    package = torch._inductor.aoti_compile_and_package(
        exported(traced, strict=False), package_path=str(tmp_path / "layer.pt2")
    )
    loaded = torch._inductor.aoti_load_package(package)
    for rows in (ROWS, *OTHER_ROWS) if 0 in traced.rows_of else (ROWS,):
        agree(loaded, traced, rows, is_exported=True)


@pytest.mark.parametrize("traced", OPERATIONS, ids=str)
def test_vmap_is_refused(traced: Traced) -> None:
    place, name = traced.batched
    given = list(traced.tensors(ROWS))
    sides = [None] * len(given)
    sides[place] = 0  # type: ignore[call-overload]
    given[place] = torch.stack([given[place]] * 2)
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=f"^{name}: must not be batched by torch.vmap, for"):
            torch.vmap(traced.call, in_dims=tuple(sides))(*given)
        traced.call(*traced.tensors(ROWS))


_FP8 = (torch.float8_e4m3fn, torch.float8_e8m0fnu)


class _Caught(TorchDispatchMode):
    """Keeps the first call of an operation of ours, as torch's dispatcher gets it."""

    def __init__(self) -> None:
        super().__init__()
        self.call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None

    def __torch_dispatch__(
        self, call: Any, _types: Any, given: Any = (), named: Any = None
    ) -> object:
        if self.call is None and call.namespace == "jitgen":
            self.call = (call, given, named or {})
        return call(*given, **(named or {}))


@pytest.mark.parametrize("traced", OPERATIONS, ids=str)
def test_torch_accepts_the_registration(traced: Traced) -> None:
    """
    Schema, mutation, fake results, autograd and compiled ones agree, says torch's own check. Its
    look at what is written multiplies tensors, which torch cannot with FP8 ones.
    """
    tensors = traced.tensors(ROWS)
    with _Caught() as caught:
        traced.call(*tensors)
    assert caught.call is not None
    operation, given, named = caught.call

    assert str(operation) == traced.targets[0]
    has_fp8 = any(isinstance(x, Tensor) and x.dtype in _FP8 for x in (*given, *named.values()))
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        operation, given, named, test_utils=checks if has_fp8 else ("test_schema", *checks)
    )
