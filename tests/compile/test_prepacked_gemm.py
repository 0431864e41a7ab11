# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` with prepacked weights on real cpu kernels, against float64."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from jitgen import quantize
from jitgen.config import Layout
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem, Tile
from jitgen.config.prepacked import PrepackedFormat
from jitgen.ops.grouped_gemm.call import grouped_gemm
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.targets.fp4_space import OPERANDS
from tests.problems import verify

pytestmark = pytest.mark.usefixtures("shared_cache")

ROWS = [
    [0, 5, 0, 19, 0],  # empty groups first, last and between
    [17],
    [0, 0],
]
SIZES = ((136, 288), (200, 416), (8, 32), (64, 128))
SUM_BITS = 21
"""
Float32 sums of up to 416 products, one after another, lose a bit more than `ACCUMULATOR_BITS` says;
float32 results show it.
"""

SOME = [
    ("ragged", "bf16_e2m1_mx32_bf16_asnone_bwide1", True),
    ("masked", "e4m3x2_e2m1_mx32_f16_asrow_bexact1", False),
    ("contiguous", "e4m3_e2m1_mx32_f32_asblock128_bfolded1", True),
    ("masked", "bf16_int4_group32_bf16_asnone_bwide1", True),
    ("ragged", "bf16_int4_group128_f32_asnone_bwide1", False),
    ("contiguous", "e4m3x2_int4_group32_bf16_asrow_bexact1", True),
    ("ragged", "e4m3_int4_group128_f16_asblock128_bexact1", False),
    ("ragged", "bf16_e2m1_nv16_bf16_asnone_bwide1", True),
    ("masked", "e4m3_e2m1_nv16_bf16_asblock128_bexact1", False),
    ("contiguous", "bf16_e4m3_mx32_f32_asnone_bwide1", False),
    ("ragged", "e4m3x2_e4m3_mx32_bf16_asrow_bexact1", True),
]
ALL = [
    (layout, each.to_name(), bias)
    for layout, each, bias in product(Layout, OPERANDS, (False, True))
]


def problem_of(kind: tuple[str, str, bool], rows: list[int], n: int, k: int) -> GroupedGemmProblem:
    layout, types, bias = kind
    name = f"grouped_gemm_{layout}_{types}_t8x128x128_c1x1_acc1_cpu"
    operands = GroupedGemmConfig.parse(name)[0].operands
    form = PrepackedFormat.of(operands.b_dtype, operands.scale_granularity)
    assert form is not None
    return GroupedGemmProblem(
        layout=layout,
        groups=len(rows),
        m=sum(rows),
        n=n,
        k=-(-k // form.facts.values) * form.facts.values,
        a_dtype=operands.a_dtype,
        b_dtype=operands.b_dtype,
        out_dtype=operands.out_dtype,
        scale_granularity=operands.scale_granularity,
        a_scale_granularity=operands.a_scale_granularity,
        b_layout=operands.b_layout,
        bias=bias,
    )


def check(
    kind: tuple[str, str, bool], tile: Tile, sizes: Iterable[tuple[list[int], tuple[int, int]]]
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
            if is_exact:
                assert solved.wrong() == 0
            else:
                verify(solved, call.out, accumulator_bits=SUM_BITS)


@pytest.mark.parametrize("kind", SOME)
def test_some_kinds(kind: tuple[str, str, bool]) -> None:
    check(kind, Tile(m=8, n=128, k=128), zip(ROWS, SIZES, strict=False))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ALL)
def test_all_kinds(kind: tuple[str, str, bool]) -> None:
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


def test_a_graph_keeps_the_format() -> None:
    """What says how values are stored is an argument of the operation, behind all others."""
    packed = torch.randint(-(2**31), 2**31, (2, 64, 16), generator=torch.Generator().manual_seed(0))
    weights = quantize.prepack_int4(packed.int(), torch.ones(2, 64, 4).bfloat16(), layout="wide1")
    x, offs = torch.randn(8, 128).bfloat16(), OFFS
    call = lambda x: grouped_gemm(x, weights, offs=offs)  # noqa: E731
    graph = make_fx(call)(x)

    (node,) = (each for each in graph.graph.nodes if "prepacked" in str(each.target))
    assert "int4_32" in (*node.args, *node.kwargs.values())
    assert torch.equal(graph(x), call(x))


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
