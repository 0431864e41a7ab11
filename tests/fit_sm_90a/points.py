# SPDX-License-Identifier: Apache-2.0
"""The constants as one vector, and what the model predicts with such a vector, many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import Fit, Speed

COMMON = (
    *("call_us", "dram_bytes_per_us", "fill_bytes_per_us"),
    *("cold_us", "unshared", "tail", "tail_row"),
)
OF_TILE = len(fields(Speed))
"""Number of constants of each tile."""

_WIDTHS = {
    "call_us": 0.3,
    "dram_bytes_per_us": 0.2,
    "fill_bytes_per_us": 0.3,
    "cold_us": 1.0,
    "unshared": 1.0,
    "tail": 0.5,
    "tail_row": 0.3,
}
_OF_TILE = (1.0, 1.0, 1.0, 0.5, 0.15, 1.5, 0.7)
_STEP = 1e-3


def key_of(config: GroupedGemmConfig) -> tuple[Any, ...]:
    """Return what the constants of a tile are found by."""
    tile, cluster, schedule = config.tile, config.cluster, config.schedule
    return (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)


class Constants:
    """
    Which constants there are, and where each stands in the vector.

    Args:
        start: Constants of which those are kept that are not fitted.
        keys: Tiles that are.
    """

    def __init__(self, start: Fit, keys: Sequence[Any]) -> None:
        self._start, self.keys = start, sorted(set(keys))

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return len(COMMON) + OF_TILE * len(self.keys)

    def key_at(self, column: int) -> Any:
        """
        Return the tile to which the number in `column` belongs; None for those that all tiles
        share.
        """
        tile = (column - len(COMMON)) // OF_TILE
        return self.keys[tile] if column >= len(COMMON) else None

    def vector(self, fit: Fit) -> Any:
        """Return the constants of `fit`, so that every number stands for a possible one."""
        found = [math.log(getattr(fit, name)) for name in COMMON]
        for key in self.keys:
            each = fit.speeds[key]
            found += [math.log(each.k_block_us), math.log(each.tile_us), _part(each.skipped)]
            found += [math.log(each.stream), each.throttled, _part(each.missed)]
            found += [math.log(each.overlap - 1)]
        return np.array(found)

    def widths(self) -> Any:
        """Return how far each number may go, as a standard deviation."""
        return np.array([_WIDTHS[name] for name in COMMON] + [*_OF_TILE] * len(self.keys))

    def fit(self, numbers: Any) -> Fit:
        """Return the constants that `vector` made such a vector of."""
        common: dict[str, Any] = {
            name: math.exp(x) for name, x in zip(COMMON, numbers, strict=False)
        }
        speeds = dict(self._start.speeds)
        for place, key in enumerate(self.keys):
            first = len(COMMON) + OF_TILE * place
            k_block, tile, skipped, stream, throttled, missed, overlap = numbers[
                first : first + OF_TILE
            ]
            speeds[key] = Speed(
                k_block_us=math.exp(k_block),
                tile_us=math.exp(tile),
                skipped=1 / (1 + math.exp(-skipped)),
                stream=math.exp(stream),
                throttled=float(max(0.0, throttled)),
                missed=1 / (1 + math.exp(-missed)),
                overlap=1 + math.exp(overlap),
            )
        return replace(self._start, speeds=speeds, **common)


class Points:
    """
    Kernels, each with what it has to do; logarithms of their times, as a vector has it.

    All kernels of a tile at once: `predicted` is `jitgen.targets.sm_90a.cost.cost` with arrays, and
    a test compares the two.
    """

    def __init__(self, constants: Constants, rows: Sequence[tuple[cost.Work, Any]]) -> None:
        self._constants, self._count = constants, len(rows)
        self._of_key: dict[Any, tuple[Any, Any]] = {}
        for key in constants.keys:
            places = np.array([i for i, (_, other) in enumerate(rows) if other == key], dtype=int)
            columns = np.array([rows[place][0] for place in places], dtype=float)
            self._of_key[key] = places, columns.reshape(len(places), -1).T

    def predicted(self, numbers: Any) -> Any:
        """Return the logarithms of the times."""
        fit, found = self._constants.fit(numbers), np.zeros(self._count)
        for key, (places, columns) in self._of_key.items():
            found[places] = _logarithms(columns, fit.speeds[key], fit)
        return found

    def slopes(self, numbers: Any, have: Any) -> Any:
        """Return (points, numbers): how each of `have`, the predicted, changes with each number."""
        found = np.zeros((self._count, len(numbers)))
        for column in range(len(numbers)):
            moved = numbers.copy()
            moved[column] += _STEP
            fit, own = self._constants.fit(moved), self._constants.key_at(column)
            for key in self._of_key if own is None else (own,):
                places, columns = self._of_key[key]
                ahead = _logarithms(columns, fit.speeds[key], fit)
                found[places, column] = (ahead - have[places]) / _STEP
        return found


def _logarithms(columns: Any, speed: Speed, fit: Fit) -> Any:
    """Return the logarithms of what `cost.cost` returns, of columns that are the fields of Work."""
    asked = cost.Work(*columns)
    filled = asked.filled - (1 - fit.tail) * asked.tails + fit.tail_row * asked.tail_rows
    k_block_us = speed.k_block_us * (1 - speed.skipped * (1 - filled))
    tile_us = speed.tile_us + asked.k_blocks * k_block_us * (1 + fit.unshared * asked.apart)
    busy_us = asked.clusters / asked.slots * tile_us
    doublings = np.log2(np.maximum(1.0, busy_us / fit.cold_us))
    tile_us = tile_us * (1 + speed.throttled * np.minimum(1.0, doublings / fit.doublings))
    fill_us = asked.loaded / asked.clusters / fit.fill_bytes_per_us
    crossing = asked.crossing + speed.missed * np.maximum(0.0, asked.loaded - asked.crossing)
    stream_us = crossing / asked.clusters / fit.dram_bytes_per_us / speed.stream
    full, rest = np.divmod(asked.clusters, asked.slots)

    def overlapped(count: Any) -> Any:
        times = np.stack([tile_us, count * fill_us, count * stream_us])
        longest = times.max(0)
        return longest * ((times / longest) ** speed.overlap).sum(0) ** (1 / speed.overlap)

    last = np.where(rest > 0, overlapped(rest), 0.0)
    return np.log(fit.call_us + full * overlapped(asked.slots) + last)


def _part(number: float) -> float:
    """Return the logarithm of the odds of a part, which is never all or nothing."""
    return math.log(number / (1 - number))
