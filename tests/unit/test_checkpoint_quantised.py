# SPDX-License-Identifier: Apache-2.0
"""What a model's config says of its quantised weights, in the words of those who quantise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitgen
from jitgen.errors import InputError
from jitgen.layer.checkpoints.encodings import ENCODINGS, Encoding
from tests.checkpoint_axes import PREFIX, make

ANY = {each.name: each for each in ENCODINGS}
TOKENS = {"dynamic": True, "num_bits": 8, "strategy": "token", "type": "float"}


def compressed(
    kind: str, bits: int, strategy: str, *, tokens: Any = TOKENS, **weights: Any
) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True}
        | weights,
        "input_activations": tokens,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.0",
    }


def modelopt(algorithm: str, **words: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt",
        "quant_algo": algorithm,
        "kv_cache_quant_algo": "FP8",
        "producer": {"name": "modelopt", "version": "0.33"},
        "exclude_modules": ["lm_head", "model.layers.*.self_attn*"],
        **words,
    }


FITS: list[tuple[str, dict[str, Any]]] = [
    ("fp8_row", compressed("float", 8, "channel")),
    ("fp8_tensor", compressed("float", 8, "tensor")),
    ("fp8_block128", compressed("float", 8, "block", block_structure=[128, 128])),
    ("mxfp8", compressed("float", 8, "group", group_size=32)),
    ("mxfp4", compressed("float", 4, "group", group_size=32, tokens=None)),
    ("nvfp4", compressed("float", 4, "tensor_group", group_size=16)),
    ("int4", compressed("int", 4, "group", group_size=32, tokens=None)),
    (
        "int4_gptq",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
        | {"checkpoint_format": "gptq", "damp_percent": 0.1},
    ),
    (
        "int4_awq",
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": False}
        | {"version": "gemm"},
    ),
    ("fp8_tensor", modelopt("FP8")),
    ("fp8_row", modelopt("FP8_PER_CHANNEL_PER_TOKEN")),
    ("fp8_block128", modelopt("FP8_PB_WO")),
    ("nvfp4", modelopt("NVFP4", group_size=16)),
    ("mxfp8", modelopt("MXFP8", group_size=32)),
    ("fp8_row", {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    ("mxfp4", {"quant_method": "mxfp4"}),
    ("mxfp4", {"quant_method": "fp8", "expert_dtype": "fp4", "weight_block_size": [128, 128]}),
    ("mxfp8", {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [1, 32]}),
    ("fp8_block32", {"quant_method": "fp8", "weight_block_size": [32, 32]}),
    ("bf16", compressed("float", 8, "channel") | {"ignore": ["re:.*layers.3.*"]}),
    ("bf16", modelopt("NVFP4", exclude_modules=["model.layers.3.mlp.experts*"])),
]


def load(name: str, words: dict[str, Any], **named: Any) -> jitgen.MoELayer:
    encoding: Encoding = ANY[name]
    config = {"num_experts": 3, "num_experts_per_tok": 2, "quantization_config": words}
    return jitgen.MoELayer.from_checkpoint(
        make("deepseek_v3", encoding, 128).tensors,
        PREFIX,
        config=config,
        **{"dequantize": encoding.kernel is None, **named},
    )


def refused(name: str, words: dict[str, Any], **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(name, words, **named)
    return str(caught.value)


@pytest.mark.parametrize(("name", "words"), FITS)
def test_what_fits(name: str, words: dict[str, Any]) -> None:
    assert load(name, words).config.top_k == 2


@pytest.mark.parametrize(("name", "words"), FITS)
def test_what_is_of_other_weights(name: str, words: dict[str, Any]) -> None:
    """A config of one encoding beside the tensors of another."""
    other = "int4" if name != "int4" else "fp8_block128"
    text = refused(other, words)

    assert text.startswith("config: ")
    assert "quantization_config" in text
    assert f"{PREFIX}.experts.E.gate_proj" in text


@pytest.mark.parametrize(
    ("name", "words", "text"),
    [
        ("fp8_row", compressed("int", 8, "channel"), "no encoding that is read"),
        ("fp8_row", compressed("float", 8, ["channel"]), "no encoding that is read"),  # type: ignore[arg-type]
        ("int4", compressed("int", 4, "group", symmetric=False), "symmetric = False"),
        ("int4", compressed("int", 4, "group", actorder="group"), "actorder = 'group'"),
        ("mxfp4", compressed("float", 4, "group", group_size=16), "group_size = 16, and 32 is"),
        (
            "fp8_block128",
            compressed("float", 8, "block", block_structure=[64, 64]),
            "block_structure = [64, 64]",
        ),
        ("fp8_row", compressed("float", 8, "channel") | {"config_groups": {}}, "config_groups"),
        ("fp8_row", compressed("float", 8, "channel") | {"config_groups": {"a": 3}}, "nothing of"),
        (
            "fp8_row",
            compressed("float", 8, "channel") | {"sparsity_config": {"format": "x"}},
            "spar",
        ),
        ("fp8_row", compressed("float", 8, "channel") | {"ignore": ["re:("]}, "no expression"),
        ("fp8_row", compressed("float", 8, "channel") | {"new_word": 3}, "new_word = 3"),
        ("fp8_tensor", modelopt("W4A8_AWQ"), "quant_algo = 'W4A8_AWQ'"),
        ("fp8_tensor", modelopt("MIXED_PRECISION"), "quant_algo"),
        ("fp8_tensor", modelopt(""), "quant_algo"),
        ("fp8_tensor", modelopt(None), "quant_algo"),  # type: ignore[arg-type]
        ("nvfp4", modelopt("NVFP4", group_size=8), "group_size = 8"),
        ("fp8_row", {"quant_method": "gptq", "bits": 4}, "quant_method = gptq, int4_gptq"),
        ("int4_gptq", {"quant_method": "gptq", "bits": 8}, "bits = 8, and 4 is read"),
        ("int4_gptq", {"quant_method": "gptq", "bits": 4, "sym": False}, "sym = False"),
        ("int4_gptq", {"quant_method": "gptq", "desc_act": True}, "desc_act = True"),
        ("int4_gptq", {"quant_method": "gptq", "checkpoint_format": "marlin"}, "'marlin'"),
        ("int4_awq", {"quant_method": "awq", "zero_point": True}, "zero_point = True"),
        ("int4_awq", {"quant_method": "awq", "version": "gemv"}, "version = 'gemv'"),
        ("int4", {"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes'"),
    ],
)
def test_what_is_not_read_is_refused_by_its_name(
    name: str, words: dict[str, Any], text: str
) -> None:
    assert text in refused(name, words)


def test_static_scales_are_left_out_only_if_asked_to() -> None:
    static = compressed("float", 8, "tensor", tokens={**TOKENS, "dynamic": False})
    assert "ignore_input_scales=True" in refused("fp8_tensor", static)
    assert load("fp8_tensor", static, ignore_input_scales=True).config.top_k == 2
    words = {"quant_method": "fp8", "activation_scheme": "static"}

    assert "activation_scheme = 'static'" in refused("fp8_tensor", words)
    assert load("fp8_tensor", words, ignore_input_scales=True).config.top_k == 2


def test_weights_alone_in_fp8() -> None:
    """Tokens would be quantised, though the config says that they are not."""
    words = compressed("float", 8, "channel", tokens=None)

    assert "dequantize=True" in refused("fp8_row", words)
    assert load("fp8_row", words, dequantize=True).weights.activation_format == "none"


def test_a_group_of_these_modules_wins_over_that_of_all() -> None:
    words = compressed("float", 8, "channel")
    own = compressed("float", 4, "group", group_size=32)["config_groups"]["group_0"]
    words["config_groups"]["group_1"] = {**own, "targets": ["re:.*experts.*(gate|up|down)_proj"]}

    assert load("mxfp4", words).config.top_k == 2
    assert "mxfp4" in refused("fp8_row", words)


def test_scales_in_bytes_where_the_config_says_float() -> None:
    made = make("deepseek_v3", ANY["fp8_block128"], 128).tensors
    tensors = {
        name: torch.full_like(tensor, 120, dtype=torch.uint8) if "scale" in name else tensor
        for name, tensor in made.items()
    }
    words = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "float"}
    config = {"num_experts": 3, "num_experts_per_tok": 2, "quantization_config": words}

    with pytest.raises(InputError, match="says that scales are float"):
        jitgen.MoELayer.from_checkpoint(tensors, PREFIX, config=config)
    words["scale_fmt"] = "ue8m0"
    assert jitgen.MoELayer.from_checkpoint(tensors, PREFIX, config=config).config.top_k == 2
