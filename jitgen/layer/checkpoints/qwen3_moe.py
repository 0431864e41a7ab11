# SPDX-License-Identifier: Apache-2.0
"""
Qwen3-MoE, and others with bfloat16 weights under these names: DeepSeek-V3 after dequantising, GLM.

``experts.E.gate_proj.weight`` and ``up_proj`` (I, H), ``down_proj`` (H, I).
"""

from __future__ import annotations

from jitgen.layer.checkpoints.family import Family, Form, Part
from jitgen.layer.checkpoints.matrices import plain
from jitgen.layer.weights import ExpertWeights

_GATE_UP, _DOWN = ("gate_proj", "up_proj"), "down_proj"


def read(part: Part) -> ExpertWeights:
    """
    Return the weights of a part.

    Raises:
        InputError: They are no such weights.
    """
    w13, w2 = plain(part, _GATE_UP, _DOWN)
    return ExpertWeights(w13=w13, w2=w2, activations=part.activations)


FAMILY = Family(
    forms=(
        Form(
            marks=("experts.0.gate_proj.weight",),
            reads=tuple(f"experts.E.{name}.weight" for name in (*_GATE_UP, _DOWN)),
            read=read,
        ),
    )
)
