# SPDX-License-Identifier: Apache-2.0
"""
Sizes at which the code of a kernel takes another branch, and a small set of problems that contain
them: each pair of values together, or each value once.

A kernel compares its run-time numbers with constants of its config: rows of a tile, columns of a
CTA, loads at once. A wrong comparison gives wrong results at such a constant, or one step below or
above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from jitgen.ops.sizes import Number

_WARP = 32


def around(number: Number, *constants: int) -> tuple[int, ...]:
    """
    Return the values of `number` at each of `constants`, one step below and one above, and the two
    smallest; a step is what `number` is a multiple of.
    """
    step, first = number.multiple, max(number.least, number.multiple)
    near = {first, first + step}
    for constant in constants:
        at = -(-constant // step) * step
        near |= {at - step, at, at + step}
    return tuple(sorted(value for value in near if value > 0 and number.allows(value)))


def rows_around(*constants: int) -> list[tuple[int, ...]]:
    """
    Return rows of groups: at each of `constants`, one below and one above, beside groups without
    rows; a group of one row; and as many groups as a warp has lanes, and more.
    """
    found = [(1,), (0, 2), (*[1] * (_WARP - 1), 2), (1,) * (_WARP + 1)]
    for constant in constants:
        found += [(constant,), (constant - 1, 1), (0, constant + 1)]
    return list(dict.fromkeys(found))


def each_once(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """
    Yield combinations of one value of each axis: the fewest in which every value of every axis
    occurs.
    """
    for number in range(max(map(len, axes))):
        yield tuple(axis[number % len(axis)] for axis in axes)


def in_pairs(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """
    Yield combinations of one value of each axis, in which every two values of two axes occur
    together at least once.
    """
    missing = {
        (one, first, other, second)
        for one, other in combinations(range(len(axes)), 2)
        for first in range(len(axes[one]))
        for second in range(len(axes[other]))
    }
    for wanted in sorted(missing):
        if wanted in missing:
            one, first, other, second = wanted
            chosen = {one: first, other: second}
            for at, axis in enumerate(axes):
                if at not in chosen:
                    ways = [{**chosen, at: index} for index in range(len(axis))]
                    chosen = max(ways, key=lambda way: len(missing & _pairs_of(way)))
            missing -= _pairs_of(chosen)
            yield tuple(axis[chosen[at]] for at, axis in enumerate(axes))


def _pairs_of(chosen: dict[int, int]) -> set[tuple[int, int, int, int]]:
    """Return the pairs of values that a combination has."""
    return {(i, chosen[i], j, chosen[j]) for i, j in combinations(sorted(chosen), 2)}
