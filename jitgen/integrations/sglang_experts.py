# SPDX-License-Identifier: Apache-2.0
"""Replacement for SGLang's fused experts: see `jitgen.integrations.sglang`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Numerics
from jitgen.errors import InputError
from jitgen.events import warn_once
from jitgen.integrations.sglang_activations import fields_of
from jitgen.integrations.sizes import Sizes, chain_of, prewarmed
from jitgen.layer.call import run
from jitgen.layer.chain import Chain
from jitgen.layer.config import CHUNK_TOKENS
from jitgen.layer.weights import BLOCK128, NONE, ROW, ExpertWeights
from jitgen.ops.versions import Places
from jitgen.settings import settings

_OTHER_FORMATS = (
    *("use_mxfp8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16"),
    "fuse_swiglu_interleaved",
)
_DETERMINISTIC = "SGLANG_ENABLE_DETERMINISTIC_INFERENCE"

_MOST_LAYERS = 1024
"""Most layers whose chains are kept; each chain keeps the memory of its weights."""

Fused = Callable[[Any, Any, Any], Any]
"""
Takes dispatched tokens, weights and the config of a runner; returns the input of SGLang's combine
step.
"""


def fused(usual: Fused | None) -> Fused:
    """
    Return a function that computes a layer with jitgen, or with `usual` if jitgen has no chain for
    it; without `usual` that is an `InputError`.
    """
    combine = importlib.import_module(
        "sglang.srt.layers.moe.token_dispatcher.standard"
    ).StandardCombineInput
    # By the first weight of a layer; each call checks that this weight still exists.
    chains: dict[int, tuple[tuple[int, int | None], Places, Chain]] = {}

    def experts(dispatched: Any, weights: Any, layer: Any) -> Any:
        if why := refusal(dispatched, weights, layer):
            return _left(usual, why)(dispatched, weights, layer)
        topk = dispatched.topk_output
        top_k = topk.topk_ids.shape[1]
        asked = top_k, layer.num_experts
        sources = _sources(weights)
        number = id(weights.w13_weight)
        kept = chains.get(number)
        if kept is None or kept[0] != asked or not kept[1].hold(sources):
            if len(chains) >= _MOST_LAYERS:  # of weights that are gone, say
                chains.clear()
            kept = asked, Places(sources), _chain(weights, layer, top_k)
            if all(x is None or x.dtype is torch.float32 for x in sources[4:]):  # else copies
                chains[number] = kept
        counts: Tensor = topk.topk_weights.float()
        if layer.routed_scaling_factor is not None:
            counts = counts * layer.routed_scaling_factor
        with torch.no_grad():
            return combine(run(kept[2], dispatched.hidden_states, counts, topk.topk_ids))

    return experts


def _left(usual: Fused | None, why: str) -> Fused:
    """Return `usual`, after a warning; or refuse a layer that has no other experts."""
    if usual is None:
        raise InputError(
            "layer",
            "must be one that jitgen computes, because jitgen-ranks brought its tokens: leave "
            f"jitgen-ranks out of SGLANG_PLUGINS ({why})",
        )
    warn_once(f"sglang {why}", "SGLang keeps its own experts for a layer: %s", why)
    return usual


def refusal(dispatched: Any, weights: Any, layer: Any) -> str:
    """Return why jitgen has no chain for a layer; empty if it has one."""
    is_row, is_fp8 = weights.per_channel_quant, weights.use_fp8_w8a8
    has_blocks = list(weights.block_shape or ()) == [128, 128]
    scales = "its FP8 scales are neither for 128 x 128 nor for rows"
    found = {
        "no kernel has its activation with its numbers": fields_of(layer) is None,
        "its weights are of another format": any(getattr(weights, name) for name in _OTHER_FORMATS),
        scales: (is_fp8 and is_row == has_blocks) or (is_row and not is_fp8),
        "scales of tokens are given": weights.a13_scale is not None or weights.a2_scale is not None,
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
    """Return the tensors that a chain refers to: weights, scales of FP8 weights, and biases."""
    scales = (given.w13_scale, given.w2_scale) if given.use_fp8_w8a8 else (None, None)
    return given.w13_weight, given.w2_weight, *scales, given.b13, given.b2


def _chain(given: Any, layer: Any, top_k: int) -> Chain:
    """Return the chain of a layer's weights, and bring its kernels into the store."""
    form = NONE
    if given.use_fp8_w8a8:
        form = ROW if given.per_channel_quant else BLOCK128
    scales = [None if each is None else each.detach() for each in _sources(given)[2:4]]
    if form == ROW:  # (E, N, 1) in SGLang
        scales = [None if each is None else each.flatten(1) for each in scales]
    biases = [None if each is None else each.detach().float() for each in _sources(given)[4:]]
    weights = ExpertWeights(
        w13=given.w13_weight.detach(),
        w2=given.w2_weight.detach(),
        w13_scale=scales[0],
        w2_scale=scales[1],
        w13_bias=biases[0],
        w2_bias=biases[1],
    )
    experts = max(layer.num_experts or 0, weights.groups, top_k)
    gate = fields_of(layer) or {}
    sizes = Sizes(
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        experts=experts,
        local_experts=weights.groups,
        top_k=top_k,
        form=form,
        gate=tuple(gate.items()),
        has_bias=biases[0] is not None,
    )
    prewarmed(sizes, max_tokens=CHUNK_TOKENS)
    return chain_of(weights, experts, top_k, **gate)
