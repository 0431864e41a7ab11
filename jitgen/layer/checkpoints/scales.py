# SPDX-License-Identifier: Apache-2.0
"""
Checks the scales and biases of a checkpoint: their types, and that their values make sense.

==================  ===============================================================================
type of scales      what they are
==================  ===============================================================================
float32             numbers
bfloat16, float16   numbers, which float32 holds exactly
float8_e8m0fnu      powers of two (UE8M0); the byte 255 is a NaN
uint8               the bytes of UE8M0, unless the model's config says that scales are float
==================  ===============================================================================

Another type is refused, for a number that is cast may be another number. So is a NaN, an infinity,
a scale below zero, and a zero over weights that are not all zero: no quantisation makes them, and a
layer that has one is damaged.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from jitgen.config.config import SCALE_BLOCK
from jitgen.errors import InputError
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints.family import Part
from jitgen.ops.tensors import describe

UE8M0, FLOAT = "ue8m0", "float"
"""Formats of scales that a model's config may name."""

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)
BYTES = (torch.float8_e8m0fnu, torch.uint8)
_NAN = 255


def require_bytes(scale: Tensor, name: str) -> None:
    """
    Require scales of MXFP4 without a NaN.

    Raises:
        InputError: They are of another type, or one is.
    """
    if scale.dtype not in BYTES:
        raise InputError("source", f"{name} must be {describe({*BYTES})} (got {scale.dtype})")
    _require_all(scale.view(torch.uint8) != _NAN, name, "have no NaN, the byte 255")


def of_block(part: Part, scale: Tensor, name: str, weight: str) -> Tensor:
    """
    Return the scales of one matrix, of blocks of 128 x 128, as float32.

    Args:
        part: What is read.
        scale: (ceil(N / 128), ceil(K / 128)), on the CPU.
        name: Its whole name.
        weight: The name of the matrix, below the prefix.

    Raises:
        InputError: The type of the scales has another meaning, or a value is not a scale.
    """
    if scale.dtype in BYTES:
        if part.scale_format == FLOAT:
            raise InputError(
                "source",
                f"{name} must be {describe(NUMBERS)}, as the model's config says that scales are "
                f"float (got {scale.dtype})",
            )
        require_bytes(scale, name)
        scale = scale.view(torch.float8_e8m0fnu)
    numbers = scale.float()
    _require_all(numbers.isfinite(), name, "have no NaN and no infinity")
    _require_all(numbers >= 0, name, "have no scale below zero")
    zeros = numbers == 0
    if zeros.any():
        used = _used_blocks(part.read(weight, device=torch.device("cpu")))
        _require_all(~(zeros & used), name, f"have no zero over values of {weight} that are none")
    return numbers


def of_bias(bias: Tensor, name: str) -> Tensor:
    """
    Return biases as float32.

    Raises:
        InputError: They are of another type, or one is no number.
    """
    if bias.dtype not in NUMBERS:
        raise InputError("source", f"{name} must be {describe({*NUMBERS})} (got {bias.dtype})")
    _require_all(bias.isfinite(), name, "have no NaN and no infinity")
    return bias.float()


def _used_blocks(weight: Tensor) -> Tensor:
    """Return for each 128 x 128 of FP8 weights whether one of its values is not zero."""
    rows, columns = (ceil_div(size, SCALE_BLOCK) for size in weight.shape)
    values = (weight.view(torch.uint8) & 0x7F) != 0
    spare = (0, columns * SCALE_BLOCK - weight.shape[1], 0, rows * SCALE_BLOCK - weight.shape[0])
    blocks = pad(values, spare).view(rows, SCALE_BLOCK, columns, SCALE_BLOCK)
    return blocks.any(dim=3).any(dim=1)


def _require_all(is_right: Tensor, name: str, what: str) -> None:
    if bool(is_right.all()):
        return
    wrong = (~is_right).nonzero()
    place = tuple(int(number) for number in wrong[0])
    raise InputError("source", f"{name} must {what} (got {len(wrong)}, the first at {place})")
