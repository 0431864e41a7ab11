# SPDX-License-Identifier: Apache-2.0
"""
gpt-oss in MXFP4: ``experts.gate_up_proj_blocks`` (E, 2 I, H / 32, 16) uint8, two codes a byte, with
``_scales`` (E, 2 I, H / 32) and ``_bias`` (E, 2 I); gates and ups take turns. ``down_proj`` alike.
They are prepacked as they are read: for bfloat16 tokens, unless others are asked for.

And gpt-oss in bfloat16, as trainers save it: ``experts.gate_up_proj`` (E, H, 2 I) and ``down_proj``
(E, I, H), which kernels read as they lie, with the same biases.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.family import Family, Form, Part
from jitgen.layer.checkpoints.matrices import PLAIN
from jitgen.layer.weights import NONE, ExpertWeights, Matrices
from jitgen.ops.tensors import describe

_LIMIT, _ALPHA = 7.0, 1.702
_GATE_UP, _DOWN = "experts.gate_up_proj", "experts.down_proj"
_VALUES = 32
"""Values of a block of MXFP4; a byte holds two."""

_ROWS = 8
"""The rows of a matrix must be a multiple of this for MXFP4 kernels."""


def read_mxfp4(part: Part) -> ExpertWeights:
    """
    Return the weights of a part that is in MXFP4.

    Raises:
        InputError: The tensors are no such blocks, or do not fit each other.
    """
    twice, hidden = _sizes_of_blocks(part, _GATE_UP)
    _require_even(part, f"{_GATE_UP}_blocks", twice)
    return _weights(
        part,
        w13=_prepacked(part, _GATE_UP, twice, hidden),
        w2=_prepacked(part, _DOWN, hidden, twice // 2),
        sizes=(twice, hidden),
    )


def read_bfloat16(part: Part) -> ExpertWeights:
    """
    Return the weights of a part that is not quantised.

    Raises:
        InputError: The tensors are no such weights, or do not fit each other.
    """
    shape = part.shape(_GATE_UP)
    if len(shape) != 3:
        raise InputError("source", f"{part.name(_GATE_UP)} must be (E, K, N) (got {shape})")
    _, hidden, twice = shape
    _require_even(part, _GATE_UP, twice)
    return _weights(
        part,
        w13=_plain(part, _GATE_UP, hidden, twice),
        w2=_plain(part, _DOWN, twice // 2, hidden),
        sizes=(twice, hidden),
    )


def _weights(part: Part, w13: Matrices, w2: Matrices, sizes: tuple[int, int]) -> ExpertWeights:
    twice, hidden = sizes
    return ExpertWeights(
        w13=w13,
        w2=w2,
        w13_bias=_bias(part, _GATE_UP, twice),
        w2_bias=_bias(part, _DOWN, hidden),
        activation_format=part.activation_format,
    )


def _sizes_of_blocks(part: Part, name: str) -> tuple[int, int]:
    """Return N and K of blocks (E, N, K / 32, 16)."""
    shape = part.shape(f"{name}_blocks")
    if len(shape) != 4 or shape[-1] != _VALUES // 2 or 0 in shape:
        raise InputError(
            "source",
            f"{part.name(name)}_blocks must be (E, N, K / 32, 16) uint8 (got shape {shape})",
        )
    return shape[1], shape[2] * _VALUES


def _prepacked(part: Part, name: str, n: int, k: int) -> PrepackedWeights:
    if n % _ROWS or k % _VALUES:
        raise InputError(
            "source",
            f"{part.name(name)}_blocks must have N a multiple of {_ROWS} and K of {_VALUES} (got "
            f"N = {n} and K = {k})",
        )
    _require_shape(part, f"{name}_blocks", (n, k // _VALUES, _VALUES // 2))
    _require_shape(part, f"{name}_scales", (n, k // _VALUES))
    blocks = part.read(f"{name}_blocks", part.experts, part.maker)
    if blocks.dtype is not torch.uint8:
        raise InputError("source", f"{part.name(name)}_blocks must be uint8 (got {blocks.dtype})")
    scale = part.read(f"{name}_scales", part.experts, part.maker)
    scales.require_bytes(scale, part.name(f"{name}_scales"))
    layout: Literal["wide1", "exact1"] = (
        "wide1" if part.activation_format in (None, NONE) else "exact1"
    )
    return prepack_mxfp4(blocks.flatten(-2), scale, layout=layout).to(part.device)


def _plain(part: Part, name: str, k: int, n: int) -> Tensor:
    """Return (E, N, K) bfloat16 with N contiguous."""
    _require_shape(part, name, (k, n))
    weights = part.read(name, part.experts)
    if weights.dtype not in PLAIN:
        raise InputError(
            "source", f"{part.name(name)} must be {describe({*PLAIN})} (got {weights.dtype})"
        )
    return weights.to(torch.bfloat16).contiguous().transpose(1, 2)


def _bias(part: Part, name: str, columns: int) -> Tensor:
    full = f"{name}_bias"
    _require_shape(part, full, (columns,))
    bias = part.read(full, part.experts, part.maker)
    return scales.of_bias(bias, part.name(full)).contiguous().to(part.device)


def _require_shape(part: Part, name: str, each: tuple[int, ...]) -> None:
    """Require a tensor that has a part of this shape for each expert."""
    shape = part.shape(name)
    if shape[1:] != each or 0 in shape:
        wanted = ", ".join(map(str, ("E", *each)))
        raise InputError(
            "source",
            f"{part.name(name)} must have shape ({wanted}), as the others of the layer have it "
            f"(got {shape})",
        )


def _require_even(part: Part, name: str, twice: int) -> None:
    if twice % 2 or not twice:
        raise InputError(
            "source", f"{part.name(name)} must have a row of each gate and of each up (got {twice})"
        )


_BIASES = (f"{_GATE_UP}_bias", f"{_DOWN}_bias")

FAMILY = Family(
    forms=(
        Form(
            marks=(f"{_GATE_UP}_blocks",),
            reads=(
                *(f"{name}_{last}" for name in (_GATE_UP, _DOWN) for last in ("blocks", "scales")),
                *_BIASES,
            ),
            method="mxfp4",
            read=read_mxfp4,
        ),
        Form(
            marks=(_GATE_UP, f"{_GATE_UP}_bias"),
            reads=(_GATE_UP, _DOWN, *_BIASES),
            read=read_bfloat16,
        ),
    ),
    config={
        "activation": "swiglu_oai",
        "interleaved": True,
        "swiglu_limit": _LIMIT,
        "swiglu_alpha": _ALPHA,
    },
)
