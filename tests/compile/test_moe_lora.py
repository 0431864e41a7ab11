# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters of a layer's experts: beside sums in float32, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.layer.early import ACTIVATION, EARLY_TOKENS
from jitgen.layer.early import ADAPTERS as ADDING
from jitgen.layer.lora import Adapters
from jitgen.verify import device
from tests import needs
from tests.moe_cases import EXPERTS, HIDDEN, INTERMEDIATE, SOME_FORMATS, Case, make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ADAPTERS = 3


def matrices(case: Case, rank: int = 16, parts: int = 1) -> dict[str, Tensor]:
    """Return adapters whose products are as large as those of the weights."""
    generator = torch.Generator().manual_seed(rank)

    def normal(*shape: int) -> Tensor:
        values = torch.randn((ADAPTERS, EXPERTS, *shape), generator=generator)
        return (values * shape[-1] ** -0.5).bfloat16()

    return {
        "w13_a": normal(parts * rank, HIDDEN),
        "w13_b": normal(case.weights.between, rank),
        "w2_a": normal(rank, INTERMEDIATE),
        "w2_b": normal(HIDDEN, rank),
        "scales": torch.tensor([1.0, 0.5, 2.0]),
    }


def ids_of(case: Case) -> Tensor:
    """Return the adapter of each token; every fourth has none, the first too."""
    return (torch.arange(len(case.x)) % (ADAPTERS + 1) - 1).int()


def error(case: Case, found: Tensor, lora: jitgen.ExpertLora, ids: Tensor, **more: Any) -> float:
    given = case.x, case.weights, case.topk_weights, case.topk_ids, case.config
    wanted = reference.moe(*given, adapters=Adapters(lora, ids), **more)
    return reference.relative_error(found, wanted)


@pytest.mark.parametrize("form", SOME_FORMATS)
def test_weights_of_every_format(form: str) -> None:
    """A token without an adapter has the bits that it has without adapters."""
    case = make(form)
    lora, ids = jitgen.ExpertLora(**matrices(case)), ids_of(case)
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=19, lora=lora)
    found, plain = layer(*case.given, adapter_ids=ids), layer(*case.given)

    assert error(case, found, lora, ids) < case.tolerance
    assert error(case, plain, lora, ids) > 0.3
    assert torch.equal(found[::4], plain[::4])


@pytest.mark.parametrize(("rank", "parts"), [(8, 2), (64, 1), (32, 2)])
def test_gates_and_ups_have_adapters_of_their_own(rank: int, parts: int) -> None:
    """Of every rank; numbers that are no adapter's count as none."""
    case = make("bf16")
    lora, ids = jitgen.ExpertLora(**matrices(case, rank, parts)), ids_of(case).long()
    ids[3::8], ids[7::8] = 2**40, ADAPTERS
    x, topk_weights, topk_ids = case.given
    found = jitgen.moe(
        x, case.weights.w13, case.weights.w2, topk_weights, topk_ids, lora=lora, adapter_ids=ids
    )

    assert error(case, found, lora, ids) < case.tolerance


@pytest.mark.parametrize("form", ["bf16_bias", "block128"])
@pytest.mark.parametrize("name", ["w13", "w2"])
def test_one_product_alone_has_adapters(form: str, name: str) -> None:
    case = make(form)
    tensors = matrices(case)
    lora = jitgen.ExpertLora(
        **{each: tensors[f"{name}_{each[-1]}"] for each in (f"{name}_a", f"{name}_b")}
    )
    layer = jitgen.MoELayer(case.config, case.weights, lora=lora)
    found = layer(*case.given, adapter_ids=ids_of(case))

    assert torch.equal(lora.tensors["scales"], torch.ones(ADAPTERS))
    assert error(case, found, lora, ids_of(case)) < case.tolerance


def test_activations_have_numbers_of_each_expert() -> None:
    """Also where the activation is computed a second time, because weights are quantised."""
    case = make("block128")
    config = replace(case.config, activation="swiglu_clamp", per_group=True)
    numbers = torch.linspace(0.2, 3, EXPERTS)[:, None]
    weights = replace(case.weights, group_numbers=numbers)
    lora, ids = jitgen.ExpertLora(**matrices(case)), ids_of(case)
    layer = jitgen.MoELayer(config, weights, max_tokens=19, lora=lora)
    wanted = reference.moe(
        *(case.x, weights, case.topk_weights, case.topk_ids, config), adapters=Adapters(lora, ids)
    )

    found = layer(*case.given, adapter_ids=ids)
    assert reference.relative_error(found, wanted) < case.tolerance
    assert reference.relative_error(layer(*case.given), wanted) > 0.3
    names = [each.name("sm_90a") for each in layer.configs("sm_90a")]
    assert any("_none_swiglu_clamp_pergroup_" in name for name in names)


