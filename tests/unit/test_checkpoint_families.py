# SPDX-License-Identifier: Apache-2.0
"""Layers and routers out of the configs of models, against transformers' own code."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path

import pytest
import torch

import jitgen
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.layer.checkpoints.routers import EXPERTS_ALONE, RULES
from jitgen.ops.route.reference import route
from tests.model_families import (
    KINDS,
    PREFIX,
    TOKENS,
    WITHOUT_ROUTER,
    Kind,
    after,
    call,
    expected,
    logits,
    make,
    shared,
)

transformers = pytest.importorskip("transformers")
CLOSE = 5e-6


def named(kind: Kind) -> str:
    return "-".join((kind.module, *kind.words))


@pytest.mark.parametrize("kind", KINDS, ids=named)
class TestEveryFamily:
    def test_its_layer_and_router_are_transformers(self, kind: Kind) -> None:
        model, x = make(kind), call()
        layer = jitgen.MoELayer.from_checkpoint(model.tensors, layer=3, config=model.config)
        router = jitgen.RouterConfig.from_config(model.config)
        scores, bias = logits(model, x)
        routing = route(scores, correction_bias=bias, **router.arguments)
        assert router.experts == scores.shape[1] == layer.config.every
        found = reference.moe(
            x,
            layer.weights,
            routing.topk_weights,
            routing.topk_ids,
            layer.config,
            shared=shared(model, x),
        )

        assert router.has_bias == (bias is not None)
        assert found.shape == (TOKENS, x.shape[1])
        assert reference.relative_error(after(model, found), expected(model, x)) < CLOSE

    @pytest.mark.sampled(3)
    def test_from_config_is_the_same_layer(self, kind: Kind) -> None:
        model = make(kind)
        layer = jitgen.MoELayer.from_checkpoint(model.tensors, PREFIX, config=model.config)
        blank = jitgen.MoELayer.from_config(model.config, layer=3)

        assert blank.config == layer.config
        assert {name: tensor.shape for name, tensor in blank.state_dict().items()} == {
            name: tensor.shape for name, tensor in layer.state_dict().items()
        }
        assert all(not tensor.any() for tensor in blank.state_dict().values())

    @pytest.mark.sampled(3)
    def test_shares_of_it_add_up(self, kind: Kind) -> None:
        model, x = make(kind), call()
        ids = torch.stack([torch.arange(TOKENS) % 8, (torch.arange(TOKENS) + 3) % 8], 1)
        weights = torch.rand(TOKENS, 2, generator=torch.Generator().manual_seed(6))
        shares = [{"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}]
        if model.config.get("zero_expert_num"):  # both would add their tokens
            with pytest.raises(InputError, match=r"^ranks: must be 1 where the given config says"):
                jitgen.MoELayer.from_config(model.config, rank=1, ranks=2)
            ids[::3, 1] = 9
            shares = [{"local_experts": 3}, {"first_expert": 3}]
        whole, *parts = (
            jitgen.MoELayer.from_checkpoint(model.tensors, PREFIX, config=model.config, **share)
            for share in ({}, *shares)
        )
        found = [reference.moe(x, e.weights, weights, ids, e.config) for e in (whole, *parts)]

        assert reference.relative_error(found[1] + found[2], found[0]) < CLOSE


@pytest.mark.parametrize("kind", WITHOUT_ROUTER, ids=named)
def test_experts_without_their_router(kind: Kind) -> None:
    model, x = make(kind), call()
    layer = jitgen.MoELayer.from_checkpoint(model.tensors, layer=3, config=model.config)
    ids = torch.stack([torch.arange(TOKENS) % 8, (torch.arange(TOKENS) + 3) % 8], 1)
    weights = torch.rand(TOKENS, 2, generator=torch.Generator().manual_seed(6))
    if kind.module == "llama4":  # a matrix of tokens for each expert
        given = x.expand(8, *x.shape)
        every = model.block(given.reshape(-1, x.shape[1])).view(8, *x.shape)
        rows = torch.arange(TOKENS)
        wanted = sum(every[ids[:, j], rows] * weights[:, j, None] for j in range(2))
    else:
        wanted = model.block(x, ids, weights)
    found = reference.moe(x, layer.weights, weights, ids, layer.config)

    assert reference.relative_error(found, wanted.detach()) < CLOSE  # type: ignore[union-attr]
    assert jitgen.MoELayer.from_config(model.config, device="meta").config == layer.config
    with pytest.raises(InputError, match="config: "):
        jitgen.RouterConfig.from_config(model.config)


def test_every_type_of_model_is_tried() -> None:
    """A rule without a test is a guess; kimi_k2 is DeepSeek-V3 by another name."""
    assert RULES.keys() - {"kimi_k2"} == {make(kind).config["model_type"] for kind in KINDS}
    assert set(EXPERTS_ALONE) == {make(kind).config["model_type"] for kind in WITHOUT_ROUTER}


@pytest.mark.nightly
def test_every_config_of_transformers_is_read_or_refused_by_name() -> None:
    """Defaults of all classes that say how many experts there are."""
    models = Path(str(transformers.__file__)).parent / "models"
    seen, wrong = 0, []
    for path in sorted(models.glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, kind in vars(module).items():
            if not name.endswith("Config") or getattr(kind, "__module__", "") != module.__name__:
                continue
            try:
                said = kind().to_dict()
            except Exception:  # noqa: S112  # a config without defaults, or that asks the network
                continue  # a config that has no defaults
            if not any(said.get(word) for word in ("num_experts", "num_local_experts")):
                continue
            seen += 1
            for of in (
                partial(jitgen.MoELayer.from_config, device="meta"),
                jitgen.RouterConfig.from_config,
            ):
                try:
                    of(said)
                except InputError as error:
                    wrong += [name] * (error.argument not in ("config", "top_k"))
    assert seen > 20
    assert not wrong


@pytest.mark.parametrize("kind", ["muse_spark_text", "openai_privacy_filter", "doge", 3])
def test_experts_of_another_kind_are_refused_by_their_model(kind: object) -> None:
    """A norm after each expert, a bias, experts of one row: nothing in a config says it."""
    config = {
        "model_type": kind,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "hidden_size": 64,
        "moe_intermediate_size": 48,
    }
    with pytest.raises(InputError, match=f"model_type = {kind!r}, and what its experts compute"):
        jitgen.MoELayer.from_config(config)
    del config["model_type"]
    assert jitgen.MoELayer.from_config(config).config.experts == 8


def test_a_layer_with_a_table_of_experts() -> None:
    """DeepSeek-V4's first layers take experts from a table by the numbers of tokens."""
    kind = next(each for each in KINDS if each.module == "deepseek_v4")
    model, x = make(kind._replace(layer=2)), call()
    said = {**model.config, "mlp_layer_types": None, "num_hash_layers": 3}
    for each in (model.config, said):
        assert [jitgen.RouterConfig.from_config(each, layer=n).is_hashed for n in (2, 3)] == [
            True,
            False,
        ]
    router = jitgen.RouterConfig.from_config(model.config, layer=2)
    layer = jitgen.MoELayer.from_checkpoint(model.tensors, layer=3, config=model.config)
    tokens = torch.arange(TOKENS)
    table = torch.stack([torch.arange(TOKENS) % 8, (torch.arange(TOKENS) + 3) % 8], 1)
    gate = model.block.gate
    gate.tid2eid[:TOKENS] = table
    routing = route(
        x @ gate.weight.detach().T,
        token_ids=tokens,
        hash_table=table.int(),
        **router.arguments,
    )
    found = reference.moe(
        x,
        layer.weights,
        routing.topk_weights,
        routing.topk_ids,
        layer.config,
        shared=shared(model, x),
    )
    with torch.no_grad():
        wanted = model.block(x[None], input_ids=tokens[None])[0]

    assert not router.has_bias
    assert reference.relative_error(found, wanted) < CLOSE
