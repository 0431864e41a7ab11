# SPDX-License-Identifier: Apache-2.0
"""What spaces of tilings share, whatever the operation: sides, combinations, the nearest one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from jitgen.config.config import Part
from jitgen.targets.protocol import Derives, legal_of, refuse_unless

Sides = Mapping[str, Collection[int]]
"""Numbers of a tiling by their names, and the values that each may have."""

_Config = TypeVar("_Config")
_Tiling = TypeVar("_Tiling", bound=Part)


def check_sides(tiling: Part, sides: Sides) -> None:
    """
    Require that each of `sides` of `tiling` has one of its values.

    Raises:
        Refusal: One has not, with the code ``E_`` and its name.
    """
    for name, allowed in sides.items():
        have = getattr(tiling, name)
        refuse_unless(
            have in allowed,
            f"E_{name.upper()}",
            f"{name}={have} is not one of {', '.join(map(str, allowed))}",
        )


def tilings(like: _Tiling, sides: Sides) -> Iterator[_Tiling]:
    """Yield the tilings with every combination of `sides`, legal or not, the rest as in `like`."""
    for values in itertools.product(*sides.values()):
        found: dict[str, Any] = dict(zip(sides, values, strict=True))
        yield replace(like, **found)  # type: ignore[type-var]  # every Part is a dataclass


def nearest_tiling(
    wanted: Any, configs: Iterable[_Config], rules: Derives, sides: Iterable[str]
) -> _Config | None:
    """
    Return the legal one of `configs` whose tiling is nearest to that of `wanted`.

    What counts is the ratio of each of `sides`: 128 is as far from 64 as from 256.
    """
    names = tuple(sides)

    def distance(other: Any) -> float:
        pairs = [(getattr(wanted.tiling, name), getattr(other.tiling, name)) for name in names]
        return float(sum(max(pair) / max(1, min(pair)) for pair in pairs))

    return min(legal_of(configs, rules), key=distance, default=None)
