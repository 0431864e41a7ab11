# SPDX-License-Identifier: Apache-2.0
"""
Qwen3-MoE, and others with bfloat16 weights under these names: DeepSeek-V3 after dequantising, GLM.

``experts.E.gate_proj.weight`` and ``up_proj`` (I, H), ``down_proj`` (H, I).
"""

from __future__ import annotations

from jitgen.layer.checkpoints.family import Family, Part, bfloat16, counted, stacked
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import ExpertWeights


def read(part: Part) -> ExpertWeights:
    """Return the weights of a part."""
    return ExpertWeights(
        w13=bfloat16("gate_proj", stacked(part, ("gate_proj", "up_proj"))),
        w2=bfloat16("down_proj", stacked(part, ("down_proj",))),
        activations=part.activations,
    )


def is_in(source: Source, prefix: str) -> bool:
    """Say whether such a layer is below `prefix`."""
    return f"{prefix}.experts.0.gate_proj.weight" in source


FAMILY = Family(is_in=is_in, count=counted(last="gate_proj.weight"), read=read)
