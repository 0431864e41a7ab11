# SPDX-License-Identifier: Apache-2.0
"""
What calls remember: a launch for what a call looks like, and families of launches.

A launch is remembered under a small tuple of what it depends on and what the compiled entry does
not check by itself: that the scales' blocks cover N and K. Everything else that could be wrong with
later tensors of the same shapes (types, strides, alignment, devices, sizes that disagree) the entry
refuses before it runs.

Another number of rows is another tuple, but rarely another launch: those that differ in their rows
only are a family, in which each bucket of the selector has one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.frozen import frozen
from jitgen.runtime.session import Session

MEMO_SIZE = 8192
"""Launches that are remembered; one more forgets all of them, and each is soon found again."""

ROWS = 1
"""Place in a key of what depends on the number of rows, and of nothing else there."""

Key = tuple[Any, ...]


@frozen
class AnyLaunch:
    """
    What a call of any operation needs besides its tensors.

    Attributes:
        function: The compiled entry.
        tail: What the entry takes behind the tensors: on a GPU the number of SMs, for one CTA on
            each.
        config: The config that serves. The memo's key holds the identity of one that was asked for,
            and this keeps that object alive.
        awaited: The config that was chosen, where another serves until its kernel is compiled.
    """

    function: Callable[..., Any]
    tail: tuple[int, ...]
    config: Config
    awaited: Config | None


@frozen
class Launch(AnyLaunch):
    """
    What a call of `grouped_gemm` needs besides its tensors.

    Attributes:
        copies_scales: Whether kernels cannot read a_scale with the strides that it has.
        unit_scales: Scales of one, for operands that come without.
        columns: N of an output that the caller leaves to us.
        out_dtype: Its type.
    """

    copies_scales: bool
    unit_scales: tuple[Tensor, ...]
    columns: int
    out_dtype: torch.dtype

    def new_out(self, a: Tensor) -> Tensor:
        """Return an output with the rows of `a`, on its device, not initialised."""
        return a.new_empty((*a.shape[:-1], self.columns), dtype=self.out_dtype)


@frozen
class Family:
    """
    Launches that differ in their rows only.

    Attributes:
        edges: Where the selector's buckets end: largest mean rows of a group.
        groups: What rows are divided by for their mean.
        mean: The mean, where it does not follow from the rows.
        launches: By the edges of their buckets.
    """

    edges: tuple[int, ...]
    groups: int = 1
    mean: int = 0
    launches: dict[int, Any] = field(default_factory=dict)

    def edge(self, rows: int) -> int:
        """Return the edge of the bucket that a call with `rows` rows falls into."""
        mean = self.mean or -(-rows // self.groups)
        return self.edges[min(bisect_left(self.edges, mean), len(self.edges) - 1)]


def similar(session: Session, key: Key, a: Tensor) -> Any:
    """
    Return the launch of a call that differs in its rows from one that was made, and remember it.

    Raises:
        KeyError: There was none in this bucket, or there are no rows.
    """
    rows = a.shape[-2]
    family: Family = session.families[key[:ROWS] + key[ROWS + 1 :]]
    launch: AnyLaunch = family.launches[family.edge(rows) if rows else -1]
    keep(session.memo, key, launch)
    return launch


def remember(session: Session, key: Key, family: Family, rows: int, launch: AnyLaunch) -> None:
    """Remember the launch of a call for those like it, and for those with as many rows about."""
    keep(session.memo, key, launch)
    if launch.awaited is None and rows:
        place = key[:ROWS] + key[ROWS + 1 :]
        if place not in session.families:
            keep(session.families, place, family)
        session.families[place].launches[family.edge(rows)] = launch


def keep(memory: dict[Any, Any], key: Key, value: Any) -> None:
    """Put `value` into a memory that forgets everything when it is full."""
    if len(memory) >= MEMO_SIZE:
        memory.clear()
    memory[key] = value
