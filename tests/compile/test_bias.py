# SPDX-License-Identifier: Apache-2.0
"""`grouped_gemm` with a bias and weights as they were quantised: where there are such kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config import BLayout, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Schedule,
    Tile,
)
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.samples import Solved, random_call
from jitgen.verify import device
from tests import needs
from tests.arguments import int32
from tests.problems import verify_exact

pytestmark = pytest.mark.usefixtures("shared_cache")

WIDE = {
    "a_dtype": DType.BF16,
    "b_dtype": DType.E2M1,
    "scale_granularity": ScaleGranularity.MX32,
    "a_scale_granularity": ScaleGranularity.NONE,
}
BF16 = {"a_dtype": DType.BF16, "scale_granularity": ScaleGranularity.TENSOR}
NVFP4 = {"a_dtype": DType.E2M1, "scale_granularity": ScaleGranularity.NV16}
KINDS = {"bf16 x mxfp4": WIDE, "block128": {}, "nvfp4": NVFP4}
G, N, K = 3, 40, 96


def solved(layout: Layout = Layout.RAGGED, k: int = K, **types: Any) -> Solved:
    """Return a call with a bias, whose result is exact."""
    rows = [3, 0, 6]
    problem = GroupedGemmProblem(layout=layout, groups=G, m=9, n=N, k=k, bias=True, **types)
    call = random_call(problem, rows, is_exact=True, has_spare=True)
    return Solved.of(call, is_exact=True)


def config_of(case: Solved, types: dict[str, Any], **more: Any) -> GroupedGemmConfig:
    operands = GroupedGemmProblem(
        layout=case.call.layout, groups=1, m=1, n=1, k=1, **types
    ).operands
    return GroupedGemmConfig(
        layout=case.call.layout, operands=operands, tile=Tile(m=8, n=32, k=128), **more
    )


@pytest.mark.parametrize(
    "layout",
    [
        each if each == "ragged" else pytest.param(each, marks=pytest.mark.nightly)
        for each in Layout
    ],
)
def test_it_is_added(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a warm call, which takes no second look, and into a tensor that is made for it."""
    case = solved(layout, **WIDE)
    verify_exact(case, jitgen.grouped_gemm(**case.arguments))
    given = {**case.arguments, "out": None}
    jitgen.grouped_gemm(**given)
    case.out.fill_(torch.nan)
    monkeypatch.setattr("jitgen.ops.grouped_gemm.call.CALL", None)

    verify_exact(case, jitgen.grouped_gemm(**case.arguments))
    assert torch.equal(jitgen.grouped_gemm(**given)[case.is_owned], case.out[case.is_owned])


@pytest.mark.parametrize(
    ("layout", "types"),
    [
        (Layout.RAGGED, BF16),
        (Layout.MASKED, {}),
        (Layout.CONTIGUOUS, NVFP4),
        *(
            pytest.param(*others, marks=pytest.mark.nightly)
            for others in (
                (Layout.CONTIGUOUS, {"a_dtype": DType.F32, "scale_granularity": "tensor"}),
                (Layout.RAGGED, {"scale_granularity": "row"}),
                (Layout.MASKED, BF16 | {"b_layout": BLayout.N_MAJOR}),
                (Layout.MASKED, {"scale_granularity": "mx32", "b_dtype": DType.E2M1}),
                (Layout.RAGGED, {"a_dtype": DType.E2M1, "scale_granularity": "mx32"}),
            )
        ),
    ],
    ids=str,
)
def test_it_is_added_beside_other_types(layout: Layout, types: dict[str, Any]) -> None:
    case = solved(layout, **types)
    verify_exact(case, jitgen.grouped_gemm(**case.arguments))


def test_one_row_for_all_groups() -> None:
    """Rows of a bias may lie on each other."""
    case = solved(**BF16)
    one = case.arguments["bias"][:1]
    spread = jitgen.grouped_gemm(**case.arguments | {"bias": one.expand(G, N), "out": None})
    repeated = jitgen.grouped_gemm(**case.arguments | {"bias": one.repeat(G, 1)})
    assert torch.equal(spread[case.is_owned], repeated[case.is_owned])


def test_a_call_without_one_is_another() -> None:
    case = solved(**WIDE)
    plain = {**case.arguments, "bias": None, "out": None}
    for _ in range(2):
        biased = jitgen.grouped_gemm(**{**case.arguments, "out": None})
        rest = jitgen.grouped_gemm(**plain)
        assert not torch.equal(biased[case.is_owned], rest[case.is_owned])


@needs.linker
@pytest.mark.parametrize(
    "kind",
    [
        each if each == "block128" else pytest.param(each, marks=pytest.mark.nightly)
        for each in KINDS
    ],
)
def test_it_is_added_on_an_emulated_rtx(kind: str) -> None:
    case = solved(k=256, **KINDS[kind])
    forced = config_of(case, KINDS[kind], epilogue=Epilogue(bias=True))
    with device("sm_120a", num_sms=2):
        for _ in range(2):
            case.out.fill_(torch.nan)
            verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@pytest.mark.sampled(2)
