# SPDX-License-Identifier: Apache-2.0
"""
Weights of transformers' experts that change between calls, in every way in which torch and its
users change them: what a call multiplies is what the module holds.

Copies of gpt-oss's weights, MXFP4 and float32, were kept by address, so that `copy_`, `add_` and
`load_state_dict` were not seen, for errors of 0.7 to 5; scales of another type than float32
likewise; and weights that an adapter computes were those of the first call.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

import jitgen
from jitgen.errors import InputError
from jitgen.integrations import transformers as integration
from jitgen.integrations import transformers_chains as chains
from jitgen.layer import reference
from tests import needs

transformers = pytest.importorskip("transformers", reason="needs jitgen[transformers]")

from tests.transformers_experts import call, fp8_experts, make  # noqa: E402  # which needs it

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache", "registered"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]

Change = Callable[[Any, str, Tensor], object]
"""Gives the parameter of a module that has this name these values."""


def stepped(module: Any, name: str, values: Tensor) -> None:
    weight = getattr(module, name)
    weight.requires_grad_()
    weight.grad = (weight - values).detach()
    torch.optim.SGD([weight], lr=1.0).step()
    weight.grad = None


def in_inference(module: Any, name: str, values: Tensor) -> None:
    with torch.inference_mode():
        getattr(module, name).copy_(values)


def freed(module: Any, name: str, values: Tensor) -> None:
    """Give the memory away before others is taken, which may lie at the same address."""
    weight = getattr(module, name)
    weight.data = torch.empty(0, dtype=weight.dtype)
    weight.data = values.clone()


def resized(module: Any, name: str, values: Tensor) -> None:
    weight = getattr(module, name)
    size = weight.untyped_storage().size()
    weight.untyped_storage().resize_(0)
    weight.untyped_storage().resize_(size)
    weight.data.copy_(values)


COUNTED: dict[str, Change] = {
    "copy_": lambda module, name, values: getattr(module, name).copy_(values),
    "add_": lambda module, name, values: getattr(module, name).add_(values - getattr(module, name)),
    "detach": lambda module, name, values: getattr(module, name).detach().copy_(values),
    "load_state_dict": lambda module, name, values: module.load_state_dict(
        {**module.state_dict(), name: values}
    ),
    "assigned": lambda module, name, values: module.load_state_dict(
        {**module.state_dict(), name: values}, assign=True
    ),
    "data": lambda module, name, values: setattr(getattr(module, name), "data", values.clone()),
    "parameter": lambda module, name, values: setattr(module, name, nn.Parameter(values.clone())),
    "in the module's dictionary": lambda module, name, values: module._parameters.update(
        {name: nn.Parameter(values.clone())}
    ),
    "optimiser": stepped,
    "inference mode": in_inference,
    "freed": freed,
}
"""What torch counts, or what shows in where a weight is."""

UNCOUNTED: dict[str, Change] = {
    "in data": lambda module, name, values: getattr(module, name).data.copy_(values),
    "resized": resized,
    "swapped": lambda module, name, values: swap_tensors(
        getattr(module, name), nn.Parameter(values.clone())
    ),
}
"""What nothing shows that could be asked for at each call."""

GIVEN = call(torch.bfloat16)


def difference(module: Any, given: tuple[Tensor, ...] = GIVEN) -> float:
    """Return how far the result is from that of transformers' own code."""
    found = []
    with torch.no_grad():
        for each in (integration.IMPLEMENTATION, "eager"):
            module.config._experts_implementation = each
            found.append(module(*given))
    return reference.relative_error(*found)


def mxfp4_values(weight: Tensor) -> Tensor:
    """Return values near those of transposed weights that MXFP4 holds."""
    prepacked = jitgen.quantize.prepack_mxfp4_from(weight.transpose(1, 2))
    return prepacked.weights().transpose(1, 2).contiguous().to(weight.dtype)


def gpt_oss() -> Any:
    """Return experts with the values of an MXFP4 checkpoint."""
    module = make("GptOssExperts", torch.bfloat16, intermediate_size=64)
    for name in ("gate_up_proj", "down_proj"):
        weight = getattr(module, name)
        weight.data = mxfp4_values(weight.data)
    return module


def other(module: Any, name: str) -> Tensor:
    """Return other values for a parameter, that a held format can have as well."""
    values = torch.randn(getattr(module, name).shape) * 0.3
    return mxfp4_values(values.bfloat16()) if values.dim() == 3 else values.bfloat16()


FEW = ("copy_", "data", "freed", "in data")


def some(name: str, *values: str) -> list[Any]:
    """Return values of a parameter of a few changes, and at night of all, beside those of one."""
    return [
        pytest.param(
            each, change, marks=[] if change in FEW or each == name else pytest.mark.nightly
        )
        for each in values
        for change in {**COUNTED, **UNCOUNTED}
    ]


@pytest.mark.parametrize(
    ("name", "change"),
    some("GptOssExperts", "GptOssExperts", "MixtralExperts", "Gemma4TextExperts"),
)
def test_every_change_is_seen(name: str, change: str) -> None:
    """Of every parameter, one after the other; nothing is copied that is kept."""
    module = make(name, torch.bfloat16)
    assert difference(module) < 0.02
    for part, _ in [*module.named_parameters()]:
        before = getattr(module, part).clone()
        with torch.no_grad():
            {**COUNTED, **UNCOUNTED}[change](module, part, torch.randn_like(before) * 0.3)

        assert not torch.equal(getattr(module, part), before)
        assert difference(module) < 0.02


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("part", "change"),
    [
        each
        for each in some("down_proj", "down_proj", "gate_up_proj", "gate_up_proj_bias")
        if each.values[1] in COUNTED
    ],
)
def test_copies_in_mxfp4_are_made_anew(part: str, change: str) -> None:
    """With values that MXFP4 has, and with others, which are read as they lie; and back."""
    module = gpt_oss()
    assert integration.use_mxfp4(module) == 1
    assert difference(module) < 0.02
    for values in (other(module, part), other(module, part) * 1.1, other(module, part)):
        with torch.no_grad():
            COUNTED[change](module, part, values)
        assert difference(module) < 0.02


