# SPDX-License-Identifier: Apache-2.0
"""
Which words some bytes of shared memory lie in: what the history of an access is kept by.

The bytes of a matrix operand are scattered by its swizzle, and a kernel reads the same few operands
again and again, so that what was found out about an array that cannot be written to is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.machine.readers import Granules
from jitgen.emulator.machine.shared_history import WORD

_MAX_REGIONS = 1024


@dataclass(frozen=True, slots=True)
class Region:
    """
    The words that some bytes lie in.

    Attributes:
        words: Ascending, each once.
        start, stop: The bytes are not below `start`, and below `stop`.
    """

    words: Granules
    start: int
    stop: int


_regions: dict[int, tuple[NDArray[Any], Region]] = {}
"""Regions of arrays that do not change, by identity; the array is kept so that it stays its own."""


def region_of(where: slice | NDArray[Any]) -> Region:
    """Return the words that bytes lie in."""
    if isinstance(where, slice):
        return _stretch(where.start, where.stop)
    known = _regions.get(id(where))
    if known is not None and known[0] is where:
        return known[1]
    words = np.unique(where // WORD).astype(np.int64)
    found = Region(_as_slice(words), int(where.min()), int(where.max()) + 1)
    if not where.flags.writeable:
        if len(_regions) >= _MAX_REGIONS:
            _regions.clear()
        _regions[id(where)] = (where, found)
    return found


@lru_cache(maxsize=1 << 12)
def _stretch(start: int, stop: int) -> Region:
    """Return the words of adjacent bytes."""
    return Region(slice(start // WORD, -(-stop // WORD)), start, stop)


def _as_slice(words: NDArray[np.int64]) -> Granules:
    """Return ascending numbers as a slice where they are adjacent."""
    first, last = int(words[0]), int(words[-1])
    return slice(first, last + 1) if last - first + 1 == len(words) else words
