# SPDX-License-Identifier: Apache-2.0
"""
vLLM's fused experts: both products in its Triton kernel, CUDA operations of its own around them.

The kernel's tiles are those of vLLM's table for this GPU, these experts and sizes. Where vLLM has
no such table it takes a default, as it does when it serves, and the case's note says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.layer.operands import Operands, Ready
from jitgen.bench.peers import imported, require
from jitgen.config.config import SCALE_BLOCK

NAME = "vllm-triton"
NOTE = "same numerics; vLLM's fused_experts, replayed as a graph"

_PACKAGE = "vllm.model_executor.layers.fused_moe"


def prepare(operands: Operands) -> Ready:
    """
    Return the layer as vLLM computes it.

    Raises:
        Unavailable: vLLM cannot be imported, or keeps its fused experts elsewhere.
    """
    fused_experts = _find("fused_moe", "fused_experts")
    quant_config = _find("config", "fp8_w8a8_moe_quant_config")
    tables = _find("fused_moe", "get_moe_configs")
    weights, case = operands.by_block, operands.case
    config = quant_config(
        w1_scale=weights.w13_scale,
        w2_scale=weights.w2_scale,
        block_shape=[SCALE_BLOCK, SCALE_BLOCK],
    )
    has_table = tables(case.experts, case.intermediate, "fp8_w8a8", SCALE_BLOCK, SCALE_BLOCK)
    found: list[Tensor] = []

    choose, share = _router(operands)

    def call() -> None:
        given = (operands.x, weights.w13, weights.w2, *choose())
        found[:] = [fused_experts(*given, quant_config=config, **share)]

    return Ready(
        call=call,
        result=lambda: found[0],
        weights=weights,
        note="" if has_table else "vLLM has no table for these sizes on this GPU: its default",
    )


def _router(operands: Operands) -> tuple[Callable[[], tuple[Tensor, Tensor]], dict[str, Any]]:
    """Return what gives weights and experts of tokens, and which experts are here, for vLLM."""
    router, case = operands.router, operands.case
    if router is None:
        return lambda: (operands.topk_weights, operands.topk_ids), {}
    choice = router.choice
    numbers = torch.arange(case.of, dtype=torch.int32, device=operands.x.device)
    choose = partial(
        _find("router.grouped_topk_router", "fused_grouped_topk"),
        operands.x,
        router.logits,
        choice["top_k"],
        renormalize=True,
        e_score_correction_bias=router.bias,
        num_expert_group=choice["expert_groups"],
        topk_group=choice["top_groups"],
        scoring_func=choice["scoring"],
        routed_scaling_factor=choice["scale"],
    )
    here = torch.where(numbers < case.experts, numbers, -1)
    return choose, {"global_num_experts": case.of, "expert_map": here}


def _find(module: str, name: str) -> Any:
    """
    Return a function of vLLM's.

    Raises:
        Unavailable: It cannot be imported, or its CUDA operations cannot.
    """
    # vLLM logs to standard output unless told otherwise, where the JSON goes
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    found = imported(f"{_PACKAGE}.{module}", "vLLM")
    require(hasattr(found, name), f"this vLLM has no {name} in {_PACKAGE}.{module}")
    for library, operation in (("_C", "silu_and_mul"), ("_moe_C", "moe_align_block_size")):
        # vLLM warns where its libraries cannot be loaded, and fails at the first call
        is_loaded = hasattr(getattr(torch.ops, library), operation)
        require(is_loaded, f"vLLM's own operations cannot be loaded: {library}.{operation}")
    return getattr(found, name)
