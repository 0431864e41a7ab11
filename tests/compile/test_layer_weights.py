# SPDX-License-Identifier: Apache-2.0
"""A layer computes with the weights that it has when it is called, however they came there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

import jitgen
from jitgen.errors import InputError
from tests import needs
from tests.moe_cases import Case, make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

Replace = Callable[[jitgen.MoELayer, dict[str, Tensor]], object]


def by_assignment(layer: jitgen.MoELayer, new: dict[str, Tensor]) -> None:
    for name, each in new.items():
        setattr(layer, name, each)


def by_data(layer: jitgen.MoELayer, new: dict[str, Tensor]) -> None:
    for name, each in new.items():
        getattr(layer, name).data = each


def by_copy(layer: jitgen.MoELayer, new: dict[str, Tensor]) -> None:
    for name, each in new.items():
        getattr(layer, name).copy_(each)


def by_parameters(layer: jitgen.MoELayer, new: dict[str, Tensor]) -> None:
    for name, each in new.items():
        setattr(layer, name, torch.nn.Parameter(each, requires_grad=False))


WAYS: dict[str, Replace] = {
    "assignment": by_assignment,
    "_buffers": lambda layer, new: layer._buffers.update(new),
    "data": by_data,
    "copy_": by_copy,
    "parameters": by_parameters,
    "load_state_dict": lambda layer, new: layer.load_state_dict(new),
    "load_state_dict, assign": lambda layer, new: layer.load_state_dict(new, assign=True),
}


def layer_of(case: Case, **options: Any) -> jitgen.MoELayer:
    weights = case.weights.of({n: x.clone() for n, x in case.weights.tensors.items()})
    return jitgen.MoELayer(case.config, weights, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", ["bf16", "block128", "exact1_row"])
def test_weights_that_were_replaced(form: str, way: str) -> None:
    """The layer went on computing with those that it was built with, whatever its state said."""
    case, other = make(form), make(form, seed=5)
    layer, expected = layer_of(case, max_tokens=32), layer_of(other)(*case.given)
    before = layer(*case.given)
    new = {name: each.clone() for name, each in other.weights.tensors.items()}
    WAYS[way](layer, new)

    assert not torch.equal(before, expected)
    assert torch.equal(layer(*case.given), expected)
    assert layer.weights.tensors.keys() == new.keys()
    for name, each in layer.weights.tensors.items():
        assert each is getattr(layer, name)
        assert torch.equal(each.view(torch.uint8), new[name].view(torch.uint8))


def test_one_weight_alone() -> None:
    case = make("block128")
    layer = layer_of(case)
    layer.w2_scale = torch.zeros_like(layer.w2_scale)

    assert not layer(*case.given).any()


@pytest.mark.parametrize("form", ["bf16", "exact1_row"])
def test_functional_call(form: str) -> None:
    """With the weights that it is given, and afterwards with its own again."""
    case, other = make(form), make(form, seed=5)
    layer, expected = layer_of(case), layer_of(other)(*case.given)
    own = layer(*case.given)

    assert torch.equal(functional_call(layer, other.weights.tensors, case.given), expected)
    assert torch.equal(layer(*case.given), own)


@needs.newer_dynamo
@pytest.mark.parametrize("form", ["bf16", "exact1_row"])
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
def test_a_compiled_layer(form: str) -> None:
    case, other = make(form), make(form, seed=5)
    layer, expected = layer_of(case), layer_of(other)(*case.given)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(*case.given), layer(*case.given))
        by_assignment(layer, other.weights.tensors)

        assert torch.equal(compiled(*case.given), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "w13: must be a torch tensor"),
        (torch.zeros(3), "w13: must have 3 dimensions"),
        (torch.zeros(4, 256, 256).bfloat16(), "w2: must be"),
        (torch.zeros(6, 256, 256), "w13: must be bfloat16"),
        (torch.zeros(6, 256, 512).bfloat16(), "w2: must be"),
    ],
)
def test_weights_of_another_layer_are_refused(wrong: Tensor | None, message: str) -> None:
    case = make("bf16")
    layer = layer_of(case)
    layer.w13 = wrong

    with pytest.raises(InputError, match=message):
        layer(*case.given)


def test_prepacked_weights_of_another_layer_are_refused() -> None:
    case = make("exact1_row")
    for wrong in (torch.zeros(3, dtype=torch.int32), torch.zeros(6, 4, 2, 1088)):
        layer = layer_of(case)
        layer.w13 = wrong
        with pytest.raises(InputError, match="w13: its values: must be"):
            layer(*case.given)


class TestWhatIsKnownOfPrepackedWeights:
    """Rows of near exponents may be unpacked; others would be rounded if they were."""

    @pytest.fixture
    def far(self) -> jitgen.quantize.PrepackedWeights:
        w = torch.randn(2, 64, 64)
        w[..., :32] *= 2.0**30
        return jitgen.quantize.prepack_mxfp4_from(w, layout="exact1")

    @pytest.fixture
    def near(self) -> jitgen.quantize.PrepackedWeights:
        return jitgen.quantize.prepack_mxfp4_from(torch.ones(2, 64, 64), layout="exact1")

    def test_what_was_written_to_them_is_not_known(self, near: Any, far: Any) -> None:
        """Far rows that were written over near ones were rounded, without a word."""
        assert near.has_near_rows
        assert not far.has_near_rows
        kind = near.kind
        near.values.copy_(far.values)

        assert not near.has_near_rows
        assert near.kind == far.kind != kind
        assert near.with_row_spread().row_spread == far.row_spread

    def test_nor_of_memory_that_took_the_place_of_theirs(self, near: Any, far: Any) -> None:
        near.values.data = far.values.clone()

        assert not near.has_near_rows

    def test_nor_of_parts_and_copies_made_then(self, near: Any) -> None:
        part, copied = near.part(slice(1, 2)), copy.deepcopy(near)
        assert part.has_near_rows
        assert copied.has_near_rows
        near.values.zero_()

        assert not part.has_near_rows, "it lies in the same memory"
        assert copied.has_near_rows
        for made in (near.part(slice(0, 1)), near.to("cpu"), copy.deepcopy(near)):
            assert not made.has_near_rows

    def test_nor_of_tensors_of_inference_mode(self) -> None:
        """Nothing counts what is written to those."""
        with torch.inference_mode():
            made = jitgen.quantize.prepack_mxfp4_from(torch.ones(2, 64, 64), layout="exact1")

        assert not made.has_near_rows

    def test_nor_in_graphs_which_outlive_values(self, near: Any) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        a, scale = jitgen.quantize.per_row(torch.ones(4, 64))
        offs = torch.tensor([2, 4], dtype=torch.int32)
        graph = make_fx(lambda a: jitgen.grouped_gemm(a, near, scale, offs=offs))(a)

        assert "row_spread" not in graph.code
