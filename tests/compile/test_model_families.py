# SPDX-License-Identifier: Apache-2.0
"""Kernels of layers and routers out of the configs of models, against transformers' own code."""

from __future__ import annotations

import pytest

import jitgen
from jitgen.layer.reference import TOLERANCE, relative_error
from tests import needs
from tests.model_families import KINDS, Kind, after, call, expected, logits, make, shared

pytest.importorskip("transformers")
pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join((kind.module, *kind.words)))
def test_layer_and_router(kind: Kind) -> None:
    model, x = make(kind), call()
    layer = jitgen.MoELayer.from_checkpoint(model.tensors, layer=3, config=model.config)
    router = jitgen.RouterConfig.from_config(model.config)
    scores, bias = logits(model, x)
    routing = jitgen.route(
        scores, correction_bias=bias, local_experts=layer.config.groups, **router.arguments
    )
    more = shared(model, x)
    found = layer(
        x.bfloat16(),
        routing.topk_weights,
        routing.topk_ids,
        sorting=routing,
        shared=None if more is None else more.bfloat16(),
    )

    assert relative_error(after(model, found.float()), expected(model, x)) < TOLERANCE["none"]
