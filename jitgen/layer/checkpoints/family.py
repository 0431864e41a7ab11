# SPDX-License-Identifier: Apache-2.0
"""A family of checkpoints: names and types of its tensors, and the part that is read of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

import torch
from torch import Tensor

from jitgen.layer.checkpoints.source import Source
from jitgen.layer.weights import ExpertWeights
from jitgen.support.frozen import frozen

EXPERT = ".E."
"""Placeholder for the number of an expert in the names of a form."""


@frozen
class Part:
    """
    The part of a checkpoint that is read.

    Attributes:
        source: Where it is.
        prefix: Prefix of the layer's names.
        experts: Which experts.
        device: Where they go.
        activation_format: What tokens are to be quantised to, where the weights leave a choice.
        scale_format: What the model's config says that scales are, ``ue8m0`` or ``float``; None:
            nothing, so that their type says it.
    """

    source: Source
    prefix: str
    experts: range
    device: torch.device
    activation_format: str | None
    scale_format: str | None = None

    @property
    def maker(self) -> torch.device:
        """Device on which weights are computed from others before they go to `device`."""
        return torch.device("cpu") if self.device.type == "meta" else self.device

    def name(self, name: str) -> str:
        """Return the whole of a name below the prefix."""
        return below(self.prefix, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the tensor called `name` below the prefix."""
        return self.source.shape(self.name(name))

    def read(
        self, name: str, rows: range | None = None, device: torch.device | None = None
    ) -> Tensor:
        """Return the tensor of a name below the prefix; of its first dimension `rows`."""
        return self.source.read(self.name(name), device or self.device, rows)


@frozen
class Form:
    """
    One form in which a family's weights come.

    Attributes:
        marks: Names below the prefix by which it is known: all of them are there.
        reads: Every name below the prefix that is read, the first that of a matrix. ``.E.`` stands
            for the number of an expert; names without it are of all experts, one behind the other.
        method: What ``quantization_config`` of a model calls it; None: weights that are not
            quantised.
        read: Returns the weights of a part.
    """

    marks: tuple[str, ...]
    reads: tuple[str, ...]
    method: str | None = None
    read: Callable[[Part], ExpertWeights]

    def is_in(self, source: Source, prefix: str) -> bool:
        """Say whether a layer of it is below `prefix`."""
        return all(below(prefix, mark) in source for mark in self.marks)


@frozen
class Family:
    """
    One family of names.

    Attributes:
        forms: In which its weights come; the first that is there is taken.
        config: Fields of `MoEConfig` that follow from the family.
    """

    forms: tuple[Form, ...]
    config: Mapping[str, object] = field(default_factory=dict)


def below(prefix: str, name: str) -> str:
    """Return a name below a prefix; that of nothing is the name itself."""
    return f"{prefix}.{name}" if prefix else name
