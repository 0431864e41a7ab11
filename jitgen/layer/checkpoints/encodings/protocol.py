# SPDX-License-Identifier: Apache-2.0
"""
The protocol of encodings: how the values of one matrix are stored, and how a layer reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.layer.checkpoints.part import Matrix
from jitgen.ops.tensors import describe


class Piece(NamedTuple):
    """
    A part of one matrix, in the form that a layer uses.

    Attributes:
        values: (n, k), or (n, k / 2) bytes of two codes.
        scale: Their scales; None: no scales.
        overall: A further factor of all values, (); None: no factor.
    """

    values: Tensor
    scale: Tensor | None = None
    overall: Tensor | None = None


class Encoding(ABC):
    """
    An encoding of the values of a matrix (N, K).

    Attributes:
        name: Its name in errors and documents.
        roles: Roles of the tensors that it reads, that of the values first.
        types: Types of the values.
        kernel: The format in which a layer uses the weights: ``none``, ``block128``, ``row``, or
            prepacked ``mxfp4``, ``nvfp4``, ``mxfp8`` or ``int4``; None: layers do not support the
            encoding, except converted to bfloat16.
        unit: Number of consecutive columns I that share a scale, and cannot be divided among ranks;
            1: every division is possible.
        can_turn: Whether tensors of all experts may be (E, K, N).
    """

    name: ClassVar[str]
    types: ClassVar[tuple[torch.dtype, ...]]
    kernel: ClassVar[str | None] = None
    unit: ClassVar[int] = 1
    can_turn: ClassVar[bool] = False

    def __init__(self, *roles: str) -> None:
        self.roles = roles

    @abstractmethod
    def fits(self, matrix: Matrix) -> bool:
        """Say whether a matrix that has the tensors of all roles is stored in this encoding."""

    @abstractmethod
    def size(self, matrix: Matrix) -> tuple[int, int]:
        """
        Return N and K of a matrix.

        Raises:
            InputError: Its values are not in this encoding.
        """

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:  # noqa: B027  # none may be
        """
        Require the tensors that belong to the values of a matrix (N, K); by default nothing.

        Raises:
            InputError: A tensor has another shape.
        """

    def prepacked(self, _matrix: Matrix) -> PrepackedFormat | None:
        """
        Return the format to which a matrix is prepacked; None: it is not prepacked.

        Raises:
            InputError: There is no format for its groups or scales.
        """
        return None

    def unit_of(self, _matrix: Matrix) -> int:
        """Return `unit` for a matrix, on which it may depend."""
        return self.unit

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """
        Return a part of a matrix for the kernels of a layer.

        Args:
            matrix: The matrix.
            rows: Which of its rows; starts and ends are multiples of `unit`, or the end.
            columns: Which of its columns, likewise.

        Raises:
            InputError: A value is not possible in this encoding.
        """
        raise NotImplementedError

    @abstractmethod
    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return the numbers of any part of a matrix: (n, k) bfloat16, float32 or float64."""


def sizes(matrix: Matrix, role: str, dtypes: tuple[torch.dtype, ...]) -> tuple[int, int]:
    """
    Return the shape of a tensor that must be a matrix of some types.

    Raises:
        InputError: It is not a matrix, or has another type.
    """
    name, dtype, shape = matrix.name(role), matrix.dtype(role), matrix.shape(role)
    if dtype not in dtypes:
        raise InputError("source", f"{name} must be {describe({*dtypes})} (got {dtype})")
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            "source",
            f"{name} must be a matrix with values (got shape {matrix.source.shape(name)})",
        )
    return shape[0], shape[1]


def require_shape(matrix: Matrix, role: str, *allowed: tuple[int, ...]) -> None:
    """
    Require a tensor with one of these shapes.

    Raises:
        InputError: It has another shape.
    """
    shape = matrix.shape(role)
    if shape not in allowed:
        name = matrix.name(role)
        family = matrix.family
        first = replace(matrix, expert=0, module=family.gate_up[0]).name(role)
        raise InputError(
            "source",
            f"{name} must have shape {' or '.join(map(str, allowed))}"
            f"{' for each expert' if family.is_fused else ''}, as the others of the layer have it, "
            f"{first} first (got {matrix.source.shape(name)})",
        )


def inner(part: range, of: range) -> slice:
    """Return the position of a range relative to the range `of` around it."""
    return slice(part.start - of.start, part.stop - of.start)
