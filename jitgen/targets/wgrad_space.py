# SPDX-License-Identifier: Apache-2.0
"""
Common parts of targets for `grouped_gemm_wgrad`: rules of layouts and types, the list of all
configs, and the search for a legal one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from jitgen.config import DType, Layout
from jitgen.config.grouped_gemm import Cluster, Tile
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.targets.base import BaseRules
from jitgen.targets.protocol import legal_of, refuse_unless

LAYOUTS = (Layout.RAGGED, Layout.MASKED)
"""Layouts whose groups say where their rows are. m_indices would have to be searched for it."""


class WgradSpace(NamedTuple):
    """The kernels of a target; `operands` are types of dy and a with those of gradients."""

    operands: tuple[tuple[DType, DType], ...]
    tile_m: tuple[int, ...]
    tile_n: tuple[int, ...]
    tile_k: int
    cluster: tuple[tuple[int, int], ...]

    @property
    def of_a(self) -> tuple[DType, ...]:
        """Element types that dy and a may have."""
        return tuple(dict.fromkeys(a for a, _ in self.operands))

    def of_out(self, of_a: DType) -> tuple[DType, ...]:
        """Element types that the gradient may have beside a dy and an a of type `of_a`."""
        return tuple(out for a, out in self.operands if a is of_a)


FREE = (
    *("layout", "a_dtype", "out_dtype", "tile", "cluster", "num_ab_stage", "raster", "use_pdl"),
)
"""Fields of a config that leave the order of sums alone: all there are."""


def check_kind(config: GroupedGemmWgradConfig, space: WgradSpace, arch: str) -> None:
    """
    Require a layout and types that there are kernels for.

    Raises:
        Refusal: There are none; the code is ``E_LAYOUT`` or ``E_MMA``.
    """
    refuse_unless(
        config.layout in LAYOUTS,
        "E_LAYOUT",
        f"{config.layout} rows have no kernel that sums over them: a group id for each row does "
        f"not say where a group begins; allowed: {', '.join(LAYOUTS)}",
    )
    refuse_unless(
        (config.a_dtype, config.out_dtype) in space.operands,
        "E_MMA",
        f"{config.a_dtype} x {config.a_dtype} -> {config.out_dtype} has no {arch} kernel with rows "
        f"along K; it has {', '.join(f'{a} x {a} -> {out}' for a, out in space.operands)}",
    )


def every(space: WgradSpace) -> Iterator[GroupedGemmWgradConfig]:
    """
    Yield the configs of `space` in every layout, legal or not, with the default raster, stages and
    `use_pdl`.
    """
    for layout, (a_dtype, out_dtype) in itertools.product(Layout, space.operands):
        start = GroupedGemmWgradConfig(
            layout=layout,
            a_dtype=a_dtype,
            out_dtype=out_dtype,
            tile=Tile(m=64, n=64, k=space.tile_k),
        )
        yield from _tiled(start, space)


def _tiled(start: GroupedGemmWgradConfig, space: WgradSpace) -> Iterator[GroupedGemmWgradConfig]:
    for m, n, cluster in itertools.product(space.tile_m, space.tile_n, space.cluster):
        tile = Tile(m=m, n=n, k=space.tile_k)
        yield replace(start, tile=tile, cluster=Cluster(m=cluster[0], n=cluster[1]))


def nearest(config: GroupedGemmWgradConfig, rules: WgradRules) -> GroupedGemmWgradConfig | None:
    """
    Return the legal config that is nearest to `config`: layout and types count most, then the
    cluster, then the sides of the tile by their ratios; None if no config is legal.
    """
    kinds = (
        replace(config, layout=layout, a_dtype=a, out_dtype=out, num_ab_stage=None)
        for layout, (a, out) in itertools.product(LAYOUTS, rules.space.operands)
    )
    legal = legal_of((each for kind in kinds for each in _tiled(kind, rules.space)), rules)

    def distance(other: GroupedGemmWgradConfig) -> tuple[object, ...]:
        names = ("layout", "a_dtype", "out_dtype")
        kind = sum(getattr(other, name) != getattr(config, name) for name in names)
        sides = [(getattr(other.tile, side), getattr(config.tile, side)) for side in ("m", "n")]
        ratios = sum(max(pair) / min(pair) for pair in sides)
        return kind, other.cluster != config.cluster, ratios, -other.tile.m, -other.tile.n

    return min(legal, key=distance, default=None)


class WgradRules(BaseRules[GroupedGemmWgradConfig, GroupedGemmWgradProblem]):
    """Rules of `grouped_gemm_wgrad` kernels whose configs are those of `space`."""

    space: WgradSpace

    def nearest(self, config: GroupedGemmWgradConfig) -> GroupedGemmWgradConfig | None:
        """Return the legal config nearest to a refused one; None if there is none."""
        return nearest(config, self)

    def configs(self) -> Iterator[GroupedGemmWgradConfig]:
        """Yield every config of the target's space, legal or not."""
        yield from every(self.space)
