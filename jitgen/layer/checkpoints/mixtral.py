# SPDX-License-Identifier: Apache-2.0
"""
Mixtral: ``experts.E.w1.weight`` are the gates (I, H), ``w3`` the ups, ``w2`` (H, I) leads back.

The prefix ends with ``block_sparse_moe``.
"""

from __future__ import annotations

from jitgen.layer.checkpoints.family import Family, Form, Part
from jitgen.layer.checkpoints.matrices import plain
from jitgen.layer.weights import ExpertWeights

_GATE_UP, _DOWN = ("w1", "w3"), "w2"


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
            marks=("experts.0.w1.weight",),
            reads=tuple(f"experts.E.{name}.weight" for name in (*_GATE_UP, _DOWN)),
            read=read,
        ),
    )
)
