# SPDX-License-Identifier: Apache-2.0
"""`jitgen.moe` and `MoELayer` on the cpu: every format against float32 on dequantised weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.ops.activation_quantize.samples import numbers_of
from jitgen.ops.route.results import Sorting
from tests import needs
from tests.moe_cases import EXPERTS, HIDDEN, INTERMEDIATE, SOME_FORMATS, TOP_K, make

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]


@pytest.mark.parametrize("form", SOME_FORMATS)
class TestEveryFormat:
    def test_right(self, form: str) -> None:
        """Within what its formats round; an expert without a token changes nothing."""
        case = make(form)
        out = jitgen.moe(
            case.x,
            topk_weights=case.topk_weights,
            topk_ids=case.topk_ids,
            **case.named,
            **case.config.gate,
        )

        assert out.shape == case.x.shape
        assert out.dtype is torch.bfloat16
        assert case.error(out) < case.tolerance

    def test_a_layer_gives_the_same_bits(self, form: str) -> None:
        """With memory of its own, in chunks, with one token, and again."""
        case = make(form)
        layer = jitgen.MoELayer(case.config, case.weights, max_tokens=8)
        whole = jitgen.MoELayer(case.config, case.weights)(*case.given)

        assert layer.workspace is not None
        assert torch.equal(layer(*case.given), whole)
        assert torch.equal(layer(*case.given), whole)
        assert torch.equal(layer(*(each[:1] for each in case.given)), whole[:1])


@pytest.mark.parametrize("activation", Activation)
def test_every_activation(activation: Activation) -> None:
    """A layer, with memory of its own, and its experts alone compute what their config says."""
    case = make("block128", activation=str(activation), **numbers_of(activation))
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=32)

    assert case.error(layer(*case.given)) < case.tolerance
    masked_m = torch.tensor([3, 0, 2, 1, 3, 2], dtype=torch.int32)
    x = torch.randn(EXPERTS, 3, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = reference.moe_experts(x, case.weights, masked_m, case.config)
    found = layer.experts(x, masked_m)
    for group, rows in enumerate(masked_m.tolist()):
        assert reference.relative_error(found[group, :rows], expected[group, :rows]) < 0.07


@pytest.mark.parametrize("form", ["bf16", "row", "exact1"])
def test_no_gate(form: str) -> None:
    """Weights of every format have I rows where the activation has no gate, and only there."""
    bias = {} if form != "exact1" else {"swiglu_limit": None, "swiglu_alpha": None}
    case = make(form, activation="relu2", interleaved=False, **bias)
    layer = jitgen.MoELayer(case.config, case.weights)

    assert case.weights.intermediate == INTERMEDIATE
    assert case.error(layer(*case.given)) < case.tolerance
    gated = replace(case.config, activation="geglu")
    with pytest.raises(InputError, match=r"w13: must be .* gates and ups, for geglu"):
        jitgen.MoELayer(gated, case.weights)
    with pytest.raises(InputError, match="interleaved: must be False for relu2"):
        replace(case.config, interleaved=True)
    with pytest.raises(InputError, match=r"w13: must be .* no gates, for relu2"):
        jitgen.MoELayer(case.config, make("bf16").weights)


class TestAShareOfTheExperts:
    def test_ranks_add_up(self) -> None:
        """Each rank skips what is not its own; a rank without any token gives zeros."""
        case = make("bf16")
        parts = []
        for first, count in ((0, 2), (2, 3), (5, 1)):
            here = slice(first, first + count)
            parts.append(
                jitgen.moe(
                    case.x,
                    case.weights.w13[here],  # type: ignore[index]
                    case.weights.w2[here],  # type: ignore[index]
                    case.topk_weights,
                    case.topk_ids,
                    experts=EXPERTS,
                    first_expert=first,
                ).float()
            )

        assert not parts[2].any()  # the last expert has no token
        assert all(part.any() for part in parts[:2])
        assert case.error(sum(parts)) < case.tolerance  # type: ignore[arg-type]

    @pytest.mark.parametrize("sentinel", [-1, EXPERTS])
    def test_other_numbers_are_skipped(self, sentinel: int) -> None:
        case = make("bf16")
        layer = jitgen.MoELayer(case.config, case.weights)
        skipped = case.topk_ids.clone()
        skipped[3, 1] = skipped[4, 0] = skipped[5] = sentinel
        weights = case.topk_weights.masked_fill(skipped == sentinel, 0.0)
        expected = layer(case.x, weights, case.topk_ids)

        found = layer(case.x, case.topk_weights, skipped)

        assert torch.equal(found, expected)
        assert not found[5].any()


class TestACall:
    def test_a_gated_shared_expert(self) -> None:
        """As Qwen3-Next has it; in one pass and in chunks, and the function as the layer."""
        case = make("bf16")
        shared, gate = torch.randn_like(case.x), torch.rand(len(case.x))
        found = jitgen.MoELayer(case.config, case.weights)(
            *case.given, shared=shared, shared_weights=gate
        )
        chunks = replace(case.config, chunk_tokens=5)
        again = jitgen.MoELayer(chunks, case.weights)(
            *case.given, shared=shared, shared_weights=gate
        )

        assert case.error(found, shared, gate) < case.tolerance
        assert torch.equal(found, again)
        with pytest.raises(InputError, match="shared_weights: must be None without shared"):
            jitgen.MoELayer(case.config, case.weights)(*case.given, shared_weights=gate)
        with pytest.raises(InputError, match="shared_weights: must have shape"):
            jitgen.MoELayer(case.config, case.weights)(
                *case.given, shared=shared, shared_weights=gate[1:]
            )

    def test_experts_that_give_the_token(self) -> None:
        """As LongCat-Flash has them, in chunks too; of ranks the one with expert 0 adds them."""
        case = make("bf16")
        ids = case.topk_ids.clone()
        ids[1, 0], ids[2, 1], ids[4] = EXPERTS, EXPERTS + 1, EXPERTS
        ids[5, 0] = EXPERTS + 2  # which there is not
        case = replace(case, topk_ids=ids, config=replace(case.config, zero_experts=2))
        found = jitgen.MoELayer(case.config, case.weights)(*case.given)
        chunks = replace(case.config, chunk_tokens=3)

        assert case.error(found) < case.tolerance
        tokens = case.x[4].float() * case.topk_weights[4].sum()
        assert (found[4].float() - tokens).norm() < 0.01 * tokens.norm()
        assert torch.equal(jitgen.MoELayer(chunks, case.weights)(*case.given), found)
        with pytest.raises(InputError, match="shared: must be None beside zero_experts"):
            jitgen.MoELayer(case.config, case.weights)(*case.given, shared=case.x)
        parts = [
            jitgen.moe(
                case.x,
                case.weights.w13[here],  # type: ignore[index]
                case.weights.w2[here],  # type: ignore[index]
                case.topk_weights,
                case.topk_ids,
                experts=EXPERTS,
                first_expert=here.start,
                zero_experts=2,
            ).float()
            for here in (slice(0, 2), slice(2, EXPERTS))
        ]
        assert case.error(sum(parts)) < case.tolerance  # type: ignore[arg-type]

    def test_shared_experts_and_out(self) -> None:
        case = make("block128")
        layer = jitgen.MoELayer(case.config, case.weights)
        shared = torch.randn_like(case.x)
        out = torch.empty_like(case.x)

        assert layer(*case.given, shared=shared, out=out) is out
        assert case.error(out, shared) < case.tolerance
        x = case.x.clone()
        layer(x, *case.given[1:], shared=shared, out=x)
        assert torch.equal(x, out)

    def test_a_routing_saves_the_sorting(self) -> None:
        """What `route` sorted gives the same bits, also where chunks have to sort anew."""
        case = make("block128")
        logits = torch.randn(len(case.x), EXPERTS)
        routing = jitgen.route(logits, top_k=TOP_K, scoring="sigmoid", routed_scaling_factor=2.5)
        given = (case.x, routing.topk_weights, routing.topk_ids)
        layer = jitgen.MoELayer(case.config, case.weights)
        expected = layer(*given)
        chunks = jitgen.MoELayer(case.config, case.weights, max_tokens=8)

        assert torch.equal(layer(*given, sorting=routing), expected)
        assert torch.equal(layer(*given, sorting=Sorting(*routing[2:])), expected)
        assert torch.equal(chunks(*given, sorting=routing), expected)
        with pytest.raises(InputError, match=r"sorting\.inverse"):
            layer(
                *(each[:3] for each in given),
                sorting=routing._replace(permutation=routing.permutation[:6]),
            )

    def test_no_tokens(self) -> None:
        case = make("bf16", tokens=0)

        assert jitgen.MoELayer(case.config, case.weights)(*case.given).shape == (0, HIDDEN)

    def test_long_ids(self) -> None:
        case = make("bf16")
        layer = jitgen.MoELayer(case.config, case.weights)

        assert torch.equal(
            layer(case.x, case.topk_weights, case.topk_ids.long()), layer(*case.given)
        )

    def test_a_long_number_is_no_expert(self) -> None:
        """Ids behind what int32 holds wrapped around: 2**32 + 3 went to expert 3."""
        case = make("bf16")
        layer = jitgen.MoELayer(case.config, case.weights)
        skipped = case.topk_ids.clone()
        skipped[:4] = -1
        far = torch.where(skipped < 0, case.topk_ids.long() + 2**32, case.topk_ids.long())
        far[1] = -(2**40)

        assert torch.equal(
            layer(case.x, case.topk_weights, far), layer(case.x, case.topk_weights, skipped)
        )

    def test_unusual_columns(self) -> None:
        """H and I that are no multiples of 128: the last block of scales is a short one."""
        generator = torch.Generator().manual_seed(1)
        w13, s13 = jitgen.quantize.per_block(torch.randn(3, 2 * 96, 200, generator=generator) / 14)
        w2, s2 = jitgen.quantize.per_block(torch.randn(3, 200, 96, generator=generator) / 10)
        x = torch.randn(5, 200, generator=generator).bfloat16()
        weights = jitgen.ExpertWeights(w13=w13, w2=w2, w13_scale=s13, w2_scale=s2)
        config = jitgen.MoEConfig(hidden=200, intermediate=96, experts=3, top_k=1)
        ids = torch.tensor([[0], [2], [2], [0], [1]])
        ones = torch.ones(5, 1)
        found = jitgen.MoELayer(config, weights)(x, ones, ids)
        expected = reference.moe(x, weights, ones, ids, config)
        assert reference.relative_error(found, expected) < reference.TOLERANCE["block128"]

    @pytest.mark.parametrize(
        "form",
        ["bf16", *(pytest.param(x, marks=pytest.mark.nightly) for x in ("block128", "row"))],
    )
    def test_a_bias(self, form: str) -> None:
        """Of both products, beside weights as they were quantised."""
        case = make(form)
        generator = torch.Generator().manual_seed(3)
        biases = {
            "w13_bias": torch.randn(EXPERTS, 2 * INTERMEDIATE, generator=generator),
            "w2_bias": torch.randn(EXPERTS, HIDDEN, generator=generator),
        }
        biased = replace(case, weights=replace(case.weights, **biases))
        found = jitgen.MoELayer(biased.config, biased.weights)(*biased.given)

        assert biased.error(found) < biased.tolerance < case.error(found)


class TestAModule:
    def test_its_state_is_its_weights(self) -> None:
        case, other = make("wide1"), make("wide1", seed=5)
        layer = jitgen.MoELayer(case.config, case.weights)
        found = jitgen.MoELayer(other.config, other.weights)
        assert not torch.equal(found(*case.given), layer(*case.given))
        found.load_state_dict(layer.state_dict())
        taken = jitgen.MoELayer(other.config, other.weights)
        taken.load_state_dict(layer.state_dict(), assign=True)
        copied = copy.deepcopy(layer)

        for each in (found, taken, copied):
            assert torch.equal(each(*case.given), layer(*case.given))
        assert not list(layer.parameters())

    def test_what_is_known_of_its_values_stays(self) -> None:
        """A layer forgot how near the exponents of rows are, so prefill never unpacked weights."""
        case = make("exact1")
        near = jitgen.MoELayer(case.config, case.weights)
        half = case.weights.of({name: each[3:] for name, each in case.weights.tensors.items()})
        for found in (near.weights, copy.deepcopy(near).weights, near.to("meta").weights, half):
            for name in ("w13", "w2"):
                given = getattr(case.weights, name)
                assert given.row_spread is not None
                assert getattr(found, name).row_spread == given.row_spread

    def test_a_state_has_its_own_rows(self) -> None:
        """What was known of the values before does not hold for those that a state brings."""
        case = make("exact1")
        near = jitgen.MoELayer(case.config, case.weights)
        far = torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN)
        far[..., :32] *= 2.0**30
        w13 = jitgen.quantize.prepack_mxfp4_from(far, layout="exact1")
        assert w13.row_spread is not None
        assert case.weights.w13.kind != w13.kind  # type: ignore[union-attr]
        other = jitgen.MoELayer(case.config, replace(case.weights, w13=w13))

        for assign in (False, True):
            near.load_state_dict(other.state_dict(), assign=assign)
            assert near.weights.w13.row_spread == w13.row_spread  # type: ignore[union-attr]

    @pytest.mark.parametrize("cast", [lambda x: x.half(), lambda x: x.to(torch.bfloat16)])
    def test_it_is_not_cast(self, cast: Callable[[torch.nn.Module], object]) -> None:
        case = make("block128")
        layer = jitgen.MoELayer(case.config, case.weights)

        with pytest.raises(InputError, match="cast"):
            cast(layer)
        assert case.error(layer(*case.given)) < case.tolerance

    def test_it_moves(self) -> None:
        case = make("exact1")  # nothing runs
        layer = jitgen.MoELayer(case.config, case.weights, max_tokens=4).to("meta")

        assert layer.weights.device.type == "meta"
        assert "exact1" in repr(layer)

    def test_memory_is_shared(self) -> None:
        """Layers in a row may have one workspace; one of other sizes is refused."""
        first, second = make("bf16"), make("bf16", seed=3)
        one = jitgen.MoELayer(first.config, first.weights, max_tokens=32)
        two = jitgen.MoELayer(second.config, second.weights, workspace=one.workspace)
        alone = jitgen.MoELayer(second.config, second.weights)

        assert torch.equal(
            two(one(*first.given), *first.given[1:]), alone(one(*first.given), *first.given[1:])
        )
        other = make("block128")
        wrong = jitgen.MoELayer(other.config, other.weights, workspace=one.workspace)
        with pytest.raises(InputError, match="workspace"):
            wrong(*other.given)


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["block128", "wide1"])
def test_torch_compile_sees_one_graph(form: str) -> None:
    """A layer is a row of operations in torch's hands, without a break."""
    case = make(form)
    layer = jitgen.MoELayer(case.config, case.weights)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")

    assert torch.equal(compiled(*case.given), layer(*case.given))


