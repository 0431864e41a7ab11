# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of every family, with the numbers that their weights stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.formats.e2m1 import unpack

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 5, 2
Matrices = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Lists of the gates, ups and downs of every expert, float32, as the checkpoint has them."""


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def by_expert(prefix: str, names: tuple[str, str, str]) -> tuple[dict[str, Tensor], Matrices]:
    """Return bfloat16 tensors, one for each expert and matrix, and their numbers."""
    gate, up, down = names
    w = normal(EXPERTS, 3, INTERMEDIATE, HIDDEN).div(12).bfloat16()
    tensors = {}
    for e in range(EXPERTS):
        tensors[f"{prefix}.experts.{e}.{gate}.weight"] = w[e, 0].clone()
        tensors[f"{prefix}.experts.{e}.{up}.weight"] = w[e, 1].clone()
        tensors[f"{prefix}.experts.{e}.{down}.weight"] = w[e, 2].T.contiguous()
    numbers = w.float()
    return tensors, (list(numbers[:, 0]), list(numbers[:, 1]), list(numbers[:, 2].mT))


def mixtral() -> tuple[str, dict[str, Tensor], Matrices]:
    prefix = "model.layers.7.block_sparse_moe"
    return prefix, *by_expert(prefix, ("w1", "w3", "w2"))


def qwen3_moe() -> tuple[str, dict[str, Tensor], Matrices]:
    prefix = "model.layers.7.mlp"
    return prefix, *by_expert(prefix, ("gate_proj", "up_proj", "down_proj"))


def deepseek_v3() -> tuple[str, dict[str, Tensor], Matrices]:
    prefix, plain, _ = qwen3_moe()
    tensors: dict[str, Tensor] = {}
    numbers: tuple[list[Tensor], ...] = ([], [], [])
    for name, weight in plain.items():
        q, scale = jitgen.quantize.per_block(weight)
        tensors |= {name: q, f"{name}_scale_inv": scale}
        place = ("gate_proj", "up_proj", "down_proj").index(name.split(".")[-2])
        repeated = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        numbers[place].append(q.float() * repeated)
    return prefix, tensors, numbers  # type: ignore[return-value]


def gpt_oss() -> tuple[str, dict[str, Tensor], Matrices]:
    prefix = "model.layers.7.mlp"
    tensors: dict[str, Tensor] = {}
    numbers = {}
    for name, rows, columns in (
        ("gate_up_proj", 2 * INTERMEDIATE, HIDDEN),
        ("down_proj", HIDDEN, INTERMEDIATE),
    ):
        generator = torch.Generator().manual_seed(rows)
        shape = (EXPERTS, rows, columns // 32, 16)
        blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        scales = torch.randint(119, 123, shape[:-1], generator=generator, dtype=torch.uint8)
        tensors[f"{prefix}.experts.{name}_blocks"] = blocks
        tensors[f"{prefix}.experts.{name}_scales"] = scales
        tensors[f"{prefix}.experts.{name}_bias"] = normal(EXPERTS, rows).bfloat16()
        factor = torch.exp2(scales.float() - 127).repeat_interleave(32, -1)
        numbers[name] = unpack(blocks.flatten(-2), torch.float32) * factor
    up = numbers["gate_up_proj"]
    return prefix, tensors, (list(up[:, 0::2]), list(up[:, 1::2]), list(numbers["down_proj"]))


MAKERS: dict[str, Callable[[], tuple[str, dict[str, Tensor], Matrices]]] = {
    "deepseek_v3": deepseek_v3,
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "gpt_oss": gpt_oss,
}


def load(source: Any, prefix: str, **named: Any) -> jitgen.MoELayer:
    return jitgen.MoELayer.from_checkpoint(source, prefix, **{"top_k": TOP_K, **named})


def refused(source: Any, prefix: str, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(source, prefix, **named)
    return str(caught.value)


def same(one: jitgen.MoELayer, other: jitgen.MoELayer) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(value.view(torch.uint8), theirs[name].view(torch.uint8))
        for name, value in ours.items()
    )
