# SPDX-License-Identifier: Apache-2.0
"""
Checks the scales and biases of a checkpoint: their types, and that their values are possible.

==================  ===============================================================================
type of scales      what they are
==================  ===============================================================================
float32             numbers
bfloat16, float16   numbers, which float32 holds exactly
float8_e8m0fnu      powers of two (UE8M0); the byte 255 is a NaN
uint8               the bytes of UE8M0, unless the model's config says that scales are float
==================  ===============================================================================

Other types are refused, because a conversion could change the meaning of a number. So are a NaN, an
infinity, a negative scale, and a scale of zero for weights that are not all zero: quantisation
never gives these, so the checkpoint is damaged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints.family import below
from jitgen.layer.checkpoints.part import Matrix
from jitgen.ops.tensors import describe

UE8M0, FLOAT = "ue8m0", "float"
"""Formats of scales that a model's config may name."""

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)
BYTES = (torch.float8_e8m0fnu, torch.uint8)
_NAN = 255

Place = tuple[int, ...]
"""A place in a tensor."""


def require_bytes(scale: Tensor, name: str, origin: Place = ()) -> None:
    """
    Require scales of one byte each, without a NaN. `origin` is their position in the tensor, for
    errors.

    Raises:
        InputError: They are of another type, or one is a NaN.
    """
    if scale.dtype not in BYTES:
        raise InputError("source", f"{name} must be {describe({*BYTES})} (got {scale.dtype})")
    _require_all(scale.view(torch.uint8) != _NAN, name, "have no NaN, the byte 255", origin)


def of_matrix(
    matrix: Matrix, role: str, scale: Tensor, used: Callable[[], Tensor], origin: Place
) -> Tensor:
    """
    Return scales of FP8 weights as float32.

    Args:
        matrix: The matrix of the scales.
        role: Role of the scales.
        scale: The scales that were read.
        used: Returns for each scale whether it has a weight that is not zero.
        origin: Position of the scales in their tensor.

    Raises:
        InputError: The type of the scales has another meaning, or a value is not a scale.
    """
    if scale.dtype in BYTES:
        return powers(matrix, role, scale, origin)
    numbers = non_negative(matrix, role, scale, origin=origin)
    zeros = numbers == 0
    if zeros.any():
        weight = matrix.name("weight").removeprefix(below(matrix.prefix, ""))
        what = f"have no zero over values of {weight} that are none"
        _require_all(~(zeros & used().to(zeros.device)), matrix.name(role), what, origin)
    return numbers


def powers(matrix: Matrix, role: str, scale: Tensor, origin: Place) -> Tensor:
    """
    Return UE8M0 scales as float32.

    Raises:
        InputError: They are of another type, the model's config says that scales are float, or one
            is a NaN.
    """
    name = matrix.name(role)
    if scale.dtype in BYTES and matrix.scale_format == FLOAT:
        raise InputError(
            "source",
            f"{name} must be {describe(NUMBERS)}, as the model's config says that scales are "
            f"float (got {scale.dtype})",
        )
    require_bytes(scale, name, origin)
    return scale.view(torch.float8_e8m0fnu).float()


def non_negative(
    matrix: Matrix,
    role: str,
    scale: Tensor,
    types: tuple[torch.dtype, ...] = NUMBERS,
    *,
    origin: Place,
) -> Tensor:
    """
    Return scales that are numbers of some types, as float32.

    Raises:
        InputError: They are of another type, or one is negative, infinite or NaN.
    """
    name = matrix.name(role)
    if scale.dtype not in types:
        wanted = {*types, *BYTES} if types == NUMBERS else {*types}
        raise InputError("source", f"{name} must be {describe(wanted)} (got {scale.dtype})")
    numbers = scale.float()
    _require_all(numbers.isfinite(), name, "have no NaN and no infinity", origin)
    _require_all(numbers >= 0, name, "have no scale below zero", origin)
    return numbers


def positive(matrix: Matrix, role: str) -> Tensor:
    """
    Return the tensor of a matrix that has one value, such as a global scale: float32 ().

    Raises:
        InputError: It is of another type, or not a number above zero.
    """
    name, number = matrix.name(role), matrix.read(role).reshape(())
    if number.dtype is not torch.float32:
        raise InputError("source", f"{name} must be torch.float32 (got {number.dtype})")
    _require_all(number.isfinite() & (number > 0), name, "be a finite number above zero")
    return number


def of_bias(bias: Tensor, name: str) -> Tensor:
    """
    Return biases as float32.

    Raises:
        InputError: They are of another type, or one is infinite or NaN.
    """
    if bias.dtype not in NUMBERS:
        raise InputError("source", f"{name} must be {describe({*NUMBERS})} (got {bias.dtype})")
    _require_all(bias.isfinite(), name, "have no NaN and no infinity")
    return bias.float()


def _require_all(is_right: Tensor, name: str, what: str, origin: Place = ()) -> None:
    if bool(is_right.all()):
        return
    wrong = (~is_right).nonzero()
    found = [int(number) for number in wrong[0]]
    lead = len(origin) - len(found)  # which expert, in tensors of all
    place = (*origin[:lead], *map(sum, zip(origin[lead:], found, strict=True))) if origin else found
    raise InputError(
        "source", f"{name} must {what} (got {len(wrong)}, the first at {tuple(place)})"
    )
