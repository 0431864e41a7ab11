# SPDX-License-Identifier: Apache-2.0
"""`jitgen.grouped_gemm_wgrad` on the cpu: results, refusals, memo, tracers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config.grouped_gemm import Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm_wgrad.call import CALL
from jitgen.ops.grouped_gemm_wgrad.samples import Sizes, make
from jitgen.ops.sums import SolvedSums
from jitgen.ops.tracing.library import traced
from tests import needs
from tests.arguments import int32

operation, operation_out = traced(CALL).operation, traced(CALL).operation_out

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SIZES = [
    Sizes(rows=(3, 0, 128, 300, 0, 129), n=71, k=137, num_sms=1),
    Sizes(rows=(1,), n=1, k=1, num_sms=1),
    Sizes(rows=(0, 0), n=5, k=7, num_sms=1),
]
"""Odd, of whole blocks and a row more, one of everything, and no rows at all."""

CPU_BITS = 18
"""Of float32 sums of hundreds of values, one after the other."""


def config(layout: str = "ragged", **fields: Any) -> GroupedGemmWgradConfig:
    return GroupedGemmWgradConfig(**{"layout": layout, "tile": Tile(m=64, n=128, k=128), **fields})


def solved(**options: Any) -> SolvedSums:
    return make(config(), SIZES[0], is_exact=True, **options)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("layout", "a_dtype", "out_dtype"),
    [
        ("ragged", "bf16", "bf16"),
        ("masked", "f32", "f32"),
        ("ragged", "f16", "f16"),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in (
                ("ragged", "bf16", "f32"),
                ("ragged", "f32", "f32"),
                ("masked", "bf16", "bf16"),
                ("masked", "f32", "bf16"),
                ("masked", "f16", "f32"),
                ("masked", "f16", "bf16"),
            )
        ),
    ],
)
def test_right(sizes: Sizes, layout: str, a_dtype: str, out_dtype: str) -> None:
    """Bit for bit where sums are exact, else within their roundings; padding rows are NaN."""
    kind = config(layout, a_dtype=a_dtype, out_dtype=out_dtype)
    for is_exact in (True, False):
        case = make(kind, sizes, is_exact=is_exact)
        out = jitgen.grouped_gemm_wgrad(**case.arguments)

        assert out is case.out
        assert case.wrong(CPU_BITS) == 0


@pytest.mark.nightly
@pytest.mark.parametrize("tile", [Tile(m=16, n=16, k=128), Tile(m=32, n=64, k=128)], ids=str)
def test_every_tile_is_right(tile: Tile) -> None:
    case = solved()
    jitgen.grouped_gemm_wgrad(**case.arguments, config=config(tile=tile))

    assert case.wrong() == 0


def test_as_the_reference() -> None:
    given = solved().arguments
    del given["out"]
    found = jitgen.grouped_gemm_wgrad(**given)

    assert found.dtype is torch.bfloat16
    assert torch.equal(found, jitgen.reference.grouped_gemm_wgrad(**given))
    wide = jitgen.grouped_gemm_wgrad(**given, out_dtype=torch.float32)
    assert torch.equal(wide, jitgen.reference.grouped_gemm_wgrad(**given, out_dtype=torch.float32))


def test_no_rows_at_all() -> None:
    """No kernel runs, and the gradient is zero."""
    for _ in ("fresh", "again"):
        out = torch.full((2, 8, 16), math.nan)
        empty = torch.zeros(0, 8), torch.zeros(0, 16)
        jitgen.grouped_gemm_wgrad(*empty, offs=int32(0, 0), out=out)

        assert not out.any()


def test_other_rows_are_another_call() -> None:
    """The same shapes but for the rows, and ends that are wrong, which never leave the tensors."""
    for rows in (20, 21, 20):
        dy, a = torch.randn(rows, 8), torch.randn(rows, 16)
        found = jitgen.grouped_gemm_wgrad(dy, a, offs=int32(5, 900), out_dtype=torch.float32)
        expected = torch.stack([dy[:5].T @ a[:5], dy[5:].T @ a[5:]])

        assert torch.allclose(found, expected, atol=1e-4)


BF16 = torch.bfloat16
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"offs": None}, "offs: one of offs and masked_m is required"),
    ({"masked_m": int32(1, 1)}, "masked_m: exactly one of"),
    ({"a": torch.zeros(9, 16)}, r"a: must be bfloat16 \(got torch.float32\)"),
    ({"a": torch.zeros(8, 16, dtype=BF16)}, r"a: must have shape \(9, 16\), as dy has"),
    ({"dy": torch.zeros(9, 8).to(torch.float8_e4m3fn)}, "dy: must be .* keep or dequantise a bf"),
    ({"dy": torch.zeros(9, 8).double()}, "dy: must be bfloat16 or float16 or float32 on cpu"),
    ({"dy": torch.zeros(2, 9, 8, dtype=BF16)}, r"dy: must have 2 dimensions, \(M, N\) for ragged"),
    ({"offs": torch.zeros(2)}, "offs: must be int32"),
    ({"offs": int32()}, "offs: must have at least one group"),
    ({"out": torch.zeros(2, 8, 15)}, r"out: must have shape \(2, 8, 16\), groups by columns of dy"),
    ({"out": torch.zeros(2, 8, 16, dtype=torch.float16)}, "out: must be bfloat16 or float32"),
    ({"out": torch.zeros(2, 1, 16).expand(2, 8, 16)}, "out: must not overlap itself"),
    ({"out_dtype": torch.float64}, "out_dtype: must be bfloat16 or float32 on cpu"),
    ({"out": "a"}, "out: must not share memory with a"),
    ({"expected_m": 0}, "expected_m: must be an integer of at least 1"),
    ({"a": torch.zeros(9, 32, dtype=BF16)[:, ::2]}, "a: must be contiguous in its last dimension"),
    ({"config": "fast"}, "config: must be a GroupedGemmWgradConfig"),
    ({"config": config("masked")}, "config: must be for what the tensors are, layout ragged"),
]


def good() -> dict[str, Any]:
    return {
        "dy": torch.ones(9, 8, dtype=BF16),
        "a": torch.ones(9, 16, dtype=BF16),
        "offs": int32(4, 9),
    }


@pytest.mark.parametrize(("change", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_mistakes_are_told(change: dict[str, Any], words: str) -> None:
    """At the first call, and once shapes are known."""
    for _ in ("fresh", "remembered"):
        given = good() | change
        if change.get("out") == "a":
            memory = torch.ones(2 * 8 * 16, dtype=BF16)
            given |= {"a": memory[: 9 * 16].view(9, 16), "out": memory.view(2, 8, 16)}
        with pytest.raises(InputError, match=words):
            jitgen.grouped_gemm_wgrad(**given)
        jitgen.grouped_gemm_wgrad(**good())


def product(dy: Tensor, a: Tensor, offs: Tensor) -> Tensor:
    return jitgen.grouped_gemm_wgrad(dy * 2, a, offs=offs) + 1


def test_tracers_see_one_operation() -> None:
    given = tuple(good().values())
    graph = make_fx(product, tracing_mode="symbolic")(*given)

    assert "jitgen.grouped_gemm_wgrad.default" in graph.code
    assert torch.equal(graph(*given), product(*given))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in given]
        assert product(*fakes).shape == (2, 8, 16)  # type: ignore[arg-type]


def test_in_a_compiled_graph() -> None:
    given = tuple(good().values())
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager", dynamic=True)

    assert torch.equal(compiled(*given), product(*given))


def test_opcheck() -> None:
    dy, a, offs = good().values()
    torch.library.opcheck(operation, (dy, a, offs))
    torch.library.opcheck(operation_out, (torch.zeros(2, 8, 16), dy, a, offs))


def test_ends_are_looked_at_where_asked_for() -> None:
    with (
        jitgen.settings.scope(check=True),
        pytest.raises(InputError, match="offs: must be at"),
    ):
        jitgen.grouped_gemm_wgrad(**good() | {"offs": int32(4, 10)})
