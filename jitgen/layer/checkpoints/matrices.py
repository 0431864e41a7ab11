# SPDX-License-Identifier: Apache-2.0
"""
Common part of checkpoints with a tensor for each matrix of each expert: reading them into one
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints.family import EXPERT, Family, Form, Part
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.call import calling
from jitgen.ops.tensors import describe

PLAIN = (torch.bfloat16, torch.float16, torch.float32)
"""Types of weights that are not quantised; kernels read the first, to which others are rounded."""

_MOST_BYTES = 2**62
"""No tensor has more; a matrix that is one value, expanded, may say that it has."""


def stacked(  # each is one thing to say
    part: Part,
    names: Sequence[str],
    dtypes: Sequence[torch.dtype],
    *,
    shape: tuple[int, int] | None = None,
    suffix: str = "weight",
    of: Callable[[Tensor, str], Tensor] | None = None,
) -> Tensor:
    """
    Return matrices of every expert in one tensor, each read directly into its place.

    Args:
        part: What to read.
        names: Of an expert's matrices that lie one below the other: gates, then ups.
        dtypes: Which types they may have; all have the same.
        shape: Which shape each must have; None: that of the first.
        suffix: The last word of their names.
        of: Returns what counts of a matrix, which it is given on the CPU, with its name; None: the
            matrix is read to where it goes.

    Raises:
        InputError: One is no such matrix; the message names it.
    """
    out = torch.empty(0)  # until the first matrix gives shape and type
    for place, expert in enumerate(part.experts):
        for number, name in enumerate(names):
            full = f"experts.{expert}.{name}.{suffix}"
            matrix = part.read(full, device=None if of is None else torch.device("cpu"))
            _require(matrix, part.name(full), dtypes, shape)
            matrix = matrix if of is None else of(matrix, part.name(full))
            if not out.numel():
                rows, columns = shape = (matrix.shape[0], matrix.shape[1])
                dtypes = dtypes if of is not None else [matrix.dtype]
                whole = (len(part.experts), rows * len(names), columns)
                out = _room(whole, matrix.dtype, part, part.name(full))
            rows = matrix.shape[0]
            out[place, number * rows : (number + 1) * rows].copy_(matrix)
    return out


def plain_family(gate_up: tuple[str, str], down: str) -> Family:
    """
    Return a family of weights that are not quantised: ``experts.E.NAME.weight`` is a matrix of
    gates, of ups, both of `gate_up`, and of what leads back, `down`.
    """
    names = [f"experts.E.{name}.weight" for name in (*gate_up, down)]

    def read(part: Part) -> ExpertWeights:
        w13 = stacked(part, gate_up, PLAIN)
        w2 = stacked(part, (down,), PLAIN, shape=turned(w13))
        w13, w2 = w13.to(torch.bfloat16), w2.to(torch.bfloat16)
        return ExpertWeights(w13=w13, w2=w2, activation_format=part.activation_format)

    first = names[0].replace(EXPERT, ".0.")
    return Family(forms=(Form(marks=(first,), reads=tuple(names), read=read),))


def turned(w13: Tensor) -> tuple[int, int]:
    """Return the shape of the matrices that lead back: (H, I) for gates and ups (G, 2 I, H)."""
    return w13.shape[2], w13.shape[1] // 2


def _room(whole: tuple[int, ...], dtype: torch.dtype, part: Part, name: str) -> Tensor:
    """Return memory for the matrices of all experts, of which the first is `name`."""
    if prod(whole) * dtype.itemsize >= _MOST_BYTES:
        raise InputError(
            "source", f"{name} is too large: the matrices of all experts would be {whole} {dtype}"
        )
    with calling(f"from_checkpoint of {name}"):
        try:
            return torch.empty(whole, dtype=dtype, device=part.device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch's error if the CPU has no memory left
            raise MemoryError(str(error)) from error


def _require(
    matrix: Tensor, name: str, dtypes: Sequence[torch.dtype], shape: tuple[int, int] | None
) -> None:
    if matrix.dtype not in dtypes:
        raise InputError("source", f"{name} must be {describe({*dtypes})} (got {matrix.dtype})")
    if matrix.dim() != 2 or not matrix.numel():
        raise InputError(
            "source", f"{name} must be a matrix with values (got shape {tuple(matrix.shape)})"
        )
    if shape is not None and tuple(matrix.shape) != shape:
        raise InputError(
            "source",
            f"{name} must have shape {shape}, as the others of the layer have it (got "
            f"{tuple(matrix.shape)})",
        )
