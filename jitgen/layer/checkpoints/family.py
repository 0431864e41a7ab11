# SPDX-License-Identifier: Apache-2.0
"""What a family of checkpoints says, and what those with a tensor for each matrix share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.frozen import frozen
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import ExpertWeights


@frozen
class Part:
    """
    What is read of a checkpoint.

    Attributes:
        source: Where it is.
        prefix: What the layer's names begin with.
        experts: Which experts.
        device: Where they go.
        activations: What tokens are to be quantised to, where the weights leave a choice.
    """

    source: Source
    prefix: str
    experts: range
    device: torch.device
    activations: str | None

    def read(self, name: str, rows: range | None = None) -> Tensor:
        """Return the tensor of a name below the prefix; of its first dimension `rows`."""
        return self.source.read(f"{self.prefix}.{name}", self.device, rows)


@frozen
class Family:
    """
    One family of names.

    Attributes:
        is_in: Says whether a layer of it is below a prefix.
        count: Returns how many experts the layer has; 0 for none.
        read: Returns the weights of a part.
        config: Fields of `MoEConfig` that follow from the family.
    """

    is_in: Callable[[Source, str], bool]
    count: Callable[[Source, str], int]
    read: Callable[[Part], ExpertWeights]
    config: Mapping[str, Any] = field(default_factory=dict)


def counted(*, last: str) -> Callable[[Source, str], int]:
    """Return what counts experts that have a tensor ``experts.NUMBER.last`` each."""

    def count(source: Source, prefix: str) -> int:
        pattern = re.compile(rf"{re.escape(prefix)}\.experts\.(\d+)\.{re.escape(last)}")
        numbers = {int(found[1]) for name in source.names if (found := pattern.fullmatch(name))}
        if numbers != set(range(len(numbers))):
            missing = next(number for number in range(len(numbers)) if number not in numbers)
            raise InputError("source", f"{source} lacks expert {missing} of {prefix!r}")
        return len(numbers)

    return count


def stacked(part: Part, names: Sequence[str], *, suffix: str = "weight") -> Tensor:
    """
    Return matrices of every expert in one tensor, read one by one into their places.

    Args:
        part: What to read.
        names: Of an expert's matrices that lie one below the other: gates, then ups.
        suffix: The last word of their names.
    """
    out: Tensor | None = None
    for place, expert in enumerate(part.experts):
        first = 0
        for name in names:
            full = f"experts.{expert}.{name}.{suffix}"
            matrix = part.read(full)
            if matrix.dim() != 2:
                raise InputError("source", f"{full} must be a matrix (got {tuple(matrix.shape)})")
            if out is None:
                rows, columns = matrix.shape
                shape = (len(part.experts), rows * len(names), columns)
                out = torch.empty(shape, dtype=matrix.dtype, device=part.device)
            target = out[place, first : first + matrix.shape[0]]
            if target.shape != matrix.shape or matrix.dtype is not out.dtype:
                raise InputError(
                    "source",
                    f"{full} must be {out.dtype} of shape {tuple(target.shape)}, as others of the "
                    f"layer are (got {matrix.dtype} of {tuple(matrix.shape)})",
                )
            target.copy_(matrix)
            first += matrix.shape[0]
    if out is None:
        raise InputError("local_experts", "must be at least 1 (got 0)")
    return out


def bfloat16(name: str, weights: Tensor) -> Tensor:
    """Return weights as kernels read them; float16 and float32 ones are rounded."""
    if weights.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise InputError(
            "source", f"{name} must be bfloat16, float16 or float32 (got {weights.dtype})"
        )
    return weights.to(torch.bfloat16)
