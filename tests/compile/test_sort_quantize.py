# SPDX-License-Identifier: Apache-2.0
"""`sort_quantize`: `sort_pairs` and `permute_quantize` in one launch, for few tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config import Layout
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Tiling, Walk
from jitgen.errors import InputError, UnsupportedConfig
from jitgen.ops.permute_quantize.sorting import Sorted, sort_quantize
from jitgen.verify import device
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SORTING = PermuteQuantizeConfig(layout=Layout.RAGGED, walk=Walk.SORT)


def given(tokens: int = 5, top_k: int = 3) -> dict[str, Any]:
    """Return a call with 8 experts, of which 4 are local: an expert twice, and none at all."""
    chance = torch.Generator().manual_seed(tokens)
    ids = torch.randint(0, 8, (tokens, top_k), generator=chance, dtype=torch.int32)
    ids[0, 0] = -1
    x = torch.randn(tokens, 256, generator=chance).bfloat16()
    return {"x": x, "topk_ids": ids, "experts": 8, "first_expert": 2, "local_experts": 4}


def in_two(call: dict[str, Any], **options: Any) -> Sorted:
    """Return what the two launches give."""
    x, ids = call["x"], call["topk_ids"]
    order = jitgen.sort_pairs(ids, **{n: v for n, v in call.items() if "expert" in n})
    rows = jitgen.permute_quantize(
        *(x, order.permutation),
        top_k=ids.shape[1],
        offs=order.offs,
        inverse=order.inverse,
        **options,
    )
    return Sorted(*rows, order)


def same(first: Sorted, second: Sorted) -> bool:
    """Say whether all bits are equal that belong to an expert."""
    if not all(map(torch.equal, first.order, second.order)):
        return False
    end = int(first.order.offs[-1])
    parts = [(first.q, second.q)]
    if first.scale is not None and second.scale is not None:
        assert first.scale.shape == second.scale.shape
        parts.append((first.scale, second.scale))
    return all(torch.equal(bits(one)[:end], bits(other)[:end]) for one, other in parts)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of e4m3 as bytes; others as they are."""
    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


@pytest.mark.parametrize("granularity", ["block128", "row", "none"])
def test_the_same_as_two_launches(granularity: str) -> None:
    """Cold, warm and warm for other tokens."""
    for tokens in (5, 5, 7):
        call = given(tokens)
        found = sort_quantize(**call, format=granularity)

        assert int(found.order.offs[-1]) > 0
        assert same(found, in_two(call, format=granularity))


def test_as_many_experts_as_there_may_be() -> None:
    ids = torch.randint(0, 1024, (5, 3), dtype=torch.int32)
    call = given() | {"topk_ids": ids, "experts": 1024, "first_expert": 0, "local_experts": 1024}
    found = sort_quantize(**call)

    assert int(found.order.offs[-1]) == 15
    assert same(found, in_two(call))


def test_a_given_scale_and_out() -> None:
    call, scale = given(), torch.tensor([0.02])
    out = torch.empty(15, 256, dtype=torch.float8_e4m3fn)
    for _ in range(2):
        found = sort_quantize(**call, format="tensor", global_scale=scale, out=(out, None))

        assert found.q is out
        assert found.scale is scale
        assert same(found, in_two(call, format="tensor", global_scale=scale))


def test_on_an_emulated_gpu() -> None:
    call = given()
    expected = in_two(call)
    with device("sm_90a", num_sms=1) as reports:
        found = sort_quantize(**call)

    assert same(found, expected)
    assert [report.is_clean for report in reports] == [True]


def test_no_tokens() -> None:
    call = given()
    empty = {**call, "x": call["x"][:0], "topk_ids": call["topk_ids"][:0]}
    found = sort_quantize(**empty)

    assert found.order.offs.tolist() == [0, 0, 0, 0]
    assert found.q.shape == (0, 256)


def test_tracers_see_two_operations() -> None:
    call = given()
    ids, x = call.pop("topk_ids"), call.pop("x")
    graph = make_fx(lambda x, ids: tuple(sort_quantize(x, ids, **call).order))(x, ids)
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}

    assert {"jitgen.sort_pairs.default", "jitgen.permute_quantize.default"} <= called
    assert all(map(torch.equal, graph(x, ids), sort_quantize(x, ids, **call).order))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"format": "mxfp8"},
            "^format: must be block128, row, tensor or none",
        ),
        ({"local_experts": 7}, "^local_experts: must end at the last of 8 experts"),
        ({"topk_ids": torch.zeros(4, 3, dtype=torch.int32)}, "^topk_ids: .* a row for each token"),
        ({"topk_ids": torch.zeros(5, 3)}, "^topk_ids: must be int32"),
        ({"x": torch.zeros(5, 256)}, "^x: must be bfloat16"),
        ({"config": replace(SORTING, walk=Walk.GATHER)}, "^config: must be for what is asked"),
    ],
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sort_quantize(**{**given(), **options})


def test_a_config_is_taken() -> None:
    call = given()
    assert same(sort_quantize(**call, config=SORTING), in_two(call))
    with pytest.raises(UnsupportedConfig, match="cpu kernel is one thread"):
        sort_quantize(**call, config=replace(SORTING, tiling=Tiling(threads=64)))
