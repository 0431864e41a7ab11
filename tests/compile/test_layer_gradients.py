# SPDX-License-Identifier: Apache-2.0
"""Gradients of a layer of bfloat16 experts, beside float32 autograd of torch; they were refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import jitgen
from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.ops.activation_quantize.samples import numbers_of
from tests import needs

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE = 37, 6, 3, 64, 48

NEAR = 0.01
"""
Part of the norm of a gradient by which the rounding of bfloat16 in a chain may change it.
"""

Tensors = dict[str, Tensor]


def config_of(activation: str = "swiglu", **options: Any) -> jitgen.MoEConfig:
    numbers = numbers_of(Activation(activation), is_exact=False)
    return jitgen.MoEConfig(
        hidden=HIDDEN,
        intermediate=INTERMEDIATE,
        experts=EXPERTS,
        top_k=TOP_K,
        activation=activation,
        **numbers,
        **options,
    )


def operands(config: jitgen.MoEConfig, *more: str) -> Tensors:
    """The tensors of a call that may have gradients; `more` are biases and what is shared."""
    torch.manual_seed(0)
    groups, columns = config.groups, INTERMEDIATE * (1 + config.is_gated)
    found = {
        "x": torch.randn(TOKENS, HIDDEN).bfloat16(),
        "topk_weights": torch.rand(TOKENS, TOP_K),
        "w13": (torch.randn(groups, columns, HIDDEN) / 8).bfloat16(),
        "w2": (torch.randn(groups, HIDDEN, INTERMEDIATE) / 7).bfloat16(),
    }
    others = {
        "w13_bias": torch.randn(groups, columns),
        "w2_bias": torch.randn(groups, HIDDEN),
        "shared": torch.randn(TOKENS, HIDDEN).bfloat16(),
        "shared_weights": torch.rand(TOKENS),
    }
    return found | {name: others[name] for name in more}


def ids_of(config: jitgen.MoEConfig) -> Tensor:
    torch.manual_seed(1)
    return torch.stack([torch.randperm(config.every)[:TOP_K] for _ in range(TOKENS)]).int()


def layer(config: jitgen.MoEConfig, given: Tensors, ids: Tensor) -> Tensor:
    return jitgen.moe(
        topk_ids=ids,
        **given,  # type: ignore[arg-type]
        **config.gate,
        experts=config.experts,
        first_expert=config.first_expert,
        zero_experts=config.zero_experts,
    )


def right(config: jitgen.MoEConfig, given: Tensors, ids: Tensor) -> Tensor:
    """The same in float32."""
    names = ("w13", "w2", "w13_bias", "w2_bias")
    weights = jitgen.ExpertWeights(**{name: given.get(name) for name in names})  # type: ignore[arg-type]
    shared = given.get("shared"), given.get("shared_weights")
    return reference.moe(given["x"], weights, given["topk_weights"], ids, config, *shared)


def both(config: jitgen.MoEConfig, given: Tensors) -> tuple[Tensors, Tensors]:
    """Gradients of every tensor in `given`, of a layer and of the reference."""
    ids, torch_seed = ids_of(config), torch.Generator().manual_seed(2)
    dout = torch.randn(TOKENS, HIDDEN, generator=torch_seed).bfloat16()
    found = []
    for run in (layer, right):
        leaves = {name: each.clone().requires_grad_() for name, each in given.items()}
        y = run(config, leaves, ids)
        gradients = torch.autograd.grad(y, [*leaves.values()], dout.to(y))
        found.append(dict(zip(leaves, gradients, strict=True)))
    return found[0], found[1]


def are_near(found: Tensors, expected: Tensors, part: float = NEAR) -> bool:
    assert all(found[name].dtype is expected[name].dtype for name in found)
    errors = {name: reference.relative_error(found[name], expected[name]) for name in expected}
    return max(errors.values()) < part


EVERYTHING = ("w13_bias", "w2_bias", "shared", "shared_weights")


class TestRight:
    @pytest.mark.parametrize("activation", [*Activation], ids=str)
    def test_every_activation(self, activation: str) -> None:
        """A value that is rounded may lie on the other side of a limit, which has no gradient."""
        config = config_of(activation)
        is_limited = "swiglu_limit" in Activation(activation).numbers

        assert are_near(*both(config, operands(config)), 0.1 if is_limited else NEAR)

    def test_biases_and_what_is_shared(self) -> None:
        config = config_of()

        assert are_near(*both(config, operands(config, *EVERYTHING)))

    def test_gates_that_take_turns(self) -> None:
        config = config_of("swiglu_oai", interleaved=True)

        assert are_near(*both(config, operands(config, "w13_bias", "w2_bias")))

    def test_a_share_of_the_experts(self) -> None:
        """Rows of other ranks' experts hold what was in memory, of which no gradient is made."""
        config = config_of(first_expert=2, local_experts=3)
        found, expected = both(config, operands(config, *EVERYTHING))
        ids = ids_of(config)
        is_other = (ids < 2) | (ids >= 5)

        assert are_near(found, expected)
        assert not found["topk_weights"][is_other].any()

    def test_experts_without_weights(self) -> None:
        config = config_of(zero_experts=2)

        assert are_near(*both(config, operands(config)))

    def test_one_weight_alone_is_a_dot_product(self) -> None:
        """By differences of the layer itself, in a direction, of what is float32."""
        config, ids = config_of(), ids_of(config_of())
        given = operands(config, "w2_bias")
        (found, _), step = both(config, given), 0.25
        torch.manual_seed(2)
        dout = torch.randn(TOKENS, HIDDEN).bfloat16()
        for name in ("topk_weights", "w2_bias"):
            way = torch.randn_like(given[name])
            ends = [
                right(config, given | {name: given[name] + sign * step * way}, ids)
                for sign in (1, -1)
            ]
            slope = ((ends[0] - ends[1]) * dout.float()).sum() / (2 * step)
            assert float((found[name] * way).sum()) == pytest.approx(
                float(slope), rel=0.02, abs=0.5
            )

    def test_no_tokens(self) -> None:
        config = config_of()
        given = operands(config) | {
            "x": torch.zeros(0, HIDDEN).bfloat16(),
            "topk_weights": torch.zeros(0, TOP_K),
        }
        leaves = {name: each.requires_grad_() for name, each in given.items()}
        ids = torch.zeros(0, TOP_K, dtype=torch.int32)
        layer(config, leaves, ids).sum().backward()  # type: ignore[no-untyped-call]

        assert not any(each.grad.any() for each in leaves.values())  # type: ignore[union-attr]


