# SPDX-License-Identifier: Apache-2.0
"""`jitgen.route` and `sort_pairs`: results, refusals, what is remembered, tracers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen import Routing, Sorting
from jitgen.config import Arch
from jitgen.config.route import RouteConfig
from jitgen.errors import InputError, JitgenError
from jitgen.ops.route import samples
from jitgen.ops.route.call import CALL, SORT
from jitgen.ops.tracing.library import traced
from jitgen.runtime.session import current
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

CONFIGS = [
    RouteConfig(scoring="softmax", scores_dtype="bf16", experts=64),
    RouteConfig(scoring="sigmoid", scores_dtype="f32", bias=True, grouped=True, experts=64),
    RouteConfig(scoring="softmax", scores_dtype="f32", bias=True, experts=32),
    RouteConfig(scoring="sqrtsoftplus", scores_dtype="f32", bias=True, experts=64),
    RouteConfig(scoring="sqrtsoftplus", scores_dtype="f16", grouped=True, experts=32),
    RouteConfig(scoring="identity", scores_dtype="bf16", experts=32),
    RouteConfig(scoring="identity", scores_dtype="f16", bias=True, grouped=True, experts=64),
    RouteConfig(scoring="given", experts=64),
    RouteConfig(scoring="softmax", scores_dtype="bf16", softcap=True, experts=64),
    RouteConfig(scoring="sigmoid", scores_dtype="f32", bias=True, load=True, experts=64),
    RouteConfig(scoring="sqrtsoftplus", scores_dtype="f16", hashed=True, load=True, experts=32),
    RouteConfig(scoring="softmax", scores_dtype="bf16", hashed=True, experts=64),
    RouteConfig(scoring="sqrtsoftplus", scores_dtype="f32", softcap=True, hashed=True, experts=32),
    RouteConfig(
        scoring="sigmoid",
        scores_dtype="f32",
        bias=True,
        grouped=True,
        group_scoring="max",
        softcap=True,
        experts=64,
    ),
    RouteConfig(
        scoring="softmax", scores_dtype="f32", grouped=True, group_scoring="max", experts=32
    ),
]


def logits(tokens: int = 20, experts: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))


def same(found: Any, expected: Any) -> bool:
    """Return whether all integers are equal, and weights nearly."""
    weights = zip(found[:-3][:1], expected[:-3][:1], strict=True)
    ids = zip(found[-4:], expected[-4:], strict=True)
    return all(torch.allclose(a, b, rtol=1e-5) for a, b in weights) and all(
        torch.equal(a, b) for a, b in ids
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.to_name())
@pytest.mark.parametrize("is_exact", [True, False], ids=["integers", "random"])
def test_right(config: RouteConfig, is_exact: bool) -> None:
    """Every size that an emulated GPU gets; twice, for the second call is a warm one."""
    function = jitgen.sort_pairs if config.scoring == "given" else jitgen.route
    for seed in (0, 1):
        for sizes in samples.Sizes.of(config, Arch.CPU):
            case = samples.make(config, sizes, is_exact=is_exact, seed=seed)

            assert case.solve(function) == 0


def test_odd_sizes() -> None:
    """One expert, all experts, rows that lie apart, every pair another rank's."""
    for experts, top_k in ((1, 1), (7, 7), (512, 32), (1024, 32)):
        x = logits(9, experts + 3)[:, :experts]
        found = jitgen.route(x, top_k=top_k)

        assert same(found, jitgen.reference.route(x, top_k=top_k))
    ids = torch.full((5, 2), -1, dtype=torch.int32)
    assert jitgen.sort_pairs(ids, experts=3).permutation.tolist() == [-1] * 10


def test_what_is_not_finite() -> None:
    x = logits(6, 12)
    x[0, 3], x[1, 2], x[2], x[3, :11], x[4] = math.nan, math.inf, math.nan, -math.inf, -math.inf
    for options in (
        {},
        {"renormalize": False},
        {"scoring": "sigmoid"},
        {"scoring": "sqrtsoftplus"},
        {"scoring": "identity", "renormalize": False},
    ):
        found = jitgen.route(x, top_k=4, **options)
        expected = jitgen.reference.route(x, top_k=4, **options)

        assert torch.equal(found.topk_ids, expected.topk_ids)
        assert torch.equal(found.topk_weights.isnan(), expected.topk_weights.isnan())
        torch.testing.assert_close(found.topk_weights, expected.topk_weights, equal_nan=True)