@needs.linker
@pytest.mark.parametrize(
    ("layout", "types", "more"),
    [
        (Layout.RAGGED, {}, {"schedule": Schedule(split_k=2)}),
        (Layout.CONTIGUOUS, BF16, {"cluster": Cluster(n=2)}),
        *(
            pytest.param(*others, marks=pytest.mark.nightly)
            for others in (
                (Layout.MASKED, {"scale_granularity": "row"}, {"schedule": Schedule(split_k=4)}),
                (Layout.MASKED, {}, {"schedule": Schedule(early_b=True)}),
                (Layout.RAGGED, BF16 | {"b_layout": BLayout.N_MAJOR}, {"cluster": Cluster(n=2)}),
                (Layout.CONTIGUOUS, {"scale_granularity": "tensor"}, {}),
            )
        ),
    ],
    ids=str,
)
def test_it_is_added_on_an_emulated_hopper(
    layout: Layout, types: dict[str, Any], more: dict[str, Any]
) -> None:
    """Once, whatever the scales are of and however many CTAs have a part of K."""
    case = solved(layout, k=400, **types)
    operands = GroupedGemmProblem(layout=layout, groups=1, m=1, n=1, k=1, **types).operands
    forced = GroupedGemmConfig(
        layout=layout,
        operands=operands,
        tile=Tile(m=64, n=64, k=1024 // operands.a_dtype.bits),
        epilogue=Epilogue(bias=True),
        **more,
    )
    with device("sm_90a", num_sms=4):
        verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


@needs.linker
@pytest.mark.parametrize(
    ("layout", "types", "schedule"),
    [
        (Layout.RAGGED, {}, Schedule(split_k=2)),
        *(
            pytest.param(*others, marks=pytest.mark.nightly)
            for others in (
                (Layout.MASKED, {"scale_granularity": "row"}, Schedule()),
                (Layout.CONTIGUOUS, {"scale_granularity": "tensor"}, Schedule()),
                (Layout.CONTIGUOUS, {"scale_granularity": "mx32"}, Schedule()),
                (Layout.RAGGED, NVFP4, Schedule()),
            )
        ),
    ],
    ids=str,
)
def test_it_is_added_on_an_emulated_blackwell(
    layout: Layout, types: dict[str, Any], schedule: Schedule
) -> None:
    """In each kind of kernel for data centres."""
    case = solved(layout, k=512, **types)
    operands = GroupedGemmProblem(layout=layout, groups=1, m=1, n=1, k=1, **types).operands
    forced = GroupedGemmConfig(
        layout=layout,
        operands=operands,
        tile=Tile(m=128, n=64, k=1024 // operands.a_dtype.bits),
        epilogue=Epilogue(bias=True),
        schedule=schedule,
    )
    with device("sm_100a", num_sms=2):
        verify_exact(case, jitgen.grouped_gemm(**case.arguments, config=forced))


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"bias": torch.ones(N)}, r"bias: must have 2 dimensions|bias: must have shape \(3, 40\)"),
    ({"bias": torch.ones(G, N + 8)}, r"bias: must have shape \(3, 40\), which is \(G, N\)"),
    ({"bias": torch.ones(G, N).bfloat16()}, r"bias: must be float32 \(got torch.bfloat16\)"),
    ({"bias": torch.ones(N, G).T}, "bias: must be contiguous in its last dimension"),
    ({"bias": torch.ones(G, N, device="meta")}, "bias: must be on cpu"),
    ({"bias": torch.ones(G, N, requires_grad=True)}, "bias: must not require a gradient"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    """Before any call was right, and where one is remembered."""
    case = solved(**WIDE)
    for _ in range(2):
        with pytest.raises(InputError, match=message):
            jitgen.grouped_gemm(**{**case.arguments, **changes})
        jitgen.grouped_gemm(**case.arguments)


def test_a_config_has_a_bias_where_the_call_has_one() -> None:
    case = solved(**WIDE)
    with pytest.raises(InputError, match="config: is for no bias, and there is one"):
        jitgen.grouped_gemm(**case.arguments, config=config_of(case, WIDE))
    biased = config_of(case, WIDE, epilogue=Epilogue(bias=True))
    with pytest.raises(InputError, match="config: is for a bias, and there is none"):
        jitgen.grouped_gemm(**{**case.arguments, "bias": None}, config=biased)


def test_tracers_see_one_operation() -> None:
    case = solved(**WIDE)
    given = {**case.arguments, "out": None}
    traced = make_fx(lambda kwargs: jitgen.grouped_gemm(**kwargs), tracing_mode="symbolic")(given)
    operation = torch.ops.jitgen.grouped_gemm
    calls = [node for node in traced.graph.nodes if node.target is operation.default]
    result = traced(given)

    assert len(calls) == 1
    assert torch.equal(result[case.is_owned], case.expected[case.is_owned].to(result.dtype))


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_opcheck() -> None:
    """What torch asks of an operation, gradients included; every row has a group."""
    drawn = torch.Generator().manual_seed(0)
    a, b, bias = (torch.randn(x, generator=drawn) for x in ((12, 16), (G, 24, 16), (G, 24)))
    given = {"offs": int32(4, 4, 12), "out_dtype": torch.float32}
    operands = [x.requires_grad_() for x in (a, b, bias)]
    torch.library.opcheck(
        torch.ops.jitgen.grouped_gemm.default, operands[:2], {**given, "bias": operands[2]}
    )
