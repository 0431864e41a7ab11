# SPDX-License-Identifier: Apache-2.0
"""What config.json of the models says of their layers, for which plans are shipped."""

from __future__ import annotations

from typing import Any

BLOCKS: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
ROWS: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True},
            "input_activations": {"type": "float", "num_bits": 8, "dynamic": True},
        }
    },
}


def model(
    kind: str, experts: int, top_k: int, hidden: int, intermediate: int, **words: Any
) -> dict[str, Any]:
    """Return what is said of a layer's experts and router, in the words of a type of model."""
    return {
        "model_type": kind,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "hidden_size": hidden,
        "moe_intermediate_size": intermediate,
        "hidden_act": "silu",
        **words,
    }


_NORM = {"norm_topk_prob": True}
_SIGMOID = {**_NORM, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
_DEEPSEEK = {**_SIGMOID, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
_OAI = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
_CLAMPED = {"scoring_func": "sqrtsoftplus", "norm_topk_prob": True, "swiglu_limit": 10.0}

MODELS: dict[str, tuple[dict[str, Any], ...]] = {
    "deepseek-v3": (model("deepseek_v3", 256, 8, 7168, 2048, **_DEEPSEEK),),
    "deepseek-v2": (
        model(
            *("deepseek_v2", 160, 6, 5120, 1536),
            topk_method="group_limited_greedy",
            n_group=8,
            topk_group=3,
            norm_topk_prob=False,
            routed_scaling_factor=16.0,
        ),
    ),
    "deepseek-v2-lite": (model("deepseek_v2", 64, 6, 2048, 1408, norm_topk_prob=False),),
    "deepseek-v4-flash": (model("deepseek_v4", 256, 6, 4096, 2048, **_CLAMPED),),
    "deepseek-v4-pro": (model("deepseek_v4", 384, 6, 7168, 3072, **_CLAMPED),),
    "glm-4.5": (
        model("glm4_moe", 160, 8, 5120, 1536, **_NORM, routed_scaling_factor=2.5),
        model("glm4_moe", 128, 8, 4096, 1408, **_NORM),
    ),
    "glm-5": (model("glm_moe_dsa", 256, 8, 6144, 2048, **_NORM, routed_scaling_factor=2.5),),
    "gpt-oss": (model("gpt_oss", 128, 4, 2880, 2880), model("gpt_oss", 32, 4, 2880, 2880)),
    "kimi-k2": (model("kimi_k2", 384, 8, 7168, 2048, **_SIGMOID, routed_scaling_factor=2.827),),
    "minimax-m2": (model("minimax_m2", 256, 8, 3072, 1536),),
    "minimax-m3": (
        model("minimax_m3_vl_text", 128, 4, 6144, 3072, **_OAI, routed_scaling_factor=2.0),
    ),
    "mixtral-8x22b": (model("mixtral", 8, 2, 6144, 16384),),
    "qwen3-moe": (
        model("qwen3_moe", 128, 8, 4096, 1536, **_NORM),
        model("qwen3_moe", 128, 8, 2048, 768, **_NORM),
        model("qwen3_moe", 160, 8, 6144, 2560, **_NORM),
    ),
    "qwen3-next": (model("qwen3_next", 512, 10, 2048, 512, **_NORM),),
    "qwen3.5": (
        model("qwen3_5_moe_text", 512, 10, 4096, 1024),
        model("qwen3_5_moe_text", 256, 8, 2048, 512),
    ),
    "qwen3.8": (model("qwen3_moe", 512, 10, 8192, 2048, **_NORM),),
}
"""Configs of models by the name of their plan."""

LAYER_ALONE = {"llama-4": (model("llama4_text", 128, 1, 5120, 8192),)}
"""Models whose weights multiply tokens before the experts: their router is the caller's."""

OF_OPERATIONS = ("glue", "quantize", "route", "swiglu")
"""Plans of operations, which have the sizes of several models."""

OF_FORMATS = {"gpt-oss-hopper": "gpt-oss"}
"""Plans of a model's layers in another format."""
