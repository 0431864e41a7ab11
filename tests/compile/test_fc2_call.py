# SPDX-License-Identifier: Apache-2.0
"""`jitgen.moe_fc2_dense` on the cpu: results, what it takes, refusals, memo, tracers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config import Arch, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Operands, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import InputError
from jitgen.ops.moe_fc2_dense.samples import BLOCKS, Sizes, make, of_sizes
from jitgen.ops.sums import SolvedSums
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SIZES = [
    Sizes(tokens=33, experts=12, n=136, k=272, top_k=2),
    Sizes(tokens=1, experts=3, n=5, k=7, top_k=1),
    Sizes(tokens=9, experts=6, n=130, k=129, top_k=6),
    Sizes(tokens=4, experts=2, n=16, k=16, top_k=0),
]
"""Odd, smaller than a block, experts without tokens, tokens without experts."""


def solved(sizes: Sizes = SIZES[0], **options: Any) -> SolvedSums:
    return of_sizes(BLOCKS, sizes, is_exact=True, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("out_dtype", [DType.BF16, DType.F16, DType.F32])
def test_right(sizes: Sizes, out_dtype: DType) -> None:
    """Bit for bit where sums are exact, else within their roundings; the second call is warm."""
    config = MoEFc2DenseConfig(operands=Operands(out_dtype=out_dtype), tile=Tile(m=8, n=128, k=128))
    for is_exact in (True, False):
        case = make(config, sizes, is_exact=is_exact)
        out = jitgen.moe_fc2_dense(**case.arguments)

        assert out is case.out
        assert case.wrong() == 0


@pytest.mark.parametrize("tile", [Tile(m=16, n=16, k=128), Tile(m=64, n=64, k=128)], ids=str)
def test_every_tile_is_right(tile: Tile) -> None:
    case = solved()
    jitgen.moe_fc2_dense(**case.arguments, config=MoEFc2DenseConfig(tile=tile))

    assert case.wrong() == 0


IN_ATOMS = {
    "mxfp8": Operands(scale_granularity=ScaleGranularity.MX32),
    "mxfp4": Operands(
        a_dtype=DType.E2M1, b_dtype=DType.E2M1, scale_granularity=ScaleGranularity.MX32
    ),
    "nvfp4": Operands(
        a_dtype=DType.E2M1, b_dtype=DType.E2M1, scale_granularity=ScaleGranularity.NV16
    ),
}


@pytest.mark.parametrize(
    "name", ["mxfp8", "nvfp4", pytest.param("mxfp4", marks=pytest.mark.nightly)]
)
class TestScalesInAtoms:
    SIZES = (*SIZES[::3], Sizes(tokens=130, experts=3, n=130, k=136, top_k=1))

    def test_right(self, name: str) -> None:
        """Also where scales are NaN, of experts that no token has and rows that are no token's."""
        for sizes, is_exact in product(self.SIZES, (True, False)):
            case = of_sizes(IN_ATOMS[name], sizes, is_exact=is_exact)
            jitgen.moe_fc2_dense(**case.arguments)

            assert case.wrong() == 0

    def test_as_the_grouped_gemm(self, name: str) -> None:
        """What it gives for each expert, added up; pairs of e2m1 may have their own type."""
        case = of_sizes(IN_ATOMS[name], self.SIZES[0], is_exact=True, spoils_idle=False)
        given, tokens = case.arguments, self.SIZES[0].tokens
        experts = len(given["b"])
        if name != "mxfp8":
            given |= {n: given[n].view(torch.float4_e2m1fn_x2) for n in ("a", "b")}
        each = jitgen.grouped_gemm(
            given["a"].transpose(0, 1).contiguous(),
            *(given[n] for n in ("b", "a_scale", "b_scale")),
            masked_m=torch.full((experts,), tokens, dtype=torch.int32),
            alpha=torch.ones(experts) if name == "nvfp4" else None,
            out_dtype=torch.float32,
        )
        expected = torch.einsum("te,etn->tn", given["router_weights"], each)

        assert torch.equal(jitgen.moe_fc2_dense(**given), expected.bfloat16())

    def test_too_few_atoms_are_refused(self, name: str) -> None:
        """By a warm call, too: the entry does not see it."""
        case = of_sizes(IN_ATOMS[name], self.SIZES[-1], is_exact=True)
        jitgen.moe_fc2_dense(**case.arguments)
        few = case.arguments["a_scale"][:, :1]
        with pytest.raises(InputError, match=r"a_scale: must have shape \(3, 2, "):
            jitgen.moe_fc2_dense(**case.arguments | {"a_scale": few})


