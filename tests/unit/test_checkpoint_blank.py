# SPDX-License-Identifier: Apache-2.0
"""Layers and routers out of a config alone: what is refused, where, and with which error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.errors import InputError, ResourceError

SAID: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "norm_topk_prob": True,
}


def layer(words: dict[str, Any], number: Any = None, device: str = "meta") -> jitgen.MoEConfig:
    return jitgen.MoELayer.from_config({**SAID, **words}, layer=number, device=device).config


@pytest.mark.parametrize(
    ("words", "without", "beside"),
    [
        ({"first_k_dense_replace": 3}, 2, 3),
        ({"decoder_sparse_step": 2}, 2, 3),
        ({"mlp_only_layers": [0, 5]}, 5, 4),
        ({"mlp_layer_types": ["dense", "sparse"]}, 0, 1),
        ({"mlp_layer_types": ["dense", "sparse"]}, 0, 2),
        ({"moe_layer_freq": [0, 1]}, 0, 1),
        ({"moe_layer_freq": 2}, 3, 4),
    ],
)
def test_a_layer_without_experts(words: dict[str, Any], without: int, beside: int) -> None:
    [name] = words
    with pytest.raises(InputError, match=f"layer: {without} has no experts: .* says {name} = "):
        layer(words, without)
    assert layer(words, beside) == layer({})


@pytest.mark.parametrize("number", [-1, "0", 0.0, True])
def test_what_is_no_number_of_a_layer(number: Any) -> None:
    """A router took -1 for a layer with a table of experts."""
    words = {**SAID, "model_type": "deepseek_v4", "num_hash_layers": 3}
    assert jitgen.RouterConfig.from_config(words, 0).is_hashed
    with pytest.raises(InputError, match="layer: must be an integer of at least 0"):
        jitgen.RouterConfig.from_config(words, number)
    with pytest.raises(InputError, match="layer: must be an integer of at least 0"):
        layer({}, number)


@pytest.mark.parametrize("name", ["num_experts", "hidden_size", "moe_intermediate_size"])
def test_sizes_of_no_machine(name: str) -> None:
    with pytest.raises(InputError, match=f"must have an integer for {name}, 0 to 2147483647"):
        layer({name: 10**30})
    both = dict.fromkeys(("moe_intermediate_size", "hidden_size"), 2**31 - 1)
    with pytest.raises(InputError, match="no machine has room for: w13 would be"):
        layer(both)
    with pytest.raises(ResourceError):
        layer({"hidden_size": 2**31 - 1, "moe_intermediate_size": 2**20}, device="cpu")


def test_a_link_to_nothing_is_no_missing_config(tmp_path: Path) -> None:
    """The layer was read as if there were no config.json, whatever that would have said."""
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    shapes = {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}
    tensors = {
        f"model.layers.3.mlp.experts.{expert}.{name}.weight": torch.zeros(shape).bfloat16()
        for expert in range(8)
        for name, shape in shapes.items()
    }
    files.save_file(tensors, tmp_path / "model.safetensors")
    assert jitgen.MoELayer.from_checkpoint(tmp_path, layer=3, top_k=2).config == layer({})
    with pytest.raises(InputError, match="progress: must take two numbers"):
        jitgen.MoELayer.from_checkpoint(tmp_path, layer=3, top_k=2, progress=3)  # type: ignore[arg-type]
    (tmp_path / "config.json").symlink_to("blobs/lost")

    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        jitgen.MoELayer.from_checkpoint(tmp_path, layer=3, top_k=2)


@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ({"num_experts_per_tok": 9}, "top_k"),
        ({"n_group": 3, "topk_group": 2}, "expert_groups"),
        ({"n_group": 2, "topk_group": 4}, "top_groups"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 4}, "top_k"),
        ({"moe_router_logit_softcapping": 1e35}, "softcap"),
    ],
)
def test_a_router_that_route_does_not_compute(words: dict[str, Any], argument: str) -> None:
    """It was found out by the first call; a plan was written."""
    with pytest.raises(InputError, match=f"^{argument}: must "):
        jitgen.RouterConfig.from_config({**SAID, **words})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("experts", "8"), ("experts", 1025), ("top_k", 0), ("top_k", 33)),
        *(("scoring", "given"), ("renormalize", None)),
    ],
)
def test_a_router_of_wrong_values(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{field}: must be"):
        jitgen.RouterConfig(**{"experts": 64, "top_k": 2, field: value})


def test_the_softcap_of_grok() -> None:
    """It was refused as something that no router computes."""
    found = jitgen.RouterConfig.from_config({**SAID, "router_logit_softcapping": 30})
    assert found.softcap == found.arguments["softcap"] == 30.0
    both = {"router_logit_softcapping": 30, "moe_router_logit_softcapping": 20}
    with pytest.raises(InputError, match=r"^config: .* says both moe_router_logit_softcapping and"):
        jitgen.RouterConfig.from_config({**SAID, **both})


def test_experts_without_weights() -> None:
    """LongCat's, of which every part of the columns would add the tokens."""
    words = {"zero_expert_num": 4, "zero_expert_type": "identity"}
    found = layer(words)
    assert (found.experts, found.zero_experts, found.every) == (8, 4, 12)
    assert jitgen.RouterConfig.from_config({**SAID, **words}).experts == 12
    with pytest.raises(InputError, match=r"^config: .* says zero_expert_type = 'drop'"):
        layer({**words, "zero_expert_type": "drop"})


@pytest.mark.parametrize("size", [32, 128, 64])
def test_weights_in_groups_of_int4(size: int) -> None:
    """Their format follows from the config; of other groups there is bfloat16 alone."""
    weights = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": size}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    words = {"quant_method": "compressed-tensors", "config_groups": groups}
    said = {**SAID, "quantization_config": words}
    if size == 64:
        with pytest.raises(InputError, match="int4 in groups of 64, and layers compute with 32"):
            jitgen.MoELayer.from_config(said, device="meta")
        return
    layer = jitgen.MoELayer.from_config(said, device="meta")
    assert isinstance(layer.weights.w13, jitgen.quantize.PrepackedWeights)
    assert layer.weights.w13.format == f"int4_{size}"
    assert layer.weights.activation_format == "none"
    found = {
        str(sweep.problem.operands.b_dtype)
        for sweep in layer.plan(arch="sm_90a").sweeps
        if sweep.problem.op == "grouped_gemm"
    }
    assert found == {"int4"}