@pytest.mark.parametrize("scoring", ["sigmoid", "sqrtsoftplus", "identity"])
def test_scores_of_every_size(scoring: str) -> None:
    """To a few units in the last place of what float64 gives, from -80 to 80 and around 0."""
    x = torch.cat([torch.linspace(-80, 80, 4096), torch.linspace(-1, 1, 4096)]).view(-1, 32)
    options: dict[str, Any] = {"top_k": 32, "scoring": scoring, "renormalize": False}
    found = jitgen.route(x, **options).topk_weights
    expected = jitgen.reference.route(x.double(), **options).topk_weights

    torch.testing.assert_close(found, expected, rtol=4e-7, atol=0.0)


@pytest.mark.parametrize("cap", [0.5, 4.0, 50.0])
def test_bounded_logits_of_every_size(cap: float) -> None:
    """To a few units in the last place of what float64 gives, near 0 and beyond the bound."""
    x = torch.cat([torch.linspace(-80, 80, 4096), torch.linspace(-1, 1, 4096)]).view(-1, 32)
    options: dict[str, Any] = {"scoring": "identity", "renormalize": False, "softcap": cap}
    found = jitgen.route(x, top_k=1, **options)
    bounded = cap * torch.tanh(x.double() / cap)
    expected = bounded.gather(1, found.topk_ids.long())

    torch.testing.assert_close(found.topk_weights.double(), expected, rtol=4e-7, atol=0.0)


def test_what_is_not_finite_is_bounded() -> None:
    x = torch.tensor([[math.nan, math.inf, 0.0, -math.inf]])
    found = jitgen.route(x, top_k=4, scoring="identity", renormalize=False, softcap=3.0)

    assert found.topk_ids.tolist() == [[1, 2, 3, 0]]
    assert found.topk_weights[0, :3].tolist() == [3.0, 0.0, -3.0]
    assert found.topk_weights[0, 3].isnan()


