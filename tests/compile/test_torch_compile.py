# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` in torch.compile and torch.export: one operation in one graph, for every M."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen import quantize
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from tests import needs
from tests.arguments import int32
from tests.compile.test_tracers import CONFIG, empty, layer, operands

if TYPE_CHECKING:  # it takes two seconds, in every process that collects tests
    from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = [
    pytest.mark.usefixtures("shared_cache"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
]

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=[needs_gxx, pytest.mark.nightly])]
"""Inductor compiles C++ for 20 seconds before its first graph runs."""
ROWS = (24, 33, 45)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()


def run(
    call: Callable[..., Tensor], given: list[tuple[Any, ...]], backend: str, **options: Any
) -> CompileCounterWithBackend:
    """Run `call` compiled to one graph and as it is, compare, and return the backend's count."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(call, fullgraph=True, backend=counter, **options)
    for arguments in given:
        copies = [x.clone() if isinstance(x, Tensor) else x for x in arguments]

        assert torch.equal(compiled(*arguments), call(*copies))
        for mine, other in zip(arguments, copies, strict=True):
            assert not isinstance(mine, Tensor) or torch.equal(mine.float(), other.float())
    return counter


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_serves_every_m(backend: str) -> None:
    counter = run(layer, [operands(rows) for rows in ROWS], backend, dynamic=True)
    targets = [str(node.target) for node in counter.graphs[0].graph.nodes]

    assert counter.frame_count == 1
    assert "jitgen.grouped_gemm.default" in targets


def test_sizes_become_symbols_at_the_second_m() -> None:
    """Without `dynamic` the first graph is for one M, and the second for all others."""
    counter = run(layer, [operands(rows) for rows in (*ROWS, 51)], "aot_eager")

    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_out(backend: str) -> None:
    """A tensor of the caller's is written, and one of the graph's own."""

    def into(a: Tensor, b: Tensor, offs: Tensor, out: Tensor) -> Tensor:
        own = torch.zeros_like(out)
        jitgen.grouped_gemm(a * 3, b, offs=offs, out=own)
        return own.float() + jitgen.grouped_gemm(a * 2, b, offs=offs, out=out).float()

    given = [(*operands(rows), empty(rows)) for rows in ROWS]

    assert run(into, given, backend, dynamic=True).frame_count == 1


def test_scales_and_the_masked_layout() -> None:
    """Scales keep the strides that kernels read, and one count of rows a group is a symbol too."""

    def masked(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor, rows: Tensor) -> Tensor:
        return (
            jitgen.grouped_gemm(
                *(a, b, of_a, of_b),
                masked_m=rows,
                expected_m=a.shape[1],
                min_latency=True,
                numerics="invariant",
            )
            * 2
        )

    given = []
    for rows in (25, 30, 43):
        a, a_scale = quantize.per_token_group(torch.randn(2, rows, 300))
        b, b_scale = quantize.per_block(torch.randn(2, 40, 300))
        given.append((a, b, a_scale, b_scale, int32(rows, rows)))

    counter = run(masked, given, "aot_eager", dynamic=True)
    nodes = [node for graph in counter.graphs for node in graph.graph.nodes]
    (product,) = (node for node in nodes if str(node.target) == "jitgen.grouped_gemm.default")

    assert counter.frame_count == 1
    assert product.args[-1] == "invariant"


@needs.newer_dynamo
@pytest.mark.parametrize("dynamic", [None, True])
def test_configs(dynamic: bool | None) -> None:
    """Another config object is another graph; tile sizes are never taken for sizes of tensors."""

    def forced(a: Tensor, b: Tensor, offs: Tensor, config: GroupedGemmConfig) -> Tensor:
        return jitgen.grouped_gemm(a, b, offs=offs, config=config)

    other = GroupedGemmConfig.from_json(CONFIG.to_json() | {"tile": {"m": 16, "n": 64, "k": 128}})
    given = [(*operands(), config) for config in (CONFIG, other, CONFIG)]
    counter = run(forced, given, "eager", dynamic=dynamic)
    names = [
        node.args[-3]  # before bias and numerics
        for graph in counter.graphs
        for node in graph.graph.nodes
        if str(node.target) == "jitgen.grouped_gemm.default"
    ]

    assert names == [CONFIG.name(Arch.CPU), other.name(Arch.CPU)]


def test_rows_that_are_counted_when_it_runs() -> None:
    """M hangs on values: rules that need it wait until the operation runs."""

    def chosen(a: Tensor, b: Tensor, offs: Tensor, mask: Tensor) -> Tensor:
        return jitgen.grouped_gemm(a[mask], b, offs=offs) + 1

    a, b, _ = operands()
    given = [(a, b, int32(count, count, count), torch.arange(24) < count) for count in (6, 24, 11)]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert run(chosen, given, "aot_eager").frame_count == 1


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(operands()[1])
        self.config = CONFIG

    def forward(self, a: Tensor, offs: Tensor) -> Tensor:
        y = jitgen.grouped_gemm(
            a, self.weight, torch.ones(1), torch.ones(3), offs=offs, config=self.config
        )
        return y * 2


@needs.newer_dynamo
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_are_refused(backend: str) -> None:
    """Weights of a module ask for gradients, and products with scales have none."""
    from torch._dynamo.exc import TorchRuntimeError

    experts = Experts()
    compiled = torch.compile(experts, fullgraph=True, backend=backend)
    a, _, offs = operands()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(compiled(a, offs), experts(a, offs))

    with pytest.raises(TorchRuntimeError, match=r"InputError\('b: must not require a gradient"):
        compiled(a, offs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"offs": torch.zeros(3)}, "offs: must be int32"),
        ({"a": torch.zeros(24, 50).bfloat16()}, r"a: must have shape \(24, 72\)"),
        ({"m_indices": int32(1)}, "m_indices: exactly one of offs, m_indices and masked_m"),
        ({"offs": None}, "offs: one of offs, m_indices and masked_m is required"),
        ({"config": "fast"}, "config: must be a GroupedGemmConfig"),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], words: str) -> None:
    a, b, offs = operands()
    given = {"a": a, "b": b, "offs": offs, **change}
    compiled = torch.compile(jitgen.grouped_gemm, fullgraph=True, backend="eager")

    with pytest.raises(Exception, match=f"InputError.*{words}"):
        compiled(**given)


@needs.newer_dynamo
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    """An exported model holds the operation and serves other M."""
    experts = Experts().requires_grad_(requires_grad=False)
    a, _, offs = operands()
    any_m = ({0: torch.export.Dim("M", min=2, max=4096)}, None)
    exported = torch.export.export(experts, (a, offs), dynamic_shapes=any_m, strict=strict)
    other, _, ends = operands(45)

    assert "jitgen.grouped_gemm.default" in str(exported.graph)
    assert torch.equal(exported.module()(other, ends), experts(other, ends))