def test_scales_are_for_their_operands() -> None:
    case = of_sizes(IN_ATOMS["nvfp4"], SIZES[3], is_exact=True).arguments
    wrong = case | {n: case[n].view(torch.float8_e4m3fn) for n in ("a", "b")}
    with pytest.raises(InputError, match=r"b_scale: .* nv16 scales, .* of e2m1 \(got e4m3"):
        jitgen.moe_fc2_dense(**wrong)


def test_experts_of_no_token_are_not_read() -> None:
    """Their weights are NaN; where the samples leave them alone, nothing changes."""
    spoilt, kept = solved(), solved(spoils_idle=False)
    assert spoilt.arguments["b"].float().isnan().any()

    assert jitgen.moe_fc2_dense(**spoilt.arguments).equal(jitgen.moe_fc2_dense(**kept.arguments))


def test_any_order_of_scales_and_weights_serves() -> None:
    """By a copy where kernels cannot read it, and a may lie experts first."""
    case = solved()
    given = case.arguments
    given["a_scale"], given["router_weights"] = (
        given["a_scale"].contiguous(),
        given["router_weights"].contiguous(),
    )
    given["a"] = given["a"].transpose(0, 1).contiguous().transpose(0, 1)
    for _ in range(2):
        given["out"].fill_(float("nan"))
        jitgen.moe_fc2_dense(**given)

        assert case.wrong() == 0


def test_a_layer_without_any_copy() -> None:
    """What SwiGLU and its quantisation give, and weights as the grouped GEMM has them."""
    tokens, experts, n, k = 6, 4, 32, 192
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, experts, 2 * k, generator=chance).bfloat16()
    w = torch.randn(experts, n, k, generator=chance)
    everybody = torch.full((experts,), tokens, dtype=torch.int32)
    q, a_scale = jitgen.activation_quantize(x.transpose(0, 1), masked_m=everybody)
    b, b_scale = jitgen.quantize.per_block(w)
    alpha = torch.rand(experts, 8, generator=chance).T[:tokens]
    assert a_scale is not None
    assert jitgen.quantize.is_kernel_layout(a_scale)

    out = jitgen.moe_fc2_dense(q.transpose(0, 1), b, a_scale, b_scale, alpha)
    y = torch.nn.functional.silu(x[..., :k].float()) * x[..., k:].float()
    expected = torch.einsum("te,tei,eni->tn", alpha, y, w)
    assert (out.float() - expected).norm() < 0.05 * expected.norm()
    # the same as the grouped GEMM and a sum over experts
    each = jitgen.grouped_gemm(q, b, a_scale, b_scale, masked_m=everybody, out_dtype=torch.float32)
    assert torch.allclose(out.float(), torch.einsum("te,etn->tn", alpha, each), rtol=1e-2, atol=0.1)


def test_no_tokens_launch_nothing() -> None:
    given: dict[str, Any] = {**solved().arguments, "out": None}
    given |= {name: given[name][:0] for name in ("a", "router_weights")}
    given["a_scale"] = given["a_scale"][:, :0]

    assert jitgen.moe_fc2_dense(**given).shape == (0, 136)


