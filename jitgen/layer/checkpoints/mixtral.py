# SPDX-License-Identifier: Apache-2.0
"""
Mixtral: ``experts.E.w1.weight`` are the gates (I, H), ``w3`` the ups, ``w2`` (H, I) leads back.

The prefix ends with ``block_sparse_moe``.
"""

from __future__ import annotations

from jitgen.layer.checkpoints.family import Family, Part, bfloat16, counted, stacked
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import ExpertWeights


def read(part: Part) -> ExpertWeights:
    """Return the weights of a part."""
    return ExpertWeights(
        w13=bfloat16("w1", stacked(part, ("w1", "w3"))),
        w2=bfloat16("w2", stacked(part, ("w2",))),
        activations=part.activations,
    )


def is_in(source: Source, prefix: str) -> bool:
    """Say whether such a layer is below `prefix`."""
    return f"{prefix}.experts.0.w1.weight" in source


FAMILY = Family(is_in=is_in, count=counted(last="w1.weight"), read=read)
