# SPDX-License-Identifier: Apache-2.0
"""
Writes a tiny random Qwen3-MoE whose experts are quantised as compressed-tensors, GPTQ or ModelOpt
store them, or a tiny gpt-oss with MXFP4, and the same model with these experts in bfloat16. Run by
vLLM's Python: FORM FOLDER.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

from jitgen import quantize
from jitgen.formats import int4

CONFIG = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "head_dim": 64,
}
GPT_OSS = {
    **{name: CONFIG[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
    **{name: CONFIG[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")},
    "intermediate_size": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "max_position_embeddings": 256,
    "rope_scaling": None,
}
MATRICES = ("_proj.weight", "experts.gate_up_proj", "experts.down_proj")
"""Ends of the names of experts' matrices."""

_GLOBAL = 2.0**-12
"""NVFP4's scale of all matrices: vLLM takes one for gates and ups."""

Quantised = tuple[dict[str, Tensor], Tensor]
"""Tensors of a checkpoint by the ends of their names, and the numbers that they stand for."""


def _int4(group: int) -> Callable[[Tensor], Quantised]:
    def quantised(w: Tensor) -> Quantised:
        parts = w.float().unflatten(-1, (-1, group))
        scale = (parts.abs().amax(-1) / 7).bfloat16()
        codes = (parts / scale.float().unsqueeze(-1)).round().clamp(-8, 7)
        found = {
            "weight_packed": int4.packed_of(codes.flatten(-2)),
            "weight_scale": scale,
            "weight_shape": torch.tensor(w.shape),
        }
        return found, (codes * scale.float().unsqueeze(-1)).flatten(-2)

    return quantised


def _gptq(w: Tensor) -> Quantised:
    found, numbers = _int4(32)(w)
    words, scale = found["weight_packed"], found["weight_scale"]
    zeros = int4.packed_of(torch.full(scale.mT.shape, -1))  # 8, stored less 1
    return {"qweight": words.mT, "scales": scale.mT.half(), "qzeros": zeros}, numbers


def _modelopt(w: Tensor) -> Quantised:
    found, numbers = _nvfp4(w)
    named = {
        "weight": found["weight_packed"],
        "weight_scale": found["weight_scale"],
        "weight_scale_2": torch.tensor(_GLOBAL),
        "input_scale": torch.tensor(1.0),
    }
    return named, numbers


def _nvfp4(w: Tensor) -> Quantised:
    overall = torch.tensor([_GLOBAL])
    packed, atoms, _ = quantize.nvfp4(w[None].float(), global_scale=overall)
    scale = quantize.from_atoms(atoms, w.shape[0], w.shape[1] // 16)
    numbers = quantize.prepack_nvfp4(packed, scale, overall, layout="exact1").weights()[0]
    found = {
        "weight_packed": packed[0],
        "weight_scale": scale[0],
        "weight_global_scale": 1 / overall,
        "input_global_scale": torch.ones(1),
    }
    return found, numbers


def _mxfp8(w: Tensor) -> Quantised:
    q, atoms = quantize.mxfp8(w[None].float())
    scale = quantize.from_atoms(atoms, w.shape[0], w.shape[1] // 32)
    numbers = quantize.prepack_mxfp8(q, scale).weights()[0]
    return {"weight": q[0], "weight_scale": scale[0].view(torch.uint8)}, numbers


def _gpt_oss(w: Tensor) -> Quantised:
    """Quantise the matrices of all experts, (E, K, N)."""
    codes, atoms = quantize.mxfp4(w.mT.float().contiguous())
    scale = quantize.from_atoms(atoms, w.shape[2], w.shape[1] // 32)
    numbers = quantize.prepack_mxfp4(codes, scale, layout="wide1").weights()
    found = {"_blocks": codes.unflatten(-1, (-1, 16)), "_scales": scale.view(torch.uint8)}
    return found, numbers.mT


def _channel(w: Tensor) -> Quantised:
    q, scale = quantize.per_row(w.float())
    return {"weight": q, "weight_scale": scale[:, None]}, q.float() * scale[:, None]


def _args(bits: int, kind: str, strategy: str, group: int | None = None, **more: Any) -> Any:
    usual = {"symmetric": True, "dynamic": False}
    sizes = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group}
    return {**usual, **sizes, **more}


def _compressed(name: str, weights: Any, tokens: Any = None) -> Any:
    """Return what compressed-tensors' config says of experts."""
    group = {"targets": ["Linear"], "format": name, "weights": weights, "input_activations": tokens}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
        "config_groups": {"group_0": group},
    }


_NV = (4, "float", "tensor_group", 16)
_MX = {"scale_dtype": "torch.uint8"}
_FORMAT = "nvfp4-pack-quantized"
FORMS: dict[str, tuple[Callable[[Tensor], Quantised], Any]] = {
    **{
        f"int4_{group}": (
            _int4(group),
            _compressed("pack-quantized", _args(4, "int", "group", group)),
        )
        for group in (32, 128)
    },
    "gptq": (
        _gptq,
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "sym": True,
            "desc_act": False,
            "dynamic": {"-:.*self_attn.*": {}, "-:.*mlp.gate$": {}},
        },
    ),
    "nvfp4": (_nvfp4, _compressed(_FORMAT, _args(*_NV), _args(*_NV, dynamic="local"))),
    "nvfp4a16": (_nvfp4, _compressed(_FORMAT, _args(*_NV))),
    "modelopt": (
        _modelopt,
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "ignore": ["lm_head", "*self_attn*", "*mlp.gate"],
        },
    ),
    "gpt_oss": (_gpt_oss, {"quant_method": "mxfp4"}),
    "mxfp8": (
        _mxfp8,
        _compressed(
            "mxfp8-quantized",
            _args(8, "float", "group", 32, **_MX),
            _args(8, "float", "group", 32, dynamic=True, **_MX),
        ),
    ),
    "channel": (
        _channel,
        _compressed(
            "float-quantized",
            _args(8, "float", "channel"),
            _args(8, "float", "token", dynamic=True),
        ),
    ),
}
"""What quantises a matrix, and what the config of a model says of it."""


def write(form: str, folder: Path) -> None:
    """Write the models ``plain`` and ``packed`` into a folder."""
    quantised, said = FORMS[form]
    torch.manual_seed(0)
    config = GptOssConfig(**GPT_OSS) if form == "gpt_oss" else Qwen3MoeConfig(**CONFIG)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for kind in ("plain", "packed"):
        model.save_pretrained(folder / kind)
    (file,) = (folder / "plain").glob("*.safetensors")
    plain: dict[str, Tensor] = {}
    packed: dict[str, Tensor] = {}
    for each, tensor in load_file(file).items():
        if ".experts." not in each or not each.endswith(MATRICES):
            plain[each] = packed[each] = tensor
            continue
        parts, numbers = quantised(tensor)
        plain[each] = numbers.bfloat16()
        packed |= {f"{each.removesuffix('weight')}{end}": x for end, x in parts.items()}
    for kind, tensors in (("plain", plain), ("packed", packed)):
        whole = {key: x.contiguous() for key, x in tensors.items()}
        save_file(whole, folder / kind / file.name, metadata={"format": "pt"})
    path = folder / "packed" / "config.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    described["quantization_config"] = said
    path.write_text(json.dumps(described), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
