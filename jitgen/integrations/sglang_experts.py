# SPDX-License-Identifier: Apache-2.0
"""Replacement for SGLang's fused Triton experts: see `jitgen.integrations.sglang`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Numerics
from jitgen.events import warn_once
from jitgen.integrations.sizes import Sizes, chain_of, prewarmed
from jitgen.layer.call import run
from jitgen.layer.chain import Chain
from jitgen.layer.config import CHUNK_TOKENS
from jitgen.layer.weights import BLOCK128, NONE, ExpertWeights
from jitgen.ops.versions import Places
from jitgen.settings import settings

_OTHER_FORMATS = (
    *("use_mxfp8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant"),
    "fuse_swiglu_interleaved",
)
_DETERMINISTIC = "SGLANG_ENABLE_DETERMINISTIC_INFERENCE"
_OTHER_LAYERS = ("gemm1_alpha", "gemm1_clamp_limit", "swiglu_limit")

_MOST_LAYERS = 1024
"""Most layers whose chains are kept; each chain keeps the memory of its weights."""

Fused = Callable[[Any, Any, Any], Any]
"""
Takes dispatched tokens, weights and the config of a runner; returns the input of SGLang's combine
step.
"""


def fused(usual: Fused) -> Fused:
    """
    Return a function that computes a layer with jitgen, or with `usual` if jitgen has no chain for
    it.
    """
    combine = importlib.import_module(
        "sglang.srt.layers.moe.token_dispatcher.standard"
    ).StandardCombineInput
    # By the first weight of a layer; each call checks that this weight still exists.
    chains: dict[int, tuple[tuple[int, int | None], Places, Chain]] = {}

    def experts(dispatched: Any, weights: Any, layer: Any) -> Any:
        if why := refusal(dispatched, weights, layer):
            warn_once(f"sglang {why}", "SGLang keeps its own experts for a layer: %s", why)
            return usual(dispatched, weights, layer)
        topk = dispatched.topk_output
        top_k = topk.topk_ids.shape[1]
        asked = top_k, layer.num_experts
        sources = _sources(weights)
        number = id(weights.w13_weight)
        kept = chains.get(number)
        if kept is None or kept[0] != asked or not kept[1].hold(sources):
            if len(chains) >= _MOST_LAYERS:  # of weights that are gone, say
                chains.clear()
            kept = chains[number] = asked, Places(sources), _chain(weights, layer, top_k)
        counts: Tensor = topk.topk_weights.float()
        if layer.routed_scaling_factor is not None:
            counts = counts * layer.routed_scaling_factor
        with torch.no_grad():
            return combine(run(kept[2], dispatched.hidden_states, counts, topk.topk_ids))

    return experts


def refusal(dispatched: Any, weights: Any, layer: Any) -> str:
    """Return why jitgen has no chain for a layer; empty if it has one."""
    has_blocks = weights.use_fp8_w8a8 and list(weights.block_shape or ()) == [128, 128]
    found = {
        "its activation is no gated silu": layer.activation != "silu" or not layer.is_gated,
        "it limits its activation": any(getattr(layer, name) is not None for name in _OTHER_LAYERS),
        "it has a bias": weights.b13 is not None or weights.b2 is not None,
        "its weights are of another format": any(getattr(weights, name) for name in _OTHER_FORMATS),
        "its FP8 scales are not for 128 x 128": weights.use_fp8_w8a8 and not has_blocks,
        "tokens are not bfloat16": dispatched.hidden_states.dtype is not torch.bfloat16,
        "its sum is asked for in parts": layer.no_combine or layer.apply_router_weight_on_input,
        "it is to be deterministic, and JITGEN_NUMERICS is not invariant": _is_deterministic()
        and settings.numerics != Numerics.INVARIANT,
        "its routing has another form": not hasattr(dispatched.topk_output, "topk_ids"),
    }
    return next((why for why, is_so in found.items() if is_so), "")


def _is_deterministic() -> bool:
    """Return whether SGLang was started with --enable-deterministic-inference."""
    return os.environ.get(_DETERMINISTIC, "").lower() in ("1", "true")


def _sources(given: Any) -> tuple[Tensor | None, ...]:
    """Return the tensors that a chain refers to: weights, and scales if the weights are FP8."""
    scales = (given.w13_scale, given.w2_scale) if given.use_fp8_w8a8 else (None, None)
    return given.w13_weight, given.w2_weight, *scales


def _chain(given: Any, layer: Any, top_k: int) -> Chain:
    """Return the chain of a layer's weights, and bring its kernels into the store."""
    scales = (None if each is None else each.detach() for each in _sources(given)[2:])
    w13_scale, w2_scale = scales
    weights = ExpertWeights(
        w13=given.w13_weight.detach(),
        w2=given.w2_weight.detach(),
        w13_scale=w13_scale,
        w2_scale=w2_scale,
    )
    experts = max(layer.num_experts or 0, weights.groups, top_k)
    sizes = Sizes(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=experts,
        local_experts=weights.groups,
        top_k=top_k,
        form=BLOCK128 if given.use_fp8_w8a8 else NONE,
    )
    prewarmed(sizes, max_tokens=CHUNK_TOKENS)
    return chain_of(weights, experts, top_k)
