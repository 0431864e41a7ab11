# SPDX-License-Identifier: Apache-2.0
"""
Transformers' experts with gradients, which were refused: every class, beside eager and grouped_mm,
and both beside float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from jitgen.errors import InputError
from jitgen.integrations import transformers as integration
from tests import needs

transformers = pytest.importorskip("transformers", reason="needs jitgen[transformers]")

from tests.transformers_experts import (  # noqa: E402  # which need it
    EXPERTS,
    HIDDEN,
    call,
    classes,
    errors,
    make,
    step,
)

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache", "registered"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]

FEW = {
    "MixtralExperts": "the usual kind",
    "Gemma4TextExperts": "another activation",
    "DeepseekV4Experts": "a gate of its own",
    "AriaExperts": "transposed weights",
    "GptOssExperts": "transposed weights by turns, and a bias",
    "OpenAIPrivacyFilterExperts": "transposed weights, and a bias",
    "NemotronHExperts": "no gate",
    "MuseSparkExperts": "a norm behind",
}
"""One of each kind; all others at night."""

TYPES = (torch.bfloat16, torch.float16, torch.float32)


def all_classes() -> list[Any]:
    """Return every class in every type; those of other kinds, and in other types, at night."""
    return [
        pytest.param(
            name,
            dtype,
            marks=[]
            if name in FEW and (dtype is TYPES[0] or name in ("MixtralExperts", "GptOssExperts"))
            else [pytest.mark.nightly],
        )
        for name in classes()
        for dtype in TYPES
    ]


def test_no_class_was_overlooked() -> None:
    assert len(classes()) >= 65
    assert FEW.keys() <= classes().keys()


@pytest.mark.parametrize(("name", "dtype"), all_classes(), ids=str)
def test_every_class(name: str, dtype: torch.dtype) -> None:
    """Result and all gradients are as near to float64 as those of transformers' own are."""
    module, given = make(name, dtype), call(dtype)
    exact = copy.deepcopy(module).double()
    if name == "MuseSparkExperts":  # which computes in float32 whatever it gets
        exact.post_expert_norm = copy.deepcopy(module.post_expert_norm).float()
    expected = step(exact, "eager", (given[0].double(), given[1], given[2].double()))
    of = {each: errors(step(module, each, given), expected) for each in ("eager", "grouped_mm")}
    mine = errors(step(module, integration.IMPLEMENTATION, given), expected)

    # This class computes in float32 what it gets in float64: eager's own error is 0 there, and two
    # results in float32 are compared, whose sums differ by some roundings of 6e-8 each.
    slack = 6e-7 if name == "OpenAIPrivacyFilterExperts" else 1e-7
    for found, *others in zip(mine, *of.values(), strict=True):
        assert found <= 1.5 * max(others) + slack
    with torch.no_grad():
        (alone,) = errors([module(*given)], expected[:1])
    is_float32 = of["eager"][0] == 0.0
    assert alone <= of["grouped_mm"][0] + (slack if is_float32 else 0.0)


def config() -> Any:
    return transformers.MixtralConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_local_experts=EXPERTS,
    )


def model(dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config(), dtype=dtype)


IDS = torch.arange(40).view(2, 20) * 3 % 128


def trained(
    made: Any, implementation: str, around: AbstractContextManager[Any] | None = None
) -> dict[str, Tensor]:
    """Return the loss and all gradients of a step."""
    made.set_experts_implementation(implementation)
    made.zero_grad()
    with around or nullcontext():
        loss = made(IDS, labels=IDS).loss
    loss.backward()
    found = {name: each.grad for name, each in made.named_parameters() if each.grad is not None}
    return {"loss": loss.detach(), **{name: grad.clone() for name, grad in found.items()}}


def near(mine: dict[str, Tensor], right: dict[str, Tensor], part: float) -> bool:
    assert mine.keys() == right.keys()
    return all(errors([mine[name]], [right[name]])[0] <= part for name in right)


def frozen(made: Any, keeps: Callable[[str], bool]) -> Any:
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(keeps(name))
    return made


