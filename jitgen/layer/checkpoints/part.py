# SPDX-License-Identifier: Apache-2.0
"""
The part of a checkpoint that is read: some experts of a layer, and a share of the columns of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints.family import EXPERT, Family, below
from jitgen.layer.checkpoints.source import Source
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.layer.checkpoints.encodings import Encoding


_UNIT = 16
"""FP8 columns in 16 bytes; kernels of some targets need a multiple of this for K."""


@frozen
class Form:
    """
    The form of a layer: a family of names and an encoding of values.

    Attributes:
        family: The names.
        encoding: How values are stored.
        reads: Every name below the prefix that is read; the first is that of a matrix. ``.E.``
            stands for the number of an expert; tensors whose names lack it hold all experts, one
            after another.
        unused: Names of known scales of tokens, which are not used.
        is_turned: Whether tensors of all experts are (E, K, N).
    """

    family: Family
    encoding: Encoding
    reads: tuple[str, ...]
    unused: tuple[str, ...] = ()
    is_turned: bool = False


@frozen
class Share:
    """
    The columns I of every expert that one of several ranks has.

    Attributes:
        rank: Number of the rank.
        ranks: Number of ranks.
    """

    rank: int = 0
    ranks: int = 1

    def of(self, intermediate: int) -> range:
        """
        Return the columns of the share.

        Raises:
            InputError: They cannot be divided among the ranks.
        """
        if intermediate % self.ranks:
            raise InputError(
                "ranks",
                f"must divide the {intermediate} columns between the two products, I (got "
                f"{self.ranks})",
            )
        each = intermediate // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)


@frozen
class Columns:
    """
    The columns I of an expert that are read.

    Attributes:
        whole: Number of columns I in the checkpoint.
        own: The columns that this rank keeps.
        read: The columns that are read: `own`, and the rest of the blocks of scales in which `own`
            begins and ends.
        size: Number of columns in the layer: those of `read`, and zeros up to a size that kernels
            support.
    """

    whole: int
    own: range
    read: range
    size: int

    @classmethod
    def of(cls, whole: int, share: Share, unit: int, *, fills: bool) -> Columns:
        """
        Return the columns of a share.

        Args:
            whole: Number of columns I in the checkpoint.
            share: The share.
            unit: Number of consecutive columns that share a scale; 1: each has its own.
            fills: Whether the size in the layer must be a multiple of `unit`.

        Raises:
            InputError: The columns cannot be divided in this way.
        """
        own = share.of(whole)
        read = outer(own, unit, whole)
        step = max(unit, _UNIT) if fills else _UNIT
        return cls(whole=whole, own=own, read=read, size=-(-len(read) // step) * step)


def outer(part: range, unit: int, size: int) -> range:
    """
    Return the smallest range around `part` that begins and ends at multiples of `unit`, or ends at
    `size`.
    """
    return range(part.start // unit * unit, min(size, -(-part.stop // unit) * unit))


@frozen
class Part:
    """
    The part of a checkpoint that is read.

    Attributes:
        source: The source of the tensors.
        prefix: Prefix of the layer's names.
        form: The form of the layer.
        experts: The experts that are read.
        share: The columns that are read of each.
        device: The device of the weights.
        activation_format: The format to which tokens are quantised, if the weights allow several.
        scale_format: The format of scales in the model's config, ``ue8m0`` or ``float``, or that of
            GPTQ's zero points, ``gptq_v2``; None: the config has none, and the type of the scales
            decides.
        dequantize: Whether weights become bfloat16.
        interleaved: Whether rows of gates and ups of one tensor alternate.
    """

    source: Source
    prefix: str
    form: Form
    experts: range
    share: Share
    device: torch.device
    activation_format: str | None
    scale_format: str | None = None
    dequantize: bool = False
    interleaved: bool = False

    @property
    def maker(self) -> torch.device:
        """Device on which weights are converted before they are copied to `device`."""
        return torch.device("cpu") if self.device.type == "meta" else self.device

    def matrix(self, module: str, expert: int) -> Matrix:
        """Return one matrix of an expert."""
        return Matrix(
            source=self.source,
            prefix=self.prefix,
            family=self.form.family,
            module=module,
            expert=expert,
            is_turned=self.form.is_turned,
            scale_format=self.scale_format,
        )


@frozen
class Matrix:
    """
    One matrix (N, K) of one expert, with its scales and other tensors.

    Attributes:
        source: The source of the tensors.
        prefix: Prefix of the layer's names.
        family: The names.
        module: The module of the family.
        expert: Number of the expert.
        is_turned: Whether it is stored as (K, N).
        scale_format: See `Part.scale_format`.
    """

    source: Source
    prefix: str
    family: Family
    module: str
    expert: int
    is_turned: bool = False
    scale_format: str | None = None

    def name(self, role: str) -> str:
        """Return the full name of the tensor of a role, whether the tensor exists or not."""
        names = [
            below(self.prefix, name.replace(EXPERT, f".{self.expert}."))
            for name in self.family.names(self.module, role)
        ]
        return next((name for name in names if name in self.source), names[0])

    def has(self, role: str) -> bool:
        """Say whether there is a tensor of a role."""
        return self.name(role) in self.source

    def dtype(self, role: str) -> torch.dtype:
        """Return the type of a tensor, without reading it."""
        return self.source.dtype(self.name(role))

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of this matrix's tensor of a role, (N, K) first."""
        shape = self.source.shape(self.name(role))
        if self.family.is_fused:
            shape = shape[1:]
        return (shape[1], shape[0]) if self.is_turned and len(shape) == 2 else shape

    def read(self, role: str, *at: range) -> Tensor:
        """
        Return the tensor of a role of this matrix, in the memory of the source, which must not be
        written to.

        Args:
            role: The role.
            *at: The rows, and the columns; all if left out.
        """
        index = tuple(slice(each.start, each.stop) for each in at)
        if self.is_turned and len(self.shape(role)) == 2:
            index = index[::-1] if len(index) == 2 else (slice(None), *index)
        if self.family.is_fused:
            index = (slice(self.expert, self.expert + 1), *index)
        found = self.source.read(self.name(role), index)
        if self.family.is_fused:
            found = found[0]
        return found.mT if self.is_turned and found.dim() == 2 else found

    def origin(self, *starts: int) -> tuple[int, ...]:
        """
        Return the position in the whole tensor of a part of this matrix that begins at `starts`.
        """
        place = starts[::-1] if self.is_turned else starts
        return (self.expert, *place) if self.family.is_fused else place
