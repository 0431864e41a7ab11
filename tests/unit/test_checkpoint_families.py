# SPDX-License-Identifier: Apache-2.0
"""Layers and routers out of the configs of models, against transformers' own code."""

from __future__ import annotations

import pytest
import torch

import jitgen
from jitgen.layer import reference
from jitgen.layer.checkpoints.routers import RULES
from jitgen.ops.route.reference import route
from tests.model_families import (
    KINDS,
    PREFIX,
    TOKENS,
    Kind,
    after,
    call,
    expected,
    logits,
    make,
    shared,
)

pytest.importorskip("transformers")
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

    def test_from_config_is_the_same_layer(self, kind: Kind) -> None:
        model = make(kind)
        layer = jitgen.MoELayer.from_checkpoint(model.tensors, PREFIX, config=model.config)
        blank = jitgen.MoELayer.from_config(model.config, layer=3)

        assert blank.config == layer.config
        assert {name: tensor.shape for name, tensor in blank.state_dict().items()} == {
            name: tensor.shape for name, tensor in layer.state_dict().items()
        }
        assert all(not tensor.any() for tensor in blank.state_dict().values())

    def test_shares_of_it_add_up(self, kind: Kind) -> None:
        model, x = make(kind), call()
        ids = torch.stack([torch.arange(TOKENS) % 8, (torch.arange(TOKENS) + 3) % 8], 1)
        weights = torch.rand(TOKENS, 2, generator=torch.Generator().manual_seed(6))
        whole, *parts = (
            jitgen.MoELayer.from_checkpoint(model.tensors, PREFIX, config=model.config, **share)
            for share in ({}, {"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2})
        )
        found = [reference.moe(x, e.weights, weights, ids, e.config) for e in (whole, *parts)]

        assert reference.relative_error(found[1] + found[2], found[0]) < CLOSE


def test_every_type_of_model_is_tried() -> None:
    """A rule without a test is a guess; kimi_k2 is DeepSeek-V3 by another name."""
    tried = {make(kind).config["model_type"] for kind in KINDS}

    assert RULES.keys() - {"kimi_k2"} == tried