@pytest.mark.parametrize("form", ["bf16", "block128"])
def test_every_early_launch_of_adapters_is_planned(form: str) -> None:
    """And no early one more; a call of more tokens has the kernels of the selector."""
    case = make(form)
    lora = jitgen.ExpertLora(**matrices(case))
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=300, lora=lora)
    planned = {each.name("sm_90a") for each in layer.configs("sm_90a")}
    asked = set[str]()
    with device("sm_90a"):
        for tokens in range(1, EARLY_TOKENS + 1):
            configs = layer._chain.for_tokens(tokens, lora=lora).configs
            assert (ACTIVATION in configs) == (form == "block128")
            asked |= {configs[name].name("sm_90a") for name in ADDING}
        assert set(ADDING).isdisjoint(layer._chain.for_tokens(2).configs)
        assert not layer._chain.for_tokens(EARLY_TOKENS + 1, lora=lora).configs

    adding = {name for name in planned if name.startswith("add_lora")}
    assert asked == {name for name in adding if "_early_" in name}
    assert adding - asked


class TestABatch:
    """A layer with adapters, called in other ways."""

    @pytest.fixture
    def case(self) -> Case:
        return make("block128", numerics="invariant")

    @pytest.fixture
    def layer(self, case: Case) -> jitgen.MoELayer:
        lora = jitgen.ExpertLora(**matrices(case))
        return jitgen.MoELayer(case.config, case.weights, max_tokens=19, lora=lora)

    def test_a_token_has_its_bits_in_every_batch(self, case: Case, layer: jitgen.MoELayer) -> None:
        """Alone, in chunks, and where the result takes the place of the tokens."""
        ids = ids_of(case)
        whole = layer(*case.given, adapter_ids=ids)
        chunks = jitgen.MoELayer(case.config, case.weights, max_tokens=4, lora=layer.lora)
        alone = [
            layer(*(each[t : t + 1] for each in case.given), adapter_ids=ids[t : t + 1])
            for t in range(3)
        ]
        x = case.x.clone()

        assert torch.equal(chunks(*case.given, adapter_ids=ids), whole)
        assert torch.equal(torch.cat(alone), whole[:3])
        assert layer(x, *case.given[1:], adapter_ids=ids, out=x) is x
        assert torch.equal(x, whole)

    def test_what_is_shared_and_sorted(self, case: Case, layer: jitgen.MoELayer) -> None:
        ids, shared = ids_of(case), case.x.flip(0)
        sorting = jitgen.sort_pairs(case.topk_ids, experts=EXPERTS)
        found = layer(*case.given, adapter_ids=ids, shared=shared, sorting=sorting)

        assert layer.lora is not None
        assert error(case, found, layer.lora, ids, shared=shared) < case.tolerance

    def test_ranks_have_the_adapters_of_their_experts(
        self, case: Case, layer: jitgen.MoELayer
    ) -> None:
        """And add up to the whole."""
        assert layer.lora is not None
        ids, total = ids_of(case), torch.zeros(case.x.shape)
        for first, count in ((0, 2), (2, 4)):
            part = slice(first, first + count)
            config = replace(case.config, first_expert=first, local_experts=count)
            weights = case.weights.of({n: x[part] for n, x in case.weights.tensors.items()})
            tensors = {n: x if n == "scales" else x[:, part] for n, x in layer.lora.tensors.items()}
            lora = jitgen.ExpertLora(**tensors)
            rank = jitgen.MoELayer(config, weights, lora=lora)
            total += rank(*case.given, adapter_ids=ids)

        assert error(case, total, layer.lora, ids) < case.tolerance

    def test_another_adapter_in_its_place(self, case: Case, layer: jitgen.MoELayer) -> None:
        """Written in place, or assigned; the layer's state is its weights alone."""
        assert layer.lora is not None
        ids = ids_of(case)
        layer(*case.given, adapter_ids=ids)
        layer.lora.tensors["w13_a"][1] = 0.0
        first = layer(*case.given, adapter_ids=ids)
        assert error(case, first, layer.lora, ids) < case.tolerance
        layer.lora = jitgen.ExpertLora(**matrices(case, rank=8))

        assert error(case, layer(*case.given, adapter_ids=ids), layer.lora, ids) < case.tolerance
        assert layer.state_dict().keys() == case.weights.tensors.keys()

    def test_they_move_with_the_module(self, layer: jitgen.MoELayer) -> None:
        moved = layer.to("meta").lora

        assert moved is not None
        assert {each.device.type for each in moved.tensors.values()} == {"meta"}

    @pytest.mark.nightly
    def test_torch_compile_sees_one_graph(self, case: Case, layer: jitgen.MoELayer) -> None:
        ids = ids_of(case)
        expected = layer(*case.given, adapter_ids=ids)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")

        assert torch.equal(compiled(*case.given, adapter_ids=ids), expected)


