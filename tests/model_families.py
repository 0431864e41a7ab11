# SPDX-License-Identifier: Apache-2.0
"""
A tiny layer of every family that is computed, from transformers' own classes: router, experts,
shared experts, and what jitgen needs of them.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 64, 48, 8, 2, 13
PREFIX = "model.layers.3.mlp"


class Kind(NamedTuple):
    """
    A family of models.

    Attributes:
        module: Its module below ``transformers.models``.
        config: Its class of configs.
        block: The class of a layer with router and experts.
        words: Fields of its config besides sizes.
        layer: The number that the class wants; None: it wants none.
    """

    module: str
    config: str
    block: str
    words: dict[str, Any] = {}  # noqa: RUF012  # never written to
    layer: int | None = None


_GROUPS = {"n_group": 4, "topk_group": 2}
KINDS = (
    Kind("mixtral", "MixtralConfig", "MixtralSparseMoeBlock"),
    Kind("olmoe", "OlmoeConfig", "OlmoeSparseMoeBlock"),
    Kind("olmoe", "OlmoeConfig", "OlmoeSparseMoeBlock", {"norm_topk_prob": True}),
    Kind("qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeSparseMoeBlock"),
    Kind("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeSparseMoeBlock", {"norm_topk_prob": True}),
    Kind("qwen3_next", "Qwen3NextConfig", "Qwen3NextSparseMoeBlock"),
    Kind("qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeSparseMoeBlock"),
    Kind("deepseek_v2", "DeepseekV2Config", "DeepseekV2Moe", {"routed_scaling_factor": 1.5}),
    Kind(
        "deepseek_v2",
        "DeepseekV2Config",
        "DeepseekV2Moe",
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    ),
    Kind("deepseek_v3", "DeepseekV3Config", "DeepseekV3MoE", _GROUPS),
    Kind("deepseek_v32", "DeepseekV32Config", "DeepseekV32MoE", _GROUPS),
    Kind("axk1", "AXK1Config", "AXK1MoE", _GROUPS),
    Kind("glm4_moe", "Glm4MoeConfig", "Glm4MoeMoE", {"routed_scaling_factor": 2.5}),
    Kind("glm_moe_dsa", "GlmMoeDsaConfig", "GlmMoeDsaMoE"),
    Kind("dots1", "Dots1Config", "Dots1MoE", {"n_shared_experts": 1, "norm_topk_prob": True}),
    Kind("mimo_v2_flash", "MiMoV2FlashConfig", "MiMoV2FlashMoE"),
    Kind("solar_open", "SolarOpenConfig", "SolarOpenMoE"),
    Kind("bailing_hybrid", "BailingHybridConfig", "BailingHybridMoE", _GROUPS),
    Kind("mistral4", "Mistral4Config", "Mistral4MoE", _GROUPS),
    Kind("mistral_large4", "MistralLarge4TextConfig", "MistralLarge4TextMoE"),
    Kind("minimax_m2", "MiniMaxM2Config", "MiniMaxM2SparseMoeBlock"),
    Kind("minimax_m3_vl", "MiniMaxM3VLTextConfig", "MiniMaxM3VLSparseMoeBlock"),
    Kind("flint", "FlintConfig", "FlintSparseMoeBlock"),
    Kind("gpt_oss", "GptOssConfig", "GptOssMLP"),
    Kind("qwen3_vl_moe", "Qwen3VLMoeTextConfig", "Qwen3VLMoeTextSparseMoeBlock"),
    Kind("qwen3_omni_moe", "Qwen3OmniMoeTextConfig", "Qwen3OmniMoeThinkerTextSparseMoeBlock"),
    Kind("qwen3_omni_moe", "Qwen3OmniMoeTalkerTextConfig", "Qwen3OmniMoeThinkerTextSparseMoeBlock"),
    Kind("qwen4_exp", "Qwen4ExpTextConfig", "Qwen4ExpTextSparseMoeBlock"),
    Kind("aria", "AriaTextConfig", "AriaTextMoELayer"),
    Kind("minimax", "MiniMaxConfig", "MiniMaxSparseMoeBlock"),
    Kind("granitemoe", "GraniteMoeConfig", "GraniteMoeMoE"),
    Kind("granitemoe_swa", "GraniteMoeSWAConfig", "GraniteMoeSWAMoE"),
    Kind("granitemoehybrid", "GraniteMoeHybridConfig", "GraniteMoeHybridMoE"),
    Kind("granitemoeshared", "GraniteMoeSharedConfig", "GraniteMoeSharedMoE"),
    Kind("flex_olmo", "FlexOlmoConfig", "FlexOlmoSparseMoeBlock"),
    Kind("mellum", "MellumConfig", "MellumSparseMoeBlock"),
    Kind("jamba", "JambaConfig", "JambaSparseMoeBlock"),
    Kind(
        "laguna",
        "LagunaConfig",
        "LagunaSparseMoeBlock",
        {"moe_routed_scaling_factor": 1.5, "moe_router_logit_softcapping": 0.7},
    ),
    Kind("axk2", "AXK2Config", "AXK2MoE"),
    Kind("beam", "BeamConfig", "BeamMoE", _GROUPS),
    Kind("exaone_moe", "ExaoneMoeConfig", "ExaoneMoeSparseMoEBlock", _GROUPS),
    Kind("glm4_moe_lite", "Glm4MoeLiteConfig", "Glm4MoeLiteMoE", _GROUPS),
    Kind("glm4v_moe", "Glm4vMoeTextConfig", "Glm4vMoeTextMoE"),
    Kind("kimi_linear", "KimiLinearConfig", "KimiLinearMoE"),
    Kind("glm5_next", "Glm5NextTextConfig", "Glm5NextTextMoE", {"swiglu_limit": 0.5}),
    Kind("hy_v4", "HYV4Config", "HYV4MoE", {"swiglu_limit": 0.5}),
    Kind(
        "nemotron_h", "NemotronHConfig", "NemotronHMoE", {"moe_shared_expert_intermediate_size": 32}
    ),
    Kind("longcat_flash", "LongcatFlashConfig", "LongcatFlashMoE", {"zero_expert_num": 4}),
    Kind("deepseek_v4", "DeepseekV4Config", "DeepseekV4SparseMoeBlock", {"swiglu_limit": 0.5}, 5),
)
WITHOUT_ROUTER = (
    Kind("llama4", "Llama4TextConfig", "Llama4TextExperts"),
    Kind("phimoe", "PhimoeConfig", "PhimoeExperts"),
    Kind("lfm2_moe", "Lfm2MoeConfig", "Lfm2MoeExperts"),
    Kind("hy_v3", "HYV3Config", "HYV3Experts"),
    Kind("ernie4_5_moe", "Ernie4_5_MoeConfig", "Ernie4_5_MoeExperts"),
    Kind("hunyuan_v1_moe", "HunYuanMoEV1Config", "HunYuanMoEV1Experts"),
    Kind("kolibri1", "Kolibri1Config", "Kolibri1Experts"),
    Kind("cohere2_moe", "Cohere2MoeConfig", "Cohere2MoeExperts"),
    Kind("afmoe", "AfmoeConfig", "AfmoeExperts"),
    Kind("inkling2", "Inkling2TextConfig", "Inkling2Experts", {"mlp_up_softcap": 1.5}),
)
"""Families whose experts are computed, and whose router is not; the block is the experts alone."""

_SIZES = {
    "hidden_size": HIDDEN,
    "moe_intermediate_size": INTERMEDIATE,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "first_k_dense_replace": 0,
    "moe_num_experts": EXPERTS,
    "moe_k": TOP_K,
    "moe_topk": TOP_K,
    "expert_ffn_hidden_size": INTERMEDIATE,
}


class Model(NamedTuple):
    """
    A layer of a family.

    Attributes:
        config: Content of its config.json.
        block: The layer of transformers.
        tensors: The experts as a checkpoint has them, fused, below `PREFIX`.
    """

    config: dict[str, Any]
    block: Any
    tensors: dict[str, Tensor]


def make(kind: Kind) -> Model:
    """Return a layer with random weights, whose values bfloat16 holds."""
    home = f"transformers.models.{kind.module}"
    classes = importlib.import_module(f"{home}.configuration_{kind.module}")
    made = getattr(classes, kind.config)
    names = set(made().to_dict())
    sizes = {name: value for name, value in _SIZES.items() if name in names}
    if "moe_intermediate_size" not in names:
        sizes["intermediate_size"] = INTERMEDIATE
    config = made(**sizes, **kind.words)
    config._experts_implementation = "eager"
    modeling = importlib.import_module(f"{home}.modeling_{kind.module}")
    numbers = () if kind.layer is None else (kind.layer,)
    block = getattr(modeling, kind.block)(config, *numbers).eval()
    chance = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for each in (*block.parameters(), *block.buffers()):
            if each.is_floating_point():
                each.copy_((torch.randn(each.shape, generator=chance) * 0.3).bfloat16())
    state = getattr(block, "experts", block).state_dict()
    tensors = {  # LongCat's class has rows for its experts without weights, checkpoints have none
        f"{PREFIX}.experts.{name}": each if name.endswith("_bias") else each[:EXPERTS].bfloat16()
        for name, each in state.items()
    }
    return Model(config.to_dict(), block, tensors)


def call() -> Tensor:
    """Return tokens that bfloat16 holds."""
    chance = torch.Generator().manual_seed(5)
    return torch.randn(TOKENS, HIDDEN, generator=chance).bfloat16().float()


def expected(model: Model, x: Tensor) -> Tensor:
    """Return the result of transformers' layer, in float32."""
    with torch.no_grad():
        found = model.block(x[None])
    return (found[0] if isinstance(found, tuple) else found)[0]


def shared(model: Model, x: Tensor) -> Tensor | None:
    """Return what experts that all tokens share add."""
    block = model.block
    own = next(
        (getattr(block, n) for n in ("shared_experts", "shared_expert") if hasattr(block, n)), None
    )
    with torch.no_grad():
        if own is None:
            return None
        gate = getattr(block, "shared_expert_gate", None)
        return own(x) if gate is None else gate(x).sigmoid() * own(x)


def after(model: Model, found: Tensor) -> Tensor:
    """Return a layer's result after the norm that A.X-K1 has behind it."""
    norm = getattr(model.block, "post_mlp_layernorm", None)
    with torch.no_grad():
        return found if norm is None else norm(found)


def logits(model: Model, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the router's logits, and its correction bias."""
    router = getattr(model.block, "gate", None) or model.block.router
    bias = getattr(router, "bias", None)
    product = getattr(router, "classifier", router)
    found = torch.nn.functional.linear(x, product.weight, bias)
    for home in (router, model.block):
        correction = getattr(home, "e_score_correction_bias", None)
        if correction is not None:
            return found.detach(), correction.float()
    return found.detach(), None