HASHED: dict[str, Any] = {
    "logits": logits(5, 8),
    "top_k": 2,
    "scoring": "sqrtsoftplus",
    "routed_scaling_factor": 1.5,
    "token_ids": torch.tensor([2, 0, -1, 3, 1]),
    "hash_table": torch.tensor([[5, 1], [7, 8], [3, 0]], dtype=torch.int32),
}
"""A token that has no id, one whose id the table has not, and an expert that there is not."""


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_experts_of_a_table(dtype: torch.dtype) -> None:
    """New, warm, for other tokens and into tensors that are given; ids of both types."""
    call = HASHED | {"token_ids": HASHED["token_ids"].to(dtype)}
    scores = torch.nn.functional.softplus(call["logits"]).sqrt()
    expected = torch.stack([scores[0, [3, 0]], scores[1, [5, 1]]])
    out = Routing(*(torch.full_like(each, 9) for each in jitgen.reference.route(**call)))
    for options in ({}, {}, {"out": out}, {"out": out}):
        found = jitgen.route(**call, **options)

        assert found.topk_ids.tolist() == [[3, 0], [5, 1], [-1, -1], [-1, -1], [7, -1]]
        torch.testing.assert_close(
            found.topk_weights[:2], 1.5 * expected / expected.sum(1, keepdim=True)
        )
        assert found.topk_weights[2:].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.5, 0.0]]
        assert same(found, jitgen.reference.route(**call))
    fewer = call | {"logits": call["logits"][:2], "token_ids": call["token_ids"][:2]}
    assert same(jitgen.route(**fewer), jitgen.reference.route(**fewer))
    none = call | {"logits": call["logits"][:0], "token_ids": call["token_ids"][:0]}
    assert jitgen.route(**none).offs.tolist() == [0] * 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": None}, "token_ids: is required: token_ids and hash_table come together"),
        ({"hash_table": None}, "hash_table: is required: token_ids and hash_table come together"),
        ({"token_ids": torch.zeros(4)}, "token_ids: must be int32 or int64"),
        ({"token_ids": torch.arange(4)}, r"token_ids: must have shape \(5,\), one for each token"),
        ({"hash_table": HASHED["hash_table"].long()}, "hash_table: must be int32"),
        ({"top_k": 3}, r"hash_table: must have top_k = 3 columns \(got shape \(3, 2\)\)"),
        ({"expert_groups": 2}, "hash_table: has the experts of each token: leave out"),
        ({"correction_bias": torch.zeros(8)}, "hash_table: has the experts of each token"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_refusals_of_tables(changes: dict[str, Any], message: str) -> None:
    jitgen.route(**HASHED)
    with pytest.raises(InputError, match=message):
        jitgen.route(**{**HASHED, **changes})


class TestLoad:
    def test_it_adds_up(self) -> None:
        """New, warm, for experts of other devices too; without tokens nothing is added."""
        load = torch.zeros(64, dtype=torch.int32)
        expected = torch.zeros_like(load)
        for options in ({}, {}, {"local_experts": 8}):
            found = jitgen.route(logits(), top_k=4, load=load, **options)
            expected += torch.bincount(found.topk_ids.flatten(), minlength=64).int()

            assert torch.equal(load, expected)
        empty = jitgen.route(logits(0), top_k=4, load=load)
        assert empty.offs.tolist() == [0] * 64
        assert torch.equal(load, expected)

    def test_what_is_written_is_known(self) -> None:
        """A view of it is not an input too, and torch counts its versions."""
        load = torch.zeros(64, dtype=torch.int32)
        for _ in range(2):
            version = load._version
            jitgen.route(logits(), top_k=4, load=load)
            assert load._version > version
        both = torch.zeros(80, dtype=torch.int32)
        with pytest.raises(InputError, match="memory"):
            jitgen.route(
                logits(), top_k=2, scoring="sigmoid", load=both[:64], **_hashing(both[60:80])
            )

    @pytest.mark.parametrize(
        ("load", "message"),
        [
            (torch.zeros(64), "load: must be int32"),
            (torch.zeros(63, dtype=torch.int32), r"load: must have shape \(64,\), one for each"),
            (torch.zeros(128, dtype=torch.int32)[::2], "load: must be contiguous"),
        ],
        ids=["type", "shape", "strides"],
    )
    def test_refusals(self, load: Tensor, message: str) -> None:
        with pytest.raises(InputError, match=message):
            jitgen.route(logits(), top_k=2, load=load)

    @needs.newer_dynamo
    def test_in_graphs(self) -> None:
        """Torch's tracers know that it is written."""

        def layer(x: Tensor, load: Tensor) -> Tensor:
            return jitgen.route(x, top_k=4, load=load).topk_ids

        expected, load = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
        ids = layer(logits(), expected)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for number in (1, 2):
            assert torch.equal(compiled(logits(), load), ids)
            assert torch.equal(load, expected * number)
        graph = make_fx(layer)(logits(), torch.zeros_like(load))
        assert torch.equal(graph(logits(), load), ids)
        assert torch.equal(load, expected * 3)


def _hashing(ids: Tensor) -> dict[str, Tensor]:
    return {"token_ids": ids, "hash_table": torch.zeros(4, 2, dtype=torch.int32)}


def test_no_tokens() -> None:
    found = jitgen.route(torch.empty(0, 8), top_k=2)

    assert found.offs.tolist() == [0] * 8
    assert [each.shape[0] for each in found] == [0, 0, 8, 0, 0]
    assert jitgen.sort_pairs(torch.empty(0, 2, dtype=torch.int32), experts=3).offs.sum() == 0


def test_into_tensors_that_are_given() -> None:
    x = logits()
    expected = jitgen.route(x, top_k=4)
    out = Routing(*(torch.full_like(each, 9) for each in expected))
    for _ in range(2):
        assert jitgen.route(x, top_k=4, out=out) is out
        assert same(out, expected)
    sorting = Sorting(*(torch.full_like(each, 9) for each in expected[2:]))
    assert jitgen.sort_pairs(out.topk_ids, experts=64, out=sorting) is sorting
    assert same(sorting, expected[2:])


def test_the_grouped_gemm_takes_the_result() -> None:
    """A layer by hand: gather, multiply, weigh, add up."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(10, 32, generator=chance).bfloat16()
    w = torch.randn(6, 16, 32, generator=chance).bfloat16()
    weights, ids, offs, permutation, inverse = jitgen.route(logits(10, 6), top_k=2)
    y = jitgen.grouped_gemm(x[permutation // 2], w, offs=offs)
    found = (y[inverse].float() * weights.unsqueeze(-1)).sum(1)
    every = torch.einsum("tk,enk->ten", x.float(), w.float())
    picked = every.gather(1, ids.long().unsqueeze(-1).expand(-1, -1, 16))
    expected = (picked * weights.unsqueeze(-1)).sum(1)

    assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.usefixtures("spoilt_memory")
def test_the_page_shows_what_happens() -> None:
    """With a share of the experts the recipe read unwritten rows: results were infinite."""
    page = (Path(__file__).parents[2] / "docs" / "route.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)  # noqa: S102  # the page is ours
    x, w = names["x"].float(), names["w"].float()
    chosen = jitgen.route(names["logits"], top_k=2)
    products = torch.einsum("tk,tjnk->tjn", x, w[chosen.topk_ids])
    products *= chosen.topk_weights.unsqueeze(-1)
    here = (chosen.topk_ids < 8).unsqueeze(-1)

    assert (chosen.topk_ids >= 8).any()
    assert here.any()
    assert not names["shares"][0][0].isfinite().all()  # rows of other ranks
    for found, expected in (
        (names["out"], products.sum(1)),
        (names["both"], products.sum(1)),
        (names["part"], (products * here).sum(1)),
    ):
        assert found.shape == (6, 8)
        assert (found - expected).norm() < 0.01 * expected.norm()


GOOD: dict[str, Any] = {"logits": logits(), "top_k": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits": logits().double()}, r"logits: must be bfloat16 or float16 or float32 on cpu"),
        ({"logits": logits().T}, r"logits: must be contiguous in its last dimension"),
        ({"logits": logits()[0]}, r"logits: must have 2 dimensions, \(T, E\)"),
        ({"logits": torch.empty(3, 0)}, r"logits: must have at least one column"),
        ({"logits": logits(2, 1025)}, r"logits: must be of at most 1024 experts \(got 1025\)"),
        ({"top_k": 65}, r"top_k: must be at most the 64 experts that are kept \(got 65\)"),
        ({"top_k": 33}, r"top_k: must be of at most 32 experts a token \(got 33\)"),
        (
            {"logits": logits(2, 1025)},
            r"choose among more with torch, .* with jitgen.sort_pairs",
        ),
        ({"top_k": True}, r"top_k: must be an integer of at least 1 \(got True\)"),
        ({"scoring": "given"}, r"scoring: must be one of softmax, sigmoid, sqrtsoftplus, identity"),
        (
            {"correction_bias": torch.zeros(63)},
            r"bias: must have shape \(64,\), one for each",
        ),
        (
            {"correction_bias": torch.zeros(64).double()},
            r"bias: must be float32 \(got torch.f",
        ),
        ({"expert_groups": 7}, r"expert_groups: must divide the 64 experts into groups of two"),
        ({"expert_groups": 64}, r"expert_groups: must divide the 64 experts into groups of two"),
        ({"expert_groups": 4, "top_groups": 5}, r"top_groups: must be at most the 4 groups"),
        ({"expert_groups": 32, "top_k": 3}, r"top_k: must be at most the 2 experts that are kept"),
        ({"renormalize": "no"}, r"renormalize: must be True or False \(got 'no'\)"),
        (
            {"routed_scaling_factor": math.nan},
            r"_factor: must be a finite number of float32 \(got nan\)",
        ),
        ({"first_expert": -1}, r"first_expert: must be an integer of at least 0 \(got -1\)"),
        ({"first_expert": 60, "local_experts": 5}, r"local_experts: must end at the last of 64"),
        ({"first_expert": 1}, r"local_experts: is required with first_expert 1"),
        ({"group_scoring": "sum"}, r"group_scoring: must be one of top2, max \(got 'sum'\)"),
        ({"routed_scaling_factor": 1e39}, r"_factor: must be a finite number of float32 \(got"),
        ({"routed_scaling_factor": 10**400}, r"_factor: must be a finite number of float32 \(got"),
        ({"softcap": 0.0}, r"softcap: must be None or a number from 1e-30 to 1e\+30 \(got 0.0\)"),
        ({"softcap": math.inf}, r"softcap: must be None or a number from .* \(got inf\)"),
        ({"softcap": 1e39}, r"softcap: must be None or a number from .* \(got 1e\+39\)"),
        ({"softcap": 1e-60}, r"softcap: must be None or a number from .* \(got 1e-60\)"),
        ({"softcap": 10**400}, r"softcap: must be None or a number from .* \(got 1000"),
        ({"config": RouteConfig(scoring="given")}, r"config: must be for what is asked, softmax"),
        ({"config": "x"}, r"config: must be a RouteConfig \(got str\)"),
        ({"out": 3}, r"out: must be a Routing \(got int\)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    """The same before and after a call like it was remembered."""
    for _ in range(2):
        with pytest.raises(JitgenError, match=message):
            jitgen.route(**{**GOOD, **changes})
        jitgen.route(**GOOD)


def test_ids_as_torch_gives_them_are_sorted() -> None:
    """New and warm, with numbers that int32 lacks, and in a graph."""
    ids = logits(40, 16).topk(3).indices
    ids[3, 1], ids[5, 2], ids[6, 0] = 2**32 + 1, -(2**32) + 1, -1
    expected = jitgen.reference.sort_pairs(ids, experts=16)
    for _ in range(2):
        found = jitgen.sort_pairs(ids, experts=16)
        assert same(found, expected)
    out = Sorting(*(torch.full_like(each, 9) for each in expected))
    assert jitgen.sort_pairs(ids, experts=16, out=out) is out
    assert same(out, expected)
    graph = make_fx(lambda ids: jitgen.sort_pairs(ids, experts=16).offs)(ids)
    assert torch.equal(graph(ids), expected.offs)


def test_refusals_of_sorting() -> None:
    ids = torch.zeros(4, 3, dtype=torch.int32)
    with pytest.raises(InputError, match=r"topk_ids: must be int32 or int64 \(got torch.int16\)"):
        jitgen.sort_pairs(ids.short(), experts=4)
    with pytest.raises(InputError, match=r"topk_ids: must be contiguous \(got strides \(4, 1\)\)"):
        jitgen.sort_pairs(torch.zeros(4, 4, dtype=torch.int32)[:, :3], experts=4)
    with pytest.raises(InputError, match="experts: must be an integer of at least 1"):
        jitgen.sort_pairs(ids, experts=0)
    with pytest.raises(InputError, match=r"topk_ids: must be of at most 32 experts .* \(got 33\)"):
        jitgen.sort_pairs(torch.zeros(4, 33, dtype=torch.int32), experts=64)
    with pytest.raises(InputError, match=r"^experts: must be at most 1024 on one device.*2000"):
        jitgen.sort_pairs(ids, experts=2000)
    with pytest.raises(InputError, match=r"^local_experts: .* give first_expert and local_experts"):
        jitgen.sort_pairs(ids, experts=2000, local_experts=1025)
    assert jitgen.sort_pairs(ids, experts=2000, local_experts=250).offs.shape == (250,)


def test_results_that_do_not_fit() -> None:
    """Those of another call, of which the entry would not know."""
    x = logits()
    out = jitgen.route(x, top_k=4)
    for wrong, name in (
        (out._replace(permutation=out.permutation[:-1]), "out.permutation"),
        (out._replace(offs=out.offs[:-1]), "out.offs"),
        (out._replace(topk_ids=out.topk_ids.T.contiguous().T), "out.topk_ids"),
        (out._replace(topk_weights=out.topk_weights.double()), "out.topk_weights"),
    ):
        jitgen.route(x, top_k=4, out=out)
        with pytest.raises(InputError, match=f"{name}: must"):
            jitgen.route(x, top_k=4, out=wrong)


def test_a_config_that_is_too_small() -> None:
    config = RouteConfig(scoring="softmax", scores_dtype="f32", experts=32)
    with pytest.raises(InputError, match="config: must be for at least 64 experts"):
        jitgen.route(logits(), top_k=2, config=config)


def test_another_number_of_tokens_is_served_by_the_same_launch() -> None:
    jitgen.route(logits(20), top_k=2)
    before = len(current.get().families)
    found = jitgen.route(logits(33), top_k=2)

    assert same(found, jitgen.reference.route(logits(33), top_k=2))
    assert len(current.get().families) == before


SIGMOID: dict[str, Any] = {"top_k": 4, "scoring": "sigmoid", "expert_groups": 4}


class TestTracers:
    @needs.newer_dynamo
    def test_compile(self) -> None:
        """One graph for every number of tokens, with results and into given ones."""

        def layer(x: Tensor) -> Sorting:
            chosen = jitgen.route(x, **SIGMOID, top_groups=2)
            return jitgen.sort_pairs(chosen.topk_ids, experts=64, local_experts=8)

        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for tokens in (5, 20):
            assert same(compiled(logits(tokens)), layer(logits(tokens)))
        x, config = logits(), RouteConfig(scoring="softmax", scores_dtype="f32", experts=64)
        out = Routing(*(torch.zeros_like(each) for each in jitgen.route(x, top_k=2)))
        into = torch.compile(
            lambda x, out: jitgen.route(x, top_k=2, out=out, config=config),
            fullgraph=True,
            backend="aot_eager",
        )
        into(x, out)
        assert same(out, jitgen.route(x, top_k=2))

    def test_graphs_hold_one_operation(self) -> None:
        graph = make_fx(lambda x: jitgen.route(x, **SIGMOID).offs)(logits())
        names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]

        assert names[0] == "jitgen.route.default"
        assert all("getitem" in name for name in names[1:])
        assert torch.equal(graph(logits(9)), jitgen.route(logits(9), **SIGMOID).offs)

    def test_fake_tensors(self) -> None:
        with FakeTensorMode():
            found = jitgen.route(torch.empty(5, 64), top_k=2, local_experts=7)

        assert [tuple(each.shape) for each in found] == [(5, 2), (5, 2), (7,), (10,), (5, 2)]
        assert [each.dtype for each in found] == [torch.float32, *[torch.int32] * 4]

    def test_refusals(self) -> None:
        with pytest.raises(InputError, match="logits: must not be batched by torch"):
            torch.vmap(lambda x: jitgen.route(x, top_k=2))(torch.randn(2, 3, 8))
        with pytest.raises(InputError, match="top_k: must be at most"), FakeTensorMode():
            jitgen.route(torch.empty(5, 4), top_k=5)

    @pytest.mark.nightly
    def test_opcheck(self) -> None:
        x = logits()
        found = jitgen.route(x, top_k=4)
        zeros = [torch.zeros_like(each) for each in found]
        for op, given in (
            (traced(CALL).operation, (x, 4)),
            (traced(CALL).operation_out, (*zeros, x, 4)),
            (traced(SORT).operation, (found.topk_ids, 64)),
            (traced(SORT).operation_out, (*zeros[2:], found.topk_ids, 64)),
        ):
            torch.library.opcheck(op, given)


@pytest.mark.usefixtures("shared_cache")
def test_the_operation_of_a_graph_says_whether_it_counts() -> None:
    logits, load = torch.randn(4, 8), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(InputError, match=r"load: is written by torch.ops.jitgen.route.load alone"):
        torch.ops.jitgen.route.default(logits, 2, load=load)
    torch.ops.jitgen.route.load(logits, 2, load=load)

    assert load.sum() == 8
    assert torch.func.functionalize(lambda x: jitgen.route(x, top_k=2)[1])(logits).shape == (4, 2)