@pytest.mark.parametrize("form", ["bf16", pytest.param("row", marks=pytest.mark.nightly)])
def test_a_plan_is_what_calls_load(form: str) -> None:
    case = make(form, tokens=130)
    lora, ids = jitgen.ExpertLora(**matrices(case)), ids_of(case)
    layer = jitgen.MoELayer(case.config, case.weights, max_tokens=130, lora=lora)
    assert layer.prewarm("cpu", jobs=1).ok
    with jitgen.Session(on_miss="error"):
        for tokens in (1, 30, 130):
            given = [each[:tokens] for each in (*case.given, ids)]
            layer(*given[:3], adapter_ids=given[3])
    names = {config.to_name() for config in layer.configs("sm_90a") if config.op == "add_lora"}

    assert {"byrow" in name for name in names} == {True, False}


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"w13_b": None}, "w13_b: is required with w13_a"),
            (dict.fromkeys(("w13_a", "w13_b", "w2_a", "w2_b")), "lora: must have matrices"),
            ({"w2_b": torch.zeros(3, 6, 256, 12).bfloat16()}, "w2_b: must have a rank of 8, 16"),
            ({"w2_a": torch.zeros(3, 6, 32, 128).bfloat16()}, "w2_a: must have 16 rows, the rank"),
            ({"w13_a": torch.zeros(3, 6, 48, 256).bfloat16()}, "w13_a: must have 16 rows.* or 32"),
            ({"w13_a": torch.zeros(3, 6, 16, 256)}, "w13_a: must be bfloat16"),
            ({"scales": torch.ones(2)}, "scales: must have shape .*one for each adapter"),
            (
                {"w13_a": torch.zeros(2, 6, 16, 256), "w13_b": torch.zeros(2, 6, 256, 16)},
                r"w2_a: must be of L, G = \(2, 6\)",
            ),
            ({"w13_b": torch.zeros(3, 6, 16, 256).bfloat16().mT}, "must have contiguous matrices"),
        ],
        ids=str,
    )
    def test_matrices_that_do_not_fit(self, change: dict[str, Any], words: str) -> None:
        case = make("bf16")
        both = "shape" not in words and len(change) == 2
        change = {n: x.bfloat16() for n, x in change.items()} if both else change
        with pytest.raises(InputError, match=words):
            jitgen.ExpertLora(**matrices(case) | change)

    @pytest.mark.parametrize(
        ("named", "words"),
        [
            ({"adapter_ids": torch.zeros(3).int()}, "adapter_ids: must have shape .*each token"),
            ({"adapter_ids": torch.zeros(19)}, "adapter_ids: must be int32 or int64"),
            ({"x": torch.zeros(19, 256).bfloat16().requires_grad_()}, "none with adapters"),
        ],
        ids=str,
    )
    def test_calls(self, named: dict[str, Any], words: str) -> None:
        case = make("bf16")
        layer = jitgen.MoELayer(case.config, case.weights, lora=jitgen.ExpertLora(**matrices(case)))
        given = dict(zip(("x", "topk_weights", "topk_ids"), case.given, strict=True))
        with pytest.raises(InputError, match=words):
            layer(**given | {"adapter_ids": ids_of(case)} | named)

    def test_layers(self) -> None:
        case, wide = make("bf16"), make("bf16", interleaved=True)
        tensors = matrices(case)
        lora = jitgen.ExpertLora(**tensors)
        few = jitgen.ExpertLora(**{n: x if n == "scales" else x[:, 1:] for n, x in tensors.items()})
        for kind, config, words in (
            (few, case.config, "lora.w13_a: must be of 6 experts and 256 columns, H"),
            (tensors, case.config, "lora: must be a jitgen.ExpertLora"),
            (jitgen.ExpertLora(**matrices(case, parts=2)), wide.config, "gates and ups take turns"),
        ):
            with pytest.raises(InputError, match=words):
                jitgen.MoELayer(config, case.weights, lora=kind)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="adapter_ids: must be None for a layer without"):
            jitgen.MoELayer(case.config, case.weights)(*case.given, adapter_ids=ids_of(case))
        x, topk_weights, topk_ids = case.given
        with pytest.raises(InputError, match="adapter_ids: is required with lora"):
            jitgen.moe(x, case.weights.w13, case.weights.w2, topk_weights, topk_ids, lora=lora)
