# SPDX-License-Identifier: Apache-2.0
"""
Writes a tiny random Qwen3-MoE whose experts are quantised as compressed-tensors stores them, and
the same model with these experts in bfloat16. Run by vLLM's Python: FORM FOLDER.
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
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

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


def _channel(w: Tensor) -> Quantised:
    q, scale = quantize.per_row(w.float())
    return {"weight": q, "weight_scale": scale[:, None]}, q.float() * scale[:, None]


def _args(bits: int, kind: str, strategy: str, group: int | None = None, **more: Any) -> Any:
    usual = {"symmetric": True, "dynamic": False}
    sizes = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group}
    return {**usual, **sizes, **more}


_GROUP16 = (4, "float", "tensor_group", 16)
_GROUP32 = (8, "float", "group", 32)
FORMS: dict[str, tuple[Callable[[Tensor], Quantised], str, Any, Any]] = {
    "int4_32": (_int4(32), "pack-quantized", _args(4, "int", "group", 32), None),
    "int4_128": (_int4(128), "pack-quantized", _args(4, "int", "group", 128), None),
    "nvfp4": (_nvfp4, "nvfp4-pack-quantized", _args(*_GROUP16), _args(*_GROUP16, dynamic="local")),
    "nvfp4a16": (_nvfp4, "nvfp4-pack-quantized", _args(*_GROUP16), None),
    "mxfp8": (
        _mxfp8,
        "mxfp8-quantized",
        _args(*_GROUP32, scale_dtype="torch.uint8"),
        _args(*_GROUP32, dynamic=True, scale_dtype="torch.uint8"),
    ),
    "channel": (
        _channel,
        "float-quantized",
        _args(8, "float", "channel"),
        _args(8, "float", "token", dynamic=True),
    ),
}
"""What quantises a matrix, and what a config says of it: format, weights, tokens."""


def write(form: str, folder: Path) -> None:
    """Write the models ``plain`` and ``packed`` into a folder."""
    quantised, name, weights, tokens = FORMS[form]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**CONFIG), dtype=torch.bfloat16)
    for kind in ("plain", "packed"):
        model.save_pretrained(folder / kind)
    (file,) = (folder / "plain").glob("*.safetensors")
    plain: dict[str, Tensor] = {}
    packed: dict[str, Tensor] = {}
    for each, tensor in load_file(file).items():
        if ".experts." not in each:
            plain[each] = packed[each] = tensor
            continue
        parts, numbers = quantised(tensor)
        plain[each] = numbers.bfloat16()
        packed |= {f"{each.removesuffix('weight')}{end}": x for end, x in parts.items()}
    for kind, tensors in (("plain", plain), ("packed", packed)):
        whole = {key: x.contiguous() for key, x in tensors.items()}
        save_file(whole, folder / kind / file.name, metadata={"format": "pt"})
    path = folder / "packed" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": name,
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": name,
                "weights": weights,
                "input_activations": tokens,
            }
        },
    }
    path.write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
