# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` with prepacked MXFP4 weights on real cpu kernels, against float64."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from jitgen import quantize
from jitgen.config import Layout
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.targets.fp4_space import OPERANDS

pytestmark = pytest.mark.usefixtures("shared_cache")

ROWS = [
    [0, 5, 0, 19, 0],  # empty groups first, last and between
    [17],
    [0, 0],
]
SIZES = ((136, 288), (200, 416), (8, 32), (64, 128))
SOME = [
    ("ragged", "bf16", "none", "wide1", "bf16", True),
    ("masked", "e4m3x2", "row", "exact1", "f16", False),
    ("contiguous", "e4m3", "block128", "folded1", "f32", True),
]
ALL = [
    (layout, each.a_dtype, each.a_scale_granularity, each.b_layout, each.out_dtype, bias)
    for layout, each, bias in product(Layout, OPERANDS, (False, True))
]


def problem_of(kind: tuple[Any, ...], rows: list[int], n: int, k: int) -> GroupedGemmProblem:
    layout, a_dtype, of_a, b_layout, out_dtype, bias = kind
    return GroupedGemmProblem(
        layout=layout,
        groups=len(rows),
        m=sum(rows),
        n=n,
        k=k,
        a_dtype=a_dtype,
        b_dtype="e2m1",
        out_dtype=out_dtype,
        scale_granularity="mx32",
        a_scale_granularity=of_a,
        b_layout=b_layout,
        bias=bias,
    )


def check(
    kind: tuple[Any, ...], tile: Tile, sizes: Iterable[tuple[list[int], tuple[int, int]]]
) -> None:
    """Bit for bit where sums are exact, and near elsewhere; NaNs where one must be."""
    for seed, (rows, (n, k)) in enumerate(sizes):
        problem = problem_of(kind, rows, n, k)
        config = GroupedGemmConfig(
            layout=problem.layout,
            operands=problem.operands,
            tile=tile,
            epilogue=Epilogue(bias=problem.bias),
        )
        for is_exact in (True, False):
            call = random_call(
                problem, rows, is_exact=is_exact, has_spare=True, spoils_idle=True, seed=seed
            )
            solved = Solved.of(call, is_exact=is_exact)
            assert grouped_gemm(**call.arguments, config=config) is call.out
            assert solved.wrong() == 0


@pytest.mark.parametrize("kind", SOME)
def test_some_kinds(kind: tuple[Any, ...]) -> None:
    check(kind, Tile(m=8, n=128, k=128), zip(ROWS, SIZES, strict=False))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ALL)
def test_all_kinds(kind: tuple[Any, ...]) -> None:
    check(kind, Tile(m=16, n=32, k=128), product(ROWS, SIZES))


def layer(a: Tensor, scale: Tensor, offs: Tensor) -> Tensor:
    return grouped_gemm(a, WEIGHTS, scale, offs=offs) + 1


WEIGHTS = quantize.prepack_mxfp4_from(
    torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
)
OFFS = torch.tensor([3, 8], dtype=torch.int32)


def operands() -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(8, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    return *quantize.split_bf16(x), OFFS


def test_a_warm_call_sees_other_sizes() -> None:
    """Of as many values as before, but another K: the compiled entry sees blocks alone."""
    q, scale, offs = operands()
    first = grouped_gemm(q, WEIGHTS, scale, offs=offs)
    assert torch.equal(grouped_gemm(q, WEIGHTS, scale, offs=offs), first)
    with pytest.raises(ValueError, match="as b was prepacked with K = 96"):
        grouped_gemm(q.view(12, 2, 64), WEIGHTS, torch.ones(12, 2), offs=offs)
    with pytest.raises(ValueError, match="b_scale: is part of prepacked weights"):
        grouped_gemm(q, WEIGHTS, scale, torch.ones(2), offs=offs)
    fewer = grouped_gemm(q[:6], WEIGHTS, scale[:6], offs=offs.clamp(max=6))
    assert torch.equal(fewer, first[:6])


def test_no_rows() -> None:
    q, scale, offs = operands()

    assert grouped_gemm(q[:0], WEIGHTS, scale[:0], offs=offs * 0).shape == (0, 64)


def test_a_tracer_sees_one_operation() -> None:
    given = operands()
    graph = make_fx(layer)(*given)

    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert names == ["jitgen.grouped_gemm_prepacked.default", "aten.add.Tensor"]
    assert torch.equal(graph(*given), layer(*given))


def test_a_graph_that_an_older_version_saved_runs() -> None:
    importlib.import_module("jitgen.torch")
    given = operands()
    graph = make_fx(layer)(*given)
    for node in graph.graph.nodes:
        if str(node.target) == "jitgen.grouped_gemm_prepacked.default":
            node.target = torch.ops.jitgen.grouped_gemm_prepared.default
    graph.recompile()

    with pytest.warns(DeprecationWarning, match="grouped_gemm_prepared is now grouped_gemm_pre"):
        found = graph(*given)

    assert torch.equal(found, layer(*given))


@pytest.mark.nightly
def test_torch_compile_and_export_see_one_operation() -> None:
    given = operands()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*given), layer(*given))

    class Layer(torch.nn.Module):
        def forward(self, a: Tensor, scale: Tensor, offs: Tensor) -> Tensor:
            return layer(a, scale, offs)

    rows = torch.export.Dim("rows")
    exported = torch.export.export(
        Layer(), given, dynamic_shapes=({0: rows}, {0: rows}, None)
    ).module()
    assert torch.equal(exported(*given), layer(*given))
