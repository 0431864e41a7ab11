# SPDX-License-Identifier: Apache-2.0
"""
DeepSeek-V3, and others with FP8 weights and a scale for each 128 x 128: Kimi-K2, Qwen3 in FP8.

``experts.E.gate_proj.weight`` (I, H) float8_e4m3fn, its scales in ``weight_scale_inv``, (I / 128,
H / 128), which values are multiplied with; ``up_proj`` likewise, ``down_proj`` (H, I).
`jitgen.layer.checkpoints.scales` says of which types scales may be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.config import SCALE_BLOCK
from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.family import Family, Form, Part
from jitgen.layer.checkpoints.matrices import stacked, turned
from jitgen.layer.weights import ExpertWeights

_SCALE = "weight_scale_inv"
_GATE_UP, _DOWN = ("gate_proj", "up_proj"), ("down_proj",)
_TYPES = (torch.float8_e4m3fn,)


def read(part: Part) -> ExpertWeights:
    """
    Return the weights of a part.

    Raises:
        InputError: They are no FP8 weights with such scales; or I is no multiple of 128, so that
            a block of scales would have gates and ups in it.
    """
    w13 = stacked(part, _GATE_UP, _TYPES)
    hidden, intermediate = turned(w13)
    if intermediate % SCALE_BLOCK:
        raise InputError(
            "source",
            f"I must be a multiple of {SCALE_BLOCK}, for scales of gates and ups to be in blocks "
            f"of their own (got {intermediate} rows of {part.name('experts.0.gate_proj.weight')})",
        )
    w2 = stacked(part, _DOWN, _TYPES, shape=(hidden, intermediate))
    return ExpertWeights(
        w13=w13,
        w2=w2,
        w13_scale=_scales(part, _GATE_UP, intermediate, hidden),
        w2_scale=_scales(part, _DOWN, hidden, intermediate),
        activation_format=part.activation_format,
    )


def _scales(part: Part, names: tuple[str, ...], n: int, k: int) -> Tensor:
    """Return the scales of matrices (N, K)."""

    def of(scale: Tensor, name: str) -> Tensor:
        weight = name.removesuffix("_scale_inv").removeprefix(part.name(""))
        return scales.of_block(part, scale, name, weight)

    return stacked(
        part,
        names,
        (*scales.NUMBERS, *scales.BYTES),
        shape=(ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK)),
        suffix=_SCALE,
        of=of,
    )


FAMILY = Family(
    forms=(
        Form(
            marks=(f"experts.0.gate_proj.{_SCALE}",),
            reads=tuple(
                f"experts.E.{name}.{last}"
                for last in ("weight", _SCALE)
                for name in (*_GATE_UP, *_DOWN)
            ),
            method="fp8",
            read=read,
        ),
    )
)
