# SPDX-License-Identifier: Apache-2.0
"""A layer's result for a token depends on the token: alone, in batches of any kind, in chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.config.grouped_gemm import GroupedGemmProblem
from tests import needs
from tests.moe_cases import EXPERTS, HIDDEN, SOME_FORMATS, make

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

TOKENS = 23
BATCHES = ([0], [22, 3], [5] * 9, list(range(11)), list(range(22, -1, -1)))


@pytest.mark.parametrize("form", SOME_FORMATS)
@pytest.mark.parametrize("chunk_tokens", [4, 16384])
def test_a_token_is_what_it_is_alone(form: str, chunk_tokens: int) -> None:
    """Also where tokens go through in chunks, with memory that is kept and a shared expert."""
    case = make(form, tokens=TOKENS)
    shared = torch.randn_like(case.x)
    layer = jitgen.MoELayer(replace(case.config, numerics="invariant"), case.weights)
    whole = layer(*case.given, shared=shared)
    config = replace(layer.config, chunk_tokens=chunk_tokens)
    in_parts = jitgen.MoELayer(config, case.weights, max_tokens=7)
    for batch in BATCHES:
        index = torch.tensor(batch)
        found = in_parts(*(each[index] for each in case.given), shared=shared[index])

        assert torch.equal(found.view(torch.int16), whole[index].view(torch.int16))


@pytest.mark.parametrize("form", SOME_FORMATS)
def test_a_token_is_what_it_is_in_a_matrix_of_its_expert(form: str) -> None:
    """However its rows were brought together: sorted here, or by a dispatch."""
    case = make(form, tokens=TOKENS)
    layer = jitgen.MoELayer(replace(case.config, numerics="invariant"), case.weights)
    ids = torch.full_like(case.topk_ids, -1)
    ids[:, 0] = case.topk_ids[:, 0]
    expected = layer(case.x, torch.ones_like(case.topk_weights), ids)
    owners = [torch.nonzero(ids[:, 0] == group).flatten() for group in range(EXPERTS)]
    x = torch.zeros(EXPERTS, TOKENS, HIDDEN).bfloat16()
    for group, tokens in enumerate(owners):
        x[group, : len(tokens)] = case.x[tokens]
    masked_m = torch.tensor([len(tokens) for tokens in owners], dtype=torch.int32)

    for expected_m in (None, 1):
        found = layer.experts(x, masked_m, expected_m=expected_m)
        for group, tokens in enumerate(owners):
            rows = found[group, : len(tokens)]
            assert torch.equal(rows.view(torch.int16), expected[tokens].view(torch.int16))


def test_a_router_looks_at_a_token_alone() -> None:
    logits = torch.randn(TOKENS, 40)
    whole = jitgen.route(logits, top_k=4)
    for batch in BATCHES:
        index = torch.tensor(batch)
        found = jitgen.route(logits[index], top_k=4)

        assert torch.equal(found.topk_ids, whole.topk_ids[index])
        assert torch.equal(
            found.topk_weights.view(torch.int32), whole.topk_weights[index].view(torch.int32)
        )


def test_a_layer_tells_its_plan() -> None:
    """What is prewarmed for it is chosen as its calls choose."""
    case = make("block128")
    layer = jitgen.MoELayer(replace(case.config, numerics="invariant"), case.weights)
    asked = [sweep.problem for sweep in layer.plan(64, "cpu").sweeps]

    assert {each.numerics for each in asked if isinstance(each, GroupedGemmProblem)} == {
        "invariant"
    }