class TestAModule:
    @pytest.fixture
    def made(self) -> jitgen.MoELayer:
        config = config_of()
        given = operands(config)
        weights = {name: nn.Parameter(given[name]) for name in ("w13", "w2")}
        return jitgen.MoELayer(config, jitgen.ExpertWeights(**weights), max_tokens=64)

    def step(self, made: jitgen.MoELayer, run: Callable[..., Tensor] | None = None) -> list[Any]:
        """Gradients of tokens, of the weights of pairs, and of both matrices."""
        given = operands(made.config)
        x, weights = (given[name].requires_grad_() for name in ("x", "topk_weights"))
        made.zero_grad()
        run = made if run is None else run
        y = run(x, weights, ids_of(made.config))
        y.float().square().sum().backward()  # type: ignore[no-untyped-call]
        found = [x.grad, weights.grad, made.w13.grad, made.w2.grad]
        return [None if each is None else each.clone() for each in found]

    def test_parameters_are_parameters(self, made: jitgen.MoELayer) -> None:
        assert [name for name, _ in made.named_parameters()] == ["w13", "w2"]
        assert not [*made.buffers()]
        assert made.weights.w13 is made.w13

    def test_the_same_bits_each_time(self, made: jitgen.MoELayer) -> None:
        once = self.step(made)

        assert all(map(torch.equal, self.step(made), once))
        given = operands(made.config)
        x, weights, ids = given["x"], given["topk_weights"], ids_of(made.config)
        with torch.no_grad():
            expected = made(x, weights, ids)
        assert torch.equal(made(x, weights, ids), expected), "as without gradients"

    def test_checkpoints_of_activations(self, made: jitgen.MoELayer) -> None:
        """The forward was ended by an exception of torch's, which became an error of jitgen's."""
        expected = self.step(made)
        found = self.step(made, lambda *given: checkpoint(made, *given, use_reentrant=False))

        assert all(map(torch.equal, found, expected))

    @pytest.mark.parametrize(
        "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)]
    )
    @needs.newer_dynamo
    def test_compiled(self, made: jitgen.MoELayer, backend: str) -> None:
        torch._dynamo.reset()
        expected = self.step(made)
        compiled = torch.compile(made, fullgraph=True, backend=backend, dynamic=True)

        for mine, wanted in zip(self.step(made, compiled), expected, strict=True):
            assert reference.relative_error(mine, wanted) <= (NEAR if backend == "inductor" else 0)

    @pytest.mark.parametrize("trained", [(), ("w13",), ("w2",)], ids=str)
    def test_frozen_experts(self, made: jitgen.MoELayer, trained: tuple[str, ...]) -> None:
        """They let gradients pass, have none, and nothing is kept for theirs."""
        expected = dict(zip(("x", "topk_weights", "w13", "w2"), self.step(made), strict=True))
        for name, each in made.named_parameters():
            each.requires_grad_(name in trained)
        found = dict(zip(expected, self.step(made), strict=True))

        for name, each in found.items():
            if name in ("w13", "w2") and name not in trained:
                assert each is None
            else:
                assert torch.equal(each, expected[name])

    def test_what_is_kept(self, made: jitgen.MoELayer) -> None:
        """Of activations x and the first product alone; frozen experts do not keep x."""
        config, given = made.config, operands(made.config)
        rows = (TOKENS * TOP_K, 2 * INTERMEDIATE)
        for is_frozen, shapes in ((False, [(TOKENS, HIDDEN), rows]), (True, [rows])):
            made.requires_grad_(not is_frozen)
            y = made(given["x"].requires_grad_(), given["topk_weights"], ids_of(config))
            saved = [each for each in y.grad_fn.saved_tensors if each is not None]
            found = [tuple(each.shape) for each in saved if each.dtype is torch.bfloat16]
            weights = [tuple(each.shape) for each in (made.w13, made.w2)]
            assert sorted(found) == sorted([*shapes, *weights])

    def test_replaced_parameters(self, made: jitgen.MoELayer) -> None:
        """As FSDP does it: a view of other memory takes the place of a parameter for a call."""
        expected = self.step(made)
        memory = {
            name: torch.cat([each.data.flatten()] * 2) for name, each in made.named_parameters()
        }
        for name, each in [*made.named_parameters()]:
            part = memory[name][each.numel() :].view(each.shape)
            made._parameters[name] = nn.Parameter(part)

        assert all(map(torch.equal, self.step(made), expected))

    def test_under_torch_func(self, made: jitgen.MoELayer) -> None:
        config, expected = made.config, self.step(made)
        ids = ids_of(config)

        def loss(*values: Tensor) -> Tensor:
            given = dict(zip(("x", "topk_weights", "w13", "w2"), values, strict=True))
            return layer(config, given, ids).float().square().sum()

        given = [*operands(config).values()]
        found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*given)
        assert all(map(torch.equal, found, expected))
        graph = make_fx(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(*given)
        assert all(map(torch.equal, graph(*given), expected))

    def test_several_losses_add_up(self, made: jitgen.MoELayer) -> None:
        expected = self.step(made)
        given = operands(made.config)
        made.zero_grad()
        for _ in range(2):
            y = made(given["x"], given["topk_weights"], ids_of(made.config))
            y.float().square().sum().backward()

        assert torch.equal(made.w2.grad, 2 * expected[3])  # type: ignore[arg-type]

    def test_several_steps_after_the_plan(self, made: jitgen.MoELayer, kernel_root: Path) -> None:
        """Nothing is compiled any more, biases and what is shared included."""
        given = operands(made.config, *EVERYTHING)
        tensors = {name: given[name] for name in ("w13", "w2", "w13_bias", "w2_bias")}
        weights = jitgen.ExpertWeights(**{n: nn.Parameter(x) for n, x in tensors.items()})
        biased = jitgen.MoELayer(made.config, weights)
        for each, more in ((made, ()), (biased, ("shared", "shared_weights"))):
            assert each.prewarm("cpu", TOKENS, trains=True, jobs=1).ok
            with jitgen.Session(on_miss="error"):
                shared = {name: given[name].clone().requires_grad_() for name in more}
                x = given["x"].clone().requires_grad_()
                y = each(x, given["topk_weights"], ids_of(made.config), **shared)
                y.float().square().sum().backward()  # type: ignore[no-untyped-call]
            assert x.grad is not None

    def test_quantised_experts_have_no_such_plan(self) -> None:
        w = torch.randn(2, 256, 128)
        w13, w13_scale = jitgen.quantize.per_block(w)
        w2, w2_scale = jitgen.quantize.per_block(w.mT[:, :, :128].contiguous())
        weights = jitgen.ExpertWeights(w13=w13, w2=w2, w13_scale=w13_scale, w2_scale=w2_scale)
        config = jitgen.MoEConfig(hidden=128, intermediate=128, experts=2, top_k=1)

        with pytest.raises(InputError, match="weights: must be bfloat16 where gradients"):
            jitgen.MoELayer(config, weights).plan(8, "cpu", trains=True)

    def test_twice_is_refused(self, made: jitgen.MoELayer) -> None:
        given = operands(made.config)
        y = made(given["x"].requires_grad_(), given["topk_weights"], ids_of(made.config))
        (first,) = torch.autograd.grad(y.float().square().sum(), given["x"], create_graph=True)

        with pytest.raises(InputError, match="create_graph: gradients of moe have no gradient"):
            first.float().sum().backward()  # type: ignore[no-untyped-call]
