# SPDX-License-Identifier: Apache-2.0
"""Processes that share a layer by what jitgen hangs into SGLang, whose modules are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jitgen
from jitgen.errors import InputError
from jitgen.integrations import sglang, wires
from jitgen.parallel import share
from tests.moe_cases import Case, make
from tests.ranks import given, part_of
from tests.sglang_modules import MoeA2ABackend, Sglang, StandardTopKOutput, runner_config


def work(rank: int, ranks: int) -> None:
    """Let tokens travel in SGLang's order of calls, few by windows and more by collectives."""
    case = make("bf16", tokens=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_PLUGINS", "jitgen,jitgen-ranks")
        patch.setattr(wires, "FEW_TOKENS", 3)
        patch.setattr(wires, "_wires", {})
        engine = Sglang(patch)
        for _ in range(2):  # again is as well
            sglang.register()
        layer = _layer(case, rank, ranks)
        engine.backend = MoeA2ABackend.NONE
        assert engine.create_moe_dispatcher(layer, None) == "theirs"
        engine.backend = MoeA2ABackend.FLASHINFER
        first, dispatcher = (engine.create_moe_dispatcher(layer, None) for _ in range(2))
        assert first._wires is dispatcher._wires
        _check_results(engine, dispatcher, case, rank, ranks)
        _check_refusals(engine, dispatcher, layer, case)


def _layer(case: Case, rank: int, ranks: int) -> Any:
    """Return SGLang's config of a layer."""
    _, count = share(case.config.experts, rank, ranks)
    return runner_config(
        num_experts=case.config.experts,
        num_local_experts=count,
        hidden_size=case.config.hidden,
        top_k=case.config.top_k,
    )


def _check_results(engine: Sglang, dispatcher: Any, case: Case, rank: int, ranks: int) -> None:
    """Compare with one process that has all experts."""
    part, layer = part_of(case, rank, ranks), _layer(case, rank, ranks)
    whole = jitgen.MoELayer(case.config, case.weights)
    weights_here = _deep_gemm(part)
    for number, counts in enumerate(((2, 3), (0, 1), (7, 5))):
        x, weights, ids, *_ = given(case, rank, counts[rank], number)
        engine.counts = list(counts)
        sent = dispatcher.dispatch(x, StandardTopKOutput(weights, ids.long(), None))
        assert sent.hidden_states_scale is None
        y = engine.functions["flashinfer", "deep_gemm"](sent, weights_here, layer)
        out = dispatcher.combine(y)
        wanted = 2.5 * whole(x, weights, ids).float()
        assert out.shape == x.shape
        assert (out.float() - wanted).norm() <= 4e-3 * wanted.norm()


def _deep_gemm(weights: jitgen.ExpertWeights, **changes: Any) -> Any:
    """Return weights as SGLang's runner deep_gemm has them: with FP8 or bfloat16."""
    usual = {"w13_scale": None, "w2_scale": None, "block_shape": None, "use_fp8": True}
    kinds = {"is_fp4_experts": False, "use_mxfp8": False}
    return SimpleNamespace(w13_weight=weights.w13, w2_weight=weights.w2, **usual | kinds | changes)


def _check_refusals(engine: Sglang, dispatcher: Any, layer: Any, case: Case) -> None:
    """Every refusal is before ranks wait for each other."""
    x, weights, ids, *_ = given(case, 0, 1, 0)
    topk = StandardTopKOutput(weights, ids, None)
    with pytest.raises(InputError, match="must be bfloat16"):
        dispatcher.dispatch(x.half(), topk)
    with pytest.raises(InputError, match="follow it"):
        dispatcher.combine(None)
    engine.counts = None
    with pytest.raises(InputError, match="--attn-dp-size as large as --tp-size"):
        dispatcher.dispatch(x, topk)
    shared = runner_config(**{**vars(layer), "num_fused_shared_experts": 1})
    with pytest.raises(InputError, match="--disable-shared-experts-fusion"):
        engine.create_moe_dispatcher(shared, None)
    sent = SimpleNamespace(hidden_states=x, topk_output=topk)
    given_weights = _deep_gemm(case.weights, use_mxfp8=True)
    with pytest.raises(InputError, match="its weights are of another format"):
        engine.functions["flashinfer", "deep_gemm"](sent, given_weights, layer)
    assert torch.equal(sent.hidden_states, x)
