# SPDX-License-Identifier: Apache-2.0
"""A plan that is named after a model has layers and a router that jitgen computes."""

from __future__ import annotations

from typing import Any

import pytest

import jitgen
from jitgen import plans
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import InputError
from jitgen.integrations.sizes import Sizes
from jitgen.layer.model_plan import of_model
from jitgen.layer.weights import BLOCK128, NONE, ROW
from tests.model_configs import (
    BLOCKS,
    LAYER_ALONE,
    MODELS,
    OF_FORMATS,
    OF_OPERATIONS,
    ROWS,
)

ALL = {**MODELS, **LAYER_ALONE}
FORMATS: dict[tuple[str, str], dict[str, Any]] = {
    ("e4m3", "block128"): {"quantization_config": BLOCKS},
    ("e4m3", "row"): {"quantization_config": ROWS},
    ("bf16", "tensor"): {},
}
"""What a config says of weights whose products have these types and scales."""


def test_every_plan_of_a_model_has_its_config() -> None:
    """A plan without a layer that computes it is not shipped."""
    known = {*ALL, *OF_OPERATIONS, *OF_FORMATS}

    assert set(plans.names()) == known
    assert set(OF_FORMATS.values()) <= ALL.keys()


def layers(config: dict[str, Any], ranks: int) -> jitgen.MoELayer:
    return jitgen.MoELayer.from_config(config, device="meta", ranks=ranks)


@pytest.mark.parametrize("name", ALL)
def test_its_products_are_those_of_layers(name: str) -> None:
    sweeps = plans.load(name).sweeps
    wanted = {
        (form, each.problem.groups, each.problem.n, each.problem.k)
        for each in sweeps
        if isinstance(each.problem, GroupedGemmProblem)
        and (form := (str(each.problem.a_dtype), str(each.problem.scale_granularity))) in FORMATS
        and each.problem.b_dtype in (None, each.problem.a_dtype)
    }
    sizes = {(form, groups) for form, groups, _, _ in wanted}
    found = set()
    for config in ALL[name]:
        for form in {form for form, _ in sizes}:
            for ranks in (1, 8):
                layer = layers({**config, **FORMATS[form]}, ranks)
                hidden, inner = layer.config.hidden, layer.config.intermediate
                found |= {(form, groups, 2 * inner, hidden) for _, groups in sizes}
                found |= {(form, groups, hidden, inner) for _, groups in sizes}
                of = layer.plan(64, "sm_90a").sweeps
                own = {
                    (str(e.problem.a_dtype), str(e.problem.scale_granularity), e.problem.n)
                    for e in of
                    if isinstance(e.problem, GroupedGemmProblem)
                }
                assert own == {(*form, 2 * inner), (*form, hidden)}

    assert wanted
    assert wanted <= found
    for config in ALL[name]:
        hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
        experts = config["num_experts"]
        assert {(experts, 2 * inner, hidden), (experts, hidden, inner)} <= {
            each[1:] for each in wanted
        }


@pytest.mark.parametrize("name", MODELS)
def test_its_router_is_computed(name: str) -> None:
    for config in MODELS[name]:
        router = jitgen.RouterConfig.from_config(config)
        assert router.experts == config["num_experts"]
        assert router.top_k == config["num_experts_per_tok"]


def test_a_router_on_the_input_is_refused_by_its_name() -> None:
    for config in LAYER_ALONE["llama-4"]:
        with pytest.raises(InputError, match="llama4_text"):
            jitgen.RouterConfig.from_config(config)


@pytest.mark.parametrize(
    ("form", "scales", "ranks", "expert_ranks"),
    [(NONE, {}, 1, 1), (BLOCK128, BLOCKS, 2, 1), (ROW, ROWS, 1, 8)],
)
def test_without_a_router_it_is_the_plan_of_an_engine(
    form: str,
    scales: dict[str, Any],
    ranks: int,
    expert_ranks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/plans.md says how to prewarm for vLLM, whose sizes these are, where no GPU is."""
    monkeypatch.setattr(jitgen.settings, "arch", "sm_90a")
    config = MODELS["qwen3-moe"][1]
    made = of_model(
        config | ({"quantization_config": scales} if scales else {}),
        "sm_90a",
        ranks=(ranks,),
        expert_ranks=(expert_ranks,),
        max_tokens=4096,
        has_router=False,
    )
    sizes = Sizes(
        hidden=config["hidden_size"],
        intermediate=config["moe_intermediate_size"] // ranks,
        experts=config["num_experts"],
        local_experts=config["num_experts"] // expert_ranks,
        top_k=config["num_experts_per_tok"],
        form=form,
    )

    found, wanted = (
        {*plans.configs(plan, "sm_90a", devices=["NVIDIA H200"])}
        for plan in (made, sizes.plan(4096))
    )
    assert found == wanted