class TestUseMxfp4:
    def multiplies(self, module: Any) -> type:
        return type(chains.chain_of(module, 2).weights.w13)

    def test_only_where_it_is_asked_for(self) -> None:
        module = gpt_oss()
        assert self.multiplies(module) is Tensor
        assert integration.use_mxfp4(module) == 1
        assert self.multiplies(module) is jitgen.quantize.PrepackedWeights
        assert difference(module) < 0.02
        assert integration.use_mxfp4(module, False) == 0
        assert self.multiplies(module) is Tensor

    def test_values_that_mxfp4_has_not_are_left_as_they_are(self) -> None:
        """In the first expert, or in the last alone."""
        for place in (0, -1):
            module = gpt_oss()
            module.down_proj.data[place, 0, 0] = 1.2345
            assert integration.use_mxfp4(module) == 0
            assert self.multiplies(module) is Tensor
            assert difference(module) < 0.02

    def test_sizes_that_mxfp4_has_not_are_left_as_they_are(self) -> None:
        module = make("GptOssExperts", torch.bfloat16, intermediate_size=48)

        assert integration.use_mxfp4(module) == 0
        assert difference(module) < 0.02

    def test_what_torch_does_not_count_is_seen_when_it_is_called_again(self) -> None:
        module = gpt_oss()
        integration.use_mxfp4(module)
        module.down_proj.data.copy_(other(module, "down_proj"))
        integration.use_mxfp4(module)

        assert difference(module) < 0.02

    def test_weights_of_inference_mode_are_refused(self) -> None:
        with torch.inference_mode():
            module = gpt_oss()
        with pytest.raises(InputError, match=r"made under torch\.inference_mode"):
            integration.use_mxfp4(module)
        assert difference(module) < 0.02

    def test_training_reads_the_weights_themselves(self) -> None:
        """Gradients are of what the module holds, and held copies do not interfere."""
        from tests.transformers_experts import errors, step

        module = gpt_oss()
        integration.use_mxfp4(module)
        expected = step(module, "eager", GIVEN)

        assert max(errors(step(module, integration.IMPLEMENTATION, GIVEN), expected)) < 0.02

    def test_a_plan_is_for_what_is_multiplied(self) -> None:
        module = gpt_oss()
        module.config._experts_implementation = integration.IMPLEMENTATION
        for use in (True, False):
            integration.use_mxfp4(module, use)
            assert integration.prewarm(module, max_tokens=20, arch="cpu", jobs=1).ok
            with jitgen.Session(on_miss="error"), torch.no_grad():
                module(*GIVEN)

    def test_a_model_without_such_experts(self) -> None:
        with pytest.raises(InputError, match="no experts of gpt-oss"):
            integration.use_mxfp4(make("MixtralExperts", torch.bfloat16))


class TestFp8:
    GIVEN = (torch.randn(5, 128).bfloat16(), torch.tensor([[0, 1]] * 5), torch.rand(5, 2))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("change", ["copy_", "data", "in data", "parameter", "resized"])
    def test_scales(self, dtype: torch.dtype, change: str) -> None:
        """Of float32 they are read where they are, of another type at each call."""
        module = fp8_experts()
        for part in ("gate_up_proj_scale_inv", "down_proj_scale_inv"):
            scale = getattr(module, part)
            scale.data = (2.0 ** scale.data.log2().round()).to(dtype)  # which both types have
        with torch.no_grad():
            first = integration.experts_forward(module, *self.GIVEN)
            values = module.down_proj_scale_inv.detach() * 4
            {**COUNTED, **UNCOUNTED}[change](module, "down_proj_scale_inv", values)
            second = integration.experts_forward(module, *self.GIVEN)

        assert torch.equal(second, 4 * first)

    def test_the_activation(self) -> None:
        """Its limit was that of the first call."""
        module = fp8_experts(swiglu_alpha=1.702, swiglu_limit=7.0, limit=7.0)
        with torch.no_grad():
            first = integration.experts_forward(module, *self.GIVEN)
            module.swiglu_limit = 0.01
            second = integration.experts_forward(module, *self.GIVEN)
            module.swiglu_limit = 7.0
            again = integration.experts_forward(module, *self.GIVEN)

        assert not torch.equal(first, second)
        assert torch.equal(first, again)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["MixtralExperts", "MuseSparkExperts", "GptOssExperts"])
def test_nothing_outlives_a_module(name: str) -> None:
    """A chain with the activation of a module's own code held it for ever."""
    module = make(name, torch.bfloat16)
    if name == "GptOssExperts":
        integration.use_mxfp4(module)
    assert difference(module) < 0.02
    gone = weakref.ref(module), weakref.ref(module.down_proj)
    del module
    gc.collect()

    assert [each() for each in gone] == [None, None]


def test_a_call_computes_with_what_functional_call_gives_it() -> None:
    module = make("MixtralExperts", torch.bfloat16)
    assert difference(module) < 0.02
    others = {name: torch.randn_like(each) * 0.3 for name, each in module.named_parameters()}
    found = []
    with torch.no_grad():
        for each in (integration.IMPLEMENTATION, "eager"):
            module.config._experts_implementation = each
            found.append(torch.func.functional_call(module, others, GIVEN))

    assert reference.relative_error(*found) < 0.02
    assert difference(module) < 0.02