@needs.newer_dynamo
def test_torch_compile_needs_no_graph_for_each_number_of_tokens() -> None:
    """
    With `max_tokens` each number was a graph of its own, and torch gave up at the eighth. What it
    compiles first it may compile for those sizes alone.
    """
    case = make("bf16")
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=8)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for tokens in range(2, 13):
        given = [each[:tokens] for each in case.given]
        assert torch.equal(compiled(*given), layer(*given))
    assert len(graphs) <= 2


class TestMistakes:
    @pytest.mark.parametrize("form", ["block128", "exact1_row", "wide1"])
    def test_gradients_of_quantised_experts(self, form: str) -> None:
        case = make(form)
        layer = jitgen.MoELayer(case.config, case.weights)

        with pytest.raises(InputError, match=r"x: .* quantised experts have none: train with"):
            layer(case.x.requires_grad_(), case.topk_weights, case.topk_ids)

    def test_gradients_of_out(self) -> None:
        case = make("bf16")
        layer = jitgen.MoELayer(case.config, case.weights)

        with pytest.raises(InputError, match=r"x: .* what is written to out has none: leave out"):
            layer(*case.given, out=torch.empty_like(case.x.requires_grad_()))

    @pytest.mark.parametrize(
        ("changes", "argument"),
        [
            ({"x": torch.zeros(19, HIDDEN)}, "x"),
            ({"x": torch.zeros(19, HIDDEN + 16).bfloat16()}, "x"),
            ({"topk_ids": torch.zeros(19, TOP_K)}, "topk_ids"),
            ({"topk_ids": torch.zeros(3, TOP_K, dtype=torch.int32)}, "topk_ids"),
            ({"topk_weights": torch.zeros(19, TOP_K).bfloat16()}, "topk_weights"),
            ({"shared": torch.zeros(3, HIDDEN).bfloat16()}, "shared"),
            ({"out": torch.zeros(19, HIDDEN)}, "out"),
            ({"w2": torch.zeros(EXPERTS, HIDDEN, 64).bfloat16()}, "w2"),
            (
                {"w2": torch.zeros(EXPERTS, HIDDEN, INTERMEDIATE).to(torch.float8_e4m3fn)},
                "w2_scale",
            ),
            ({"w13_scale": torch.ones(EXPERTS, 4)}, "w13_scale"),
            ({"w13_bias": torch.ones(EXPERTS, 4)}, "w13_bias"),
            ({"activation_format": "row"}, "activation_format"),
            ({"activation": "tanh"}, "activation"),
            ({"swiglu_limit": 7.0}, "swiglu_limit"),
            ({"experts": 3}, "experts"),
            ({"topk_ids": torch.zeros(19, 33, dtype=torch.int32), "experts": 64}, "topk_ids"),
            ({"chunk_tokens": 0}, "chunk_tokens"),
            ({"first_expert": 6, "experts": 6}, "experts"),
            (
                {"activation": "swiglu_oai", "swiglu_limit": "7", "swiglu_alpha": 1.0},
                "swiglu_limit",
            ),
            (
                {"activation": "swiglu_oai", "swiglu_limit": 7.0, "swiglu_alpha": float("nan")},
                "swiglu_alpha",
            ),
            ({"interleaved": 3}, "interleaved"),
            ({"min_latency": "yes"}, "min_latency"),
            ({"numerics": "exact"}, "numerics"),
            ({"sorting": 3}, "sorting"),
            ({"workspace": 3}, "workspace"),
        ],
    )
    def test_one_error_names_the_argument(self, changes: dict[str, object], argument: str) -> None:
        case = make("bf16")
        given = dict(zip(("x", "topk_weights", "topk_ids"), case.given, strict=True))

        with pytest.raises(InputError) as caught:
            jitgen.moe(**{**given, **case.named, **changes})  # type: ignore[arg-type]
        assert caught.value.argument == argument

    @pytest.mark.parametrize(
        ("sizes", "message"),
        [
            ({"top_k": 33}, r"^top_k: must be of at most 32 experts a token \(got 33\)"),
            ({}, r"^experts: must be at most 1024 on one device \(got 2000\): give first_expert"),
            ({"local_experts": 1025}, r"^local_experts: must be at most 1024 on one device"),
        ],
        ids=str,
    )
    def test_a_layer_that_no_kernel_sorts(self, sizes: dict[str, int], message: str) -> None:
        """Its first call was refused, for logits that it does not have."""
        layer = {"hidden": 64, "intermediate": 64, "experts": 2000, "top_k": 2}
        with pytest.raises(InputError, match=message):
            jitgen.MoEConfig(**{**layer, **sizes})  # type: ignore[arg-type]
        assert jitgen.MoEConfig(**layer, local_experts=250).groups == 250  # type: ignore[arg-type]

    def test_a_layer_of_other_things(self) -> None:
        """These were an AttributeError of Python's, or not found before a call, or never."""
        case = make("bf16")
        config, weights = case.config, case.weights
        layer = jitgen.MoELayer(config, weights)
        mistakes: list[tuple[str, Callable[[], object]]] = [
            ("config", lambda: jitgen.MoELayer(3, weights)),  # type: ignore[arg-type]
            ("weights", lambda: jitgen.MoELayer(config, 3)),  # type: ignore[arg-type]
            ("workspace", lambda: jitgen.MoELayer(config, weights, workspace=3)),  # type: ignore[arg-type]
            ("max_tokens", lambda: layer.plan(0)),
            ("max_tokens", lambda: layer.plan("x")),  # type: ignore[arg-type]
            ("source", lambda: jitgen.MoELayer.from_checkpoint(3, "a", top_k=2)),  # type: ignore[arg-type]
        ]
        for argument, call in mistakes:
            with pytest.raises(InputError) as caught:
                call()
            assert caught.value.argument == argument
