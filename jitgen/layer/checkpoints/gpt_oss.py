# SPDX-License-Identifier: Apache-2.0
"""
gpt-oss in MXFP4: ``experts.gate_up_proj_blocks`` (E, 2 I, H / 32, 16) uint8, two codes a byte, with
``_scales`` (E, 2 I, H / 32) and ``_bias`` (E, 2 I); gates and ups take turns. ``down_proj`` alike.
They are prepared as they are read: for bfloat16 tokens, unless others are asked for.

And gpt-oss in bfloat16, as trainers save it: ``experts.gate_up_proj`` (E, H, 2 I) and ``down_proj``
(E, I, H), which kernels read as they lie, with the same biases.
"""

from __future__ import annotations

from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.prepared import PreparedWeights, prepare_mxfp4
from jitgen.layer.checkpoints.family import Family, Part, bfloat16
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import NONE, ExpertWeights

_LIMIT, _ALPHA = 7.0, 1.702
_BLOCKS, _SCALES, _BIAS = "blocks", "scales", "bias"
_GATE_UP, _DOWN = "experts.gate_up_proj", "experts.down_proj"


def read(part: Part) -> ExpertWeights:
    """
    Return the weights of a part.

    Raises:
        InputError: The blocks are no such blocks, or the tensors no bfloat16 weights.
    """
    return ExpertWeights(
        w13=_matrices(part, _GATE_UP),
        w2=_matrices(part, _DOWN),
        w13_bias=_bias(part, _GATE_UP),
        w2_bias=_bias(part, _DOWN),
        activations=part.activations,
    )


def _matrices(part: Part, name: str) -> PreparedWeights | Tensor:
    """Return prepared weights, or (E, N, K) bfloat16 with N contiguous."""
    if not _is_quantised(part.source, part.prefix):
        weights = bfloat16(name, part.read(name, part.experts))
        if weights.dim() != 3:
            raise InputError("source", f"{name} must be (E, K, N) (got {tuple(weights.shape)})")
        return weights.contiguous().transpose(1, 2)
    blocks = part.read(f"{name}_{_BLOCKS}", part.experts)
    scales = part.read(f"{name}_{_SCALES}", part.experts)
    if blocks.dim() != 4 or blocks.shape[-1] != 16:
        raise InputError(
            "source",
            f"{name}_{_BLOCKS} must be (E, N, K / 32, 16) uint8 (got {tuple(blocks.shape)})",
        )
    layout = "wide1" if part.activations in (None, NONE) else "exact1"
    return prepare_mxfp4(blocks.flatten(-2), scales, layout=layout)  # type: ignore[arg-type]


def _bias(part: Part, name: str) -> Tensor:
    return part.read(f"{name}_{_BIAS}", part.experts).float()


def _is_quantised(source: Source, prefix: str) -> bool:
    """Say whether a layer in MXFP4 is below `prefix`."""
    return f"{prefix}.{_GATE_UP}_{_BLOCKS}" in source


def is_in(source: Source, prefix: str) -> bool:
    """Say whether such a layer is below `prefix`, in MXFP4 or bfloat16."""
    in_bfloat16 = (f"{prefix}.{_GATE_UP}", f"{prefix}.{_GATE_UP}_{_BIAS}")
    return _is_quantised(source, prefix) or all(name in source for name in in_bfloat16)


def count(source: Source, prefix: str) -> int:
    """Return how many experts it has, which the first bias says in few bytes."""
    import torch

    name = f"{prefix}.{_GATE_UP}_{_BIAS}"
    return int(source.read(name, torch.device("cpu")).shape[0]) if name in source else 0


FAMILY = Family(
    is_in=is_in,
    count=count,
    read=read,
    config={
        "activation": "swiglu_oai",
        "interleaved": True,
        "limit": _LIMIT,
        "alpha": _ALPHA,
    },
)
