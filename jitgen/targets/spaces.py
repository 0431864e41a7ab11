# SPDX-License-Identifier: Apache-2.0
"""Common parts of spaces of tilings, for all operations: sides, combinations, the nearest one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from jitgen.config.config import Part
from jitgen.targets.protocol import refuse_unless

Sides = Mapping[str, Collection[int]]
"""Numbers of a tiling by their names, and the values that each may have."""

_Tiling = TypeVar("_Tiling", bound=Part)


def check_sides(part: Part, sides: Sides, prefix: str = "") -> None:
    """
    Require that each of `sides` of a tiling or a tile has one of its values.

    Raises:
        Refusal: A side has another value; the code is ``E_``, `prefix` and its name, in capitals.
    """
    for name, allowed in sides.items():
        have = getattr(part, name)
        refuse_unless(
            have in allowed,
            f"E_{prefix}{name}".upper(),
            f"{prefix}{name}={have} is not one of {', '.join(map(str, allowed))}",
        )


def tilings(like: _Tiling, sides: Sides) -> Iterator[_Tiling]:
    """Yield the tilings with every combination of `sides`, legal or not, the rest as in `like`."""
    for values in itertools.product(*sides.values()):
        found: dict[str, object] = dict(zip(sides, values, strict=True))
        yield replace(like, **found)


def distance(wanted: Iterable[int], other: Iterable[int]) -> float:
    """
    Return the sum, over pairs of sizes, of the larger divided by the smaller: 128 is as far from 64
    as from 256.
    """
    pairs = zip(wanted, other, strict=True)
    return float(sum(max(pair) / max(1, min(pair)) for pair in pairs))