class TestAModel:
    @pytest.mark.parametrize(
        ("dtype", "autocast", "part"),
        [
            (torch.bfloat16, None, 0.02),
            (torch.float32, None, 1e-5),
            (torch.float32, torch.bfloat16, 0.02),
            (torch.float32, torch.float16, 0.003),
            pytest.param(torch.bfloat16, torch.bfloat16, 0.02, marks=pytest.mark.nightly),
        ],
        ids=str,
    )
    def test_a_step(self, dtype: torch.dtype, autocast: torch.dtype | None, part: float) -> None:
        """In the model's type, and under autocast in autocast's, as its other products are."""
        around = [None if autocast is None else torch.autocast("cpu", autocast) for _ in range(2)]
        made = model(dtype)
        right = trained(made, "eager", around[0])

        assert near(trained(made, integration.IMPLEMENTATION, around[1]), right, part)

    @pytest.mark.parametrize(
        "keeps",
        [
            lambda name: "experts" not in name,
            lambda name: "experts" in name,
            lambda name: "gate." in name,
            lambda name: "norm" in name,
        ],
        ids=["around", "experts", "router", "norms"],
    )
    def test_a_part_of_it(self, keeps: Callable[[str], bool]) -> None:
        """Frozen experts let gradients pass, frozen surroundings do not need them."""
        made = frozen(model(), keeps)
        right = trained(made, "eager")

        assert near(trained(made, integration.IMPLEMENTATION), right, 0.02)

    def test_checkpoints_of_activations(self) -> None:
        made = model()
        right = trained(made, "eager")
        made.gradient_checkpointing_enable()
        made.train()

        assert near(trained(made, integration.IMPLEMENTATION), right, 0.02)

    def test_a_forward_without_a_backward(self) -> None:
        """No no_grad is needed for it, and it costs the same bits."""
        made = model().eval()
        made.set_experts_implementation(integration.IMPLEMENTATION)
        with torch.no_grad():
            expected = made(IDS).logits
        found = made(IDS).logits

        assert found.requires_grad
        assert errors([found.detach()], [expected])[0] < 0.02

    def test_inference_under_autocast(self) -> None:
        """A model in float32, computed in bfloat16 as eager experts are."""
        made = model(torch.float32).eval()
        found = {}
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            for each in ("eager", "grouped_mm", integration.IMPLEMENTATION):
                made.set_experts_implementation(each)
                found[each] = made(IDS).logits
        mine, others = found[integration.IMPLEMENTATION], found["grouped_mm"]

        assert errors([mine], [found["eager"]]) <= errors([others], [found["eager"]])

    def test_several_steps_of_an_optimiser(self) -> None:
        """With calls without gradients in between, which see every step's weights."""
        losses = {}
        for each in ("eager", integration.IMPLEMENTATION):
            made = model(torch.float32)
            made.set_experts_implementation(each)
            optimiser = torch.optim.SGD(made.parameters(), lr=0.05)
            losses[each] = []
            for _ in range(4):
                optimiser.zero_grad()
                made(IDS, labels=IDS).loss.backward()
                optimiser.step()
                with torch.no_grad():
                    losses[each].append(float(made(IDS, labels=IDS).loss))

        assert losses["eager"][-1] < 0.97 * losses["eager"][0]
        assert losses[integration.IMPLEMENTATION] == pytest.approx(losses["eager"], rel=1e-5)