def test_warm_calls_validate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those with another number of tokens in a bucket that was seen."""
    case, fewer = solved(), solved(Sizes(tokens=32, experts=12, n=136, k=272, top_k=2))
    more = solved(Sizes(tokens=40, experts=12, n=136, k=272, top_k=2))
    with jitgen.Session():
        jitgen.moe_fc2_dense(**case.arguments)
        jitgen.moe_fc2_dense(**fewer.arguments)

        def run(*_: Any) -> Any:
            raise AssertionError("a warm call was validated")

        monkeypatch.setitem(jitgen.moe_fc2_dense.__globals__, "run", run)
        for each in (case, more):
            each.out.fill_(float("nan"))
            jitgen.moe_fc2_dense(**each.arguments)
            assert each.wrong() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"a": torch.zeros(33, 12, 272)},
            "a: must be float4_e2m1fn_x2 or float8_e4m3fn or uint8 on cpu",
        ),
        ({"a": torch.zeros(33, 272).to(torch.float8_e4m3fn)}, "a: must have 3 dimensions"),
        ({"a": torch.zeros(33, 11, 272).to(torch.float8_e4m3fn)}, "a: must have shape"),
        ({"b": torch.zeros(12, 136, 272)}, "b: must be float8_e4m3fn"),
        ({"b": torch.zeros(12, 0, 272).to(torch.float8_e4m3fn)}, "b: must have N of at least 1"),
        ({"b_scale": torch.zeros(12, 136)}, "b_scale: must be float32 with 3 dimensions"),
        ({"b_scale": torch.zeros(12, 3, 3)}, "b_scale: must have shape"),
        ({"b_scale": torch.zeros(12, 2, 3).bfloat16()}, "b_scale: must be float32 with"),
        ({"a_scale": torch.zeros(33, 12, 3)}, r"a_scale: must have shape \(12, 33, 3\)"),
        ({"a_scale": None}, "a_scale: must be a torch tensor"),
        ({"router_weights": torch.zeros(12, 33)}, r"router_weights: must have shape \(33, 12\)"),
        ({"router_weights": torch.zeros(33, 12).half()}, "router_weights: must be float32"),
        (
            {"router_weights": torch.zeros(33, 12, requires_grad=True)},
            "router_weights: must not require a gradient",
        ),
        ({"out": torch.zeros(33, 130)}, "out: must have shape"),
        ({"out": torch.zeros(33, 136).double()}, "out: must be"),
        ({"out": None, "out_dtype": torch.int8}, "out_dtype: must be"),
        ({"config": "fc2"}, "config: must be a MoEFc2DenseConfig"),
        (
            {
                "config": MoEFc2DenseConfig(
                    operands=Operands(out_dtype=DType.F32), tile=Tile(m=8, n=16, k=128)
                )
            },
            "config: must be for what the tensors are, out_dtype bf16",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    """Also when a right call was remembered before."""
    given = solved().arguments
    jitgen.moe_fc2_dense(**given)

    with pytest.raises(InputError, match=message) as caught:
        jitgen.moe_fc2_dense(**(given | change))
    assert caught.value.__context__ is None


def test_an_output_of_one_row_for_all_is_refused() -> None:
    """Before anything is remembered: a warm call asks the entry, which sees no overlap."""
    given = {**solved().arguments, "out": torch.zeros(136).bfloat16().expand(33, 136)}
    with jitgen.Session(), pytest.raises(InputError, match="out: must not overlap itself"):
        jitgen.moe_fc2_dense(**given)


def test_fake_tensors_get_shapes() -> None:
    given: dict[str, Any] = {**solved().arguments, "out": None}
    with FakeTensorMode() as mode:
        faked: dict[str, Any] = {
            name: x if x is None else mode.from_tensor(x) for name, x in given.items()
        }
        out = jitgen.moe_fc2_dense(**faked, out_dtype=torch.float16)

    assert (out.shape, out.dtype) == ((33, 136), torch.float16)


def _layer(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, alpha: Tensor) -> Tensor:
    return jitgen.moe_fc2_dense(a, b, a_scale, b_scale, alpha).float() + 1


def test_make_fx_records_the_operation() -> None:
    *given, _ = solved().tensors
    graph = make_fx(_layer)(*given)

    assert "jitgen.moe_fc2_dense" in graph.code
    assert torch.equal(graph(*given), _layer(*given))


@needs.newer_dynamo
def test_torch_compile_sees_one_operation() -> None:
    """With a config of its own, too, and into an output."""
    *given, out = solved().tensors
    config = MoEFc2DenseConfig(tile=Tile(m=8, n=16, k=128))

    def into(*tensors: Tensor) -> Tensor:
        return jitgen.moe_fc2_dense(*tensors, out=out, config=config) * 2

    for function in (_layer, into):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")

        assert torch.equal(compiled(*given), function(*given))


def test_the_reference_is_a_sum_over_experts() -> None:
    case = solved(spoils_idle=False)
    a, b, a_scale, b_scale, alpha, _ = (x.float() for x in case.tensors)
    rows = a * a_scale.transpose(0, 1).repeat_interleave(128, -1)[..., :272]
    columns = b * b_scale.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :136, :272]
    expected = torch.einsum("te,tei,eni->tn", alpha, rows, columns)
    given: dict[str, Any] = {**case.arguments, "out": None}

    assert jitgen.reference.moe_fc2_dense(**given, out_dtype=torch.float32).equal(expected)
    assert (
        jitgen.select(
            jitgen.MoEFc2DenseProblem(groups=12, m=33, n=136, k=272), Arch.CPU
        ).config.tile.m
        >= 32
    )
