# SPDX-License-Identifier: Apache-2.0
"""
DeepSeek-V3, and others with FP8 weights and a scale for each 128 x 128: Kimi-K2, Qwen3 in FP8.

``experts.E.gate_proj.weight`` (I, H) float8_e4m3fn, its scales in ``weight_scale_inv``, (I / 128,
H / 128) float32, which values are multiplied with; ``up_proj`` likewise, ``down_proj`` (H, I).
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.config import SCALE_BLOCK
from jitgen.errors import InputError
from jitgen.layer.checkpoints.family import Family, Part, counted, stacked
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import ExpertWeights

_SCALE = "weight_scale_inv"
_GATE_UP, _DOWN = ("gate_proj", "up_proj"), ("down_proj",)


def read(part: Part) -> ExpertWeights:
    """
    Return the weights of a part.

    Raises:
        InputError: They are no FP8 weights with such scales; or I is no multiple of 128, so that
            a block of scales would have gates and ups in it.
    """
    w13, w2 = stacked(part, _GATE_UP), stacked(part, _DOWN)
    if w13.dtype is not torch.float8_e4m3fn:
        raise InputError("source", f"weights must be float8_e4m3fn (got {w13.dtype})")
    if w2.shape[-1] % SCALE_BLOCK:
        raise InputError(
            "source",
            f"I must be a multiple of {SCALE_BLOCK}, for scales of gates and ups to be in blocks "
            f"of their own (got {w2.shape[-1]})",
        )
    return ExpertWeights(
        w13=w13,
        w2=w2,
        w13_scale=_scales(part, _GATE_UP),
        w2_scale=_scales(part, _DOWN),
        activations=part.activations,
    )


def _scales(part: Part, names: tuple[str, ...]) -> Tensor:
    return stacked(part, names, suffix=_SCALE).float()


def is_in(source: Source, prefix: str) -> bool:
    """Say whether such a layer is below `prefix`."""
    return f"{prefix}.experts.0.gate_proj.{_SCALE}" in source


FAMILY = Family(is_in=is_in, count=counted(last="gate_proj.weight"), read=read)