class Adapter(torch.nn.Module):
    """What is added to frozen weights: a product of two thin matrices for each expert."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        groups, n, k = weight.shape
        self.up = torch.nn.Parameter(0.2 * torch.randn(groups, n, 4).to(weight.dtype))
        self.down = torch.nn.Parameter(0.2 * torch.randn(groups, 4, k).to(weight.dtype))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


class TestAdapters:
    """As PEFT has them: parametrised weights, of which the frozen part is a module's below."""

    @pytest.fixture
    def adapted(self) -> Any:
        made = frozen(model(), lambda _: False)
        for layer in made.model.layers:
            for part in ("gate_up_proj", "down_proj"):
                experts = layer.mlp.experts
                parametrize.register_parametrization(experts, part, Adapter(getattr(experts, part)))
        return made

    def test_they_train(self, adapted: Any) -> None:
        right = trained(adapted, "eager")

        assert sum("parametrizations" in name for name in right) == 8
        assert near(trained(adapted, integration.IMPLEMENTATION), right, 0.02)

    def test_their_changes_are_seen(self, adapted: Any) -> None:
        """A chain was kept by what the module holds itself, which computed weights are not."""
        adapted.eval()
        with torch.no_grad():
            for factor in (1.0, 4.0):
                for name, parameter in adapted.named_parameters():
                    if name.endswith(".up"):
                        parameter.mul_(factor)
                adapted.set_experts_implementation("eager")
                right = adapted(IDS).logits
                adapted.set_experts_implementation(integration.IMPLEMENTATION)
                assert errors([adapted(IDS).logits], [right])[0] < 0.02


class TestAModule:
    def test_a_share_of_the_experts(self) -> None:
        """Pairs of other ranks count nothing, and no NaN of unwritten rows comes back."""
        ids = torch.tensor([[0, 1], [EXPERTS, 2], [EXPERTS, EXPERTS], [5, EXPERTS], [3, 4]])
        x, _, _ = call(torch.bfloat16, 5)
        weights = torch.rand(5, 2).masked_fill(ids == EXPERTS, 0.0)
        for name in ("MixtralExperts", "MuseSparkExperts"):
            module = make(name, torch.bfloat16)
            module._is_expert_parallel = True
            right = step(module, "eager", (x, ids, weights))
            with torch.autograd.detect_anomaly():
                found = step(module, integration.IMPLEMENTATION, (x, ids, weights))

            right[2].masked_fill_(ids == EXPERTS, 0.0)
            assert max(errors(found, right)) < 0.02

    def test_no_tokens(self) -> None:
        """A rank may get none: its weights' gradients are zeros, as others wait for them."""
        module = make("MixtralExperts", torch.bfloat16)
        found = step(module, integration.IMPLEMENTATION, call(torch.bfloat16, 0))

        assert [tuple(each.shape) for each in found[:3]] == [(0, HIDDEN), (0, HIDDEN), (0, 2)]
        assert not any(each.any() for each in found)

    def test_tokens_of_another_type(self) -> None:
        """They become the weights', as transformers' own grouped_mm has it, and go back."""
        module = make("MixtralExperts", torch.bfloat16)
        x, ids, weights = call(torch.float32)
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                found = [
                    integration.experts_forward(module, each, ids, weights)
                    for each in (x, x.bfloat16())
                ]
            assert found[0].dtype is torch.float32
            assert torch.equal(found[0].bfloat16(), found[1])

    @pytest.mark.parametrize("name", ["MixtralExperts", "GptOssExperts"])
    def test_compiled(self, name: str) -> None:
        """One graph, whose gradients have the same bits."""
        torch._dynamo.reset()
        module, given = make(name, torch.bfloat16), call(torch.bfloat16)
        expected = step(module, integration.IMPLEMENTATION, given)
        module.compile(fullgraph=True, backend="aot_eager")

        assert all(map(torch.equal, step(module, integration.IMPLEMENTATION, given), expected))

    def test_under_torch_func(self) -> None:
        module, (x, ids, weights) = make("MixtralExperts", torch.float32), call(torch.float32)
        expected = step(module, integration.IMPLEMENTATION, (x, ids, weights))

        def loss(x: Tensor, weights: Tensor) -> Tensor:
            y = module(x, ids, weights)
            return (y * torch.linspace(-1, 1, HIDDEN)).sum()

        found = torch.func.grad(loss, argnums=(0, 1))(x, weights)
        assert max(errors([*found], expected[1:3])) < 1e-6

    def test_what_has_no_kernels_here_is_told(self) -> None:
        """Hopper multiplies no float32."""
        from jitgen.verify import device

        module = make("MixtralExperts", torch.float32)
        words = "sm_90a has no kernels for products of torch.float32 .*: load the model in bfloat16"
        with device("sm_90a", num_sms=1), pytest.raises(InputError, match=words):
            step(module, integration.IMPLEMENTATION, call(torch.float32))
