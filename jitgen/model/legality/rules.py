# SPDX-License-Identifier: Apache-2.0
"""
What every target's rules are made of: refusals, verdicts, and the search for a legal neighbour.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from jitgen.model.config import Cluster, KernelConfig, Operands, Pipeline, Tile
from jitgen.model.dtypes import DType, ScaleGranularity


class Refusal(Exception):
    """A rule that a config breaks; it never leaves the legality package."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Derived(Protocol):
    """The numbers that follow from a legal config: a frozen dataclass of ints and booleans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    The answer of `check`; true when the config is legal.

    Attributes:
        ok: Whether the target can run the config.
        code: The first rule that was broken, for example ``E_REGS``; empty when legal.
        reason: That rule with its numbers; empty when legal.
        derived: What the template needs besides the config; None when refused.
    """

    ok: bool
    code: str = ""
    reason: str = ""
    derived: Derived | None = None
    config: KernelConfig = field(repr=False)
    target: Target = field(repr=False)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def proposal(self) -> KernelConfig | None:
        """The nearest legal config, searched for when asked; None when legal or there is none."""
        return None if self.ok else nearest(self.config, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """
    Every value that a target can take for a field: what proposals are searched in.

    `operands` pairs the type of a and b with one of the output; `tile_k` has the depths of tiles
    for each type of a and b; `cluster` is (m, n).
    """

    tile_m: tuple[int, ...]
    tile_n: tuple[int, ...]
    tile_k: Mapping[DType, tuple[int, ...]]
    cluster: tuple[tuple[int, int], ...]
    num_acc_stage: tuple[int, ...]
    split_k: tuple[int, ...]
    operands: tuple[tuple[DType, DType], ...]
    scale_granularity: tuple[ScaleGranularity, ...]


class Target(Protocol):
    """The rules of one target."""

    space: Space

    def __hash__(self) -> int:
        """Targets are told apart by what they are: their proposals are remembered."""
        ...

    def derive(self, config: KernelConfig) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        ...


def refuse_unless(condition: bool, code: str, reason: str) -> None:
    """State a rule: `condition` holds, or the config is refused with `code` and `reason`."""
    if not condition:
        raise Refusal(code, reason)


def candidates(config: KernelConfig, space: Space) -> Iterator[KernelConfig]:
    """Yield the configs of `space` with the layout, raster and hints of `config`."""
    for types in _operands(space):
        yield from _of_types(config, types, space)


def _operands(space: Space) -> Iterator[Operands]:
    for (a_dtype, out_dtype), scale in itertools.product(space.operands, space.scale_granularity):
        yield Operands(
            a_dtype=a_dtype, b_dtype=a_dtype, out_dtype=out_dtype, scale_granularity=scale
        )


def _of_types(config: KernelConfig, types: Operands, space: Space) -> Iterator[KernelConfig]:
    for m, n, k, cluster, stages, split_k in itertools.product(
        space.tile_m,
        space.tile_n,
        space.tile_k[types.a_dtype],
        space.cluster,
        space.num_acc_stage,
        space.split_k,
    ):
        yield replace(
            config,
            operands=types,
            tile=Tile(m=m, n=n, k=k),
            cluster=Cluster(m=cluster[0], n=cluster[1]),
            pipeline=Pipeline(num_acc_stage=stages),
            schedule=replace(config.schedule, split_k=split_k),
        )


@lru_cache(maxsize=256)
def _legal(start: KernelConfig, target: Target) -> tuple[KernelConfig, ...]:
    """Return the legal configs that share layout, hints and types with `start`."""

    def is_legal(config: KernelConfig) -> bool:
        try:
            target.derive(config)
        except Refusal:
            return False
        return True

    return tuple(filter(is_legal, _of_types(start, start.operands, target.space)))


def nearest(config: KernelConfig, target: Target) -> KernelConfig | None:
    """
    Return the legal config that is nearest to `config`.

    Types count most, then the accumulator stages, the parts of K, the cluster, and last the tile,
    whose distance is the ratio of its sides: 128 is as far from 64 as from 256.
    """

    def differing(types: Operands) -> int:
        return sum(
            getattr(types, name) != getattr(config.operands, name)
            for name in ("a_dtype", "b_dtype", "out_dtype", "scale_granularity")
        )

    def distance(other: KernelConfig) -> tuple[float, ...]:
        def ratio(have: int, want: int) -> float:
            return max(have, want) / min(have, want)

        cluster = other.cluster != config.cluster
        stages = abs(other.pipeline.num_acc_stage - config.pipeline.num_acc_stage)
        split_k = ratio(other.schedule.split_k, config.schedule.split_k)
        tile = sum(
            ratio(getattr(other.tile, side), getattr(config.tile, side)) for side in ("m", "n", "k")
        )
        return stages, split_k, cluster, tile, -other.tile.m, -other.tile.n

    start = replace(config, tile=Tile(m=1, n=1, k=1), cluster=Cluster(), pipeline=Pipeline())
    in_order = sorted(_operands(target.space), key=differing)
    for _, equally_near in itertools.groupby(in_order, key=differing):
        legal = [
            each
            for types in equally_near
            for each in _legal(replace(start, operands=types), target)
        ]
        if legal:
            return min(legal, key=distance)
    return None
