# SPDX-License-Identifier: Apache-2.0
"""The protocol of encodings: how the values of one matrix are stored, and what a layer reads."""

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
    A part of one matrix, as a layer has it.

    Attributes:
        values: (n, k), or (n, k / 2) bytes of two codes.
        scale: What belongs to them; None: nothing.
        overall: What all of them are multiplied with besides, (); None: nothing.
    """

    values: Tensor
    scale: Tensor | None = None
    overall: Tensor | None = None


class Encoding(ABC):
    """
    One way to store the values of a matrix (N, K).

    Attributes:
        name: Its name in errors and documents.
        roles: Roles of the tensors that it reads, that of the values first.
        types: Types of the values.
        kernel: What a layer computes with: ``none``, ``block128``, ``row``, or prepacked ``mxfp4``,
            ``nvfp4``, ``mxfp8`` or ``int4``; None: no layer computes with it as it is, so that it
            can only become bfloat16.
        unit: Neighbours in I that share a scale and cannot be divided; 1: any can.
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
        """Say whether a matrix, of which all roles are there, is stored so."""

    @abstractmethod
    def size(self, matrix: Matrix) -> tuple[int, int]:
        """
        Return N and K of a matrix.

        Raises:
            InputError: Its values are not stored so.
        """

    def check(self, matrix: Matrix, size: tuple[int, int]) -> None:  # noqa: B027  # none may be
        """
        Require the tensors that belong to the values of a matrix (N, K).

        Raises:
            InputError: One has another shape.
        """

    def prepacked(self, matrix: Matrix) -> PrepackedFormat | None:  # noqa: ARG002  # some ask it
        """
        Return the format that a matrix is prepacked in; None: it is read as it is.

        Raises:
            InputError: There is none for its groups or scales.
        """
        return None

    def unit_of(self, matrix: Matrix) -> int:  # noqa: ARG002  # of some it depends on it
        """Return `unit`, where it depends on the matrix."""
        return self.unit

    def piece(self, matrix: Matrix, rows: range, columns: range) -> Piece:
        """
        Return a part of a matrix for the kernels of a layer.

        Args:
            matrix: The matrix.
            rows: Which of its rows; starts and ends are multiples of `unit`, or the end.
            columns: Which of its columns, likewise.

        Raises:
            InputError: A value is none that this encoding has.
        """
        raise NotImplementedError

    @abstractmethod
    def numbers(self, matrix: Matrix, rows: range, columns: range) -> Tensor:
        """Return the numbers of a part of a matrix, any part: (n, k) float32 or bfloat16."""


def sizes(matrix: Matrix, role: str, dtypes: tuple[torch.dtype, ...]) -> tuple[int, int]:
    """
    Return the shape of a tensor that must be a matrix of some types.

    Raises:
        InputError: It is none.
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
    Require a tensor of one of some shapes.

    Raises:
        InputError: It has another.
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
    """Return where a range lies within another around it."""
    return slice(part.start - of.start, part.stop - of.start)
