# SPDX-License-Identifier: Apache-2.0
"""The constants as one vector, and what the model predicts with such a vector, many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from jitgen.ops.grouped_gemm.config import KernelConfig
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import Fit, Speed

COMMON = (
    *("call_us", "dram_bytes_per_us", "beyond_us"),
    *("cold_us", "unshared"),
)
OF_TILE = len(fields(Speed))
"""Constants of each tile."""

_LEAST_US = 0.05
_STEP = 1e-3


def key_of(config: KernelConfig) -> tuple[Any, ...]:
    """Return what the constants of a tile are found by."""
    tile, cluster, schedule = config.tile, config.cluster, config.schedule
    return (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)


class Constants:
    """
    Which constants there are, and where each stands in the vector.

    Args:
        start: Those that are not fitted are as here.
        keys: Tiles that are.
        of: The field of `Fit` that has them; common constants are fitted with FP8's.
    """

    def __init__(self, start: Fit, keys: Sequence[Any], of: str = "speeds") -> None:
        self._start, self._of = start, of
        self.keys = sorted(set(keys))
        self.common = COMMON if of == "speeds" else ()

    @property
    def size(self) -> int:
        """Numbers in a vector."""
        return len(self.common) + OF_TILE * len(self.keys)

    def key_at(self, column: int) -> Any:
        """Return the tile of a number; None of those that all tiles share."""
        tile = (column - len(self.common)) // OF_TILE
        return self.keys[tile] if column >= len(self.common) else None

    def vector(self, fit: Fit) -> Any:
        """Return the constants of `fit`: logarithms, but for parts, which may be 0."""
        found = [math.log(getattr(fit, name)) for name in self.common]
        for key in self.keys:
            each = self.speeds(fit).get(key) or cost.unmeasured(*key[:2], fit)
            found += [math.log(each.k_block_us), math.log(max(each.tile_us, _LEAST_US))]
            found += [each.skipped, math.log(each.stream), each.throttled, each.missed]
            found += [math.log(each.overlap)]
        return np.array(found)

    def fit(self, numbers: Any) -> Fit:
        """Return the constants that `vector` made such a vector of."""
        common: dict[str, Any] = {
            name: math.exp(x) for name, x in zip(self.common, numbers, strict=False)
        }
        speeds = dict(self.speeds(self._start))
        for place, key in enumerate(self.keys):
            first = len(self.common) + OF_TILE * place
            k_block, tile, skipped, stream, throttled, missed, overlap = numbers[
                first : first + OF_TILE
            ]
            speeds[key] = Speed(
                k_block_us=math.exp(k_block),
                tile_us=math.exp(tile),
                skipped=float(min(1.0, max(0.0, skipped))),
                stream=math.exp(stream),
                throttled=float(max(0.0, throttled)),
                missed=float(min(1.0, max(0.0, missed))),
                overlap=max(1.0, math.exp(overlap)),
            )
        common[self._of] = speeds
        return replace(self._start, **common)

    def speeds(self, fit: Fit) -> dict[Any, Speed]:
        """Return the constants of tiles in `fit`."""
        found: dict[Any, Speed] = getattr(fit, self._of)
        return found


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
            found[places] = _logarithms(columns, self._constants.speeds(fit)[key], fit)
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
                ahead = _logarithms(columns, self._constants.speeds(fit)[key], fit)
                found[places, column] = (ahead - have[places]) / _STEP
        return found


def _logarithms(columns: Any, speed: Speed, fit: Fit) -> Any:
    """Return the logarithms of what `cost.cost` returns, of columns that are the fields of Work."""
    asked = cost.Work(*columns)
    apart = 1 + fit.unshared * asked.apart
    k_block_us = speed.k_block_us * (1 - speed.skipped * (1 - asked.filled)) * apart
    tile_us = speed.tile_us + asked.k_blocks * (k_block_us + fit.beyond_us * asked.beyond)
    busy_us = asked.clusters / asked.slots * tile_us
    doublings = np.log2(np.maximum(1.0, busy_us / fit.cold_us))
    tile_us = tile_us * (1 + speed.throttled * np.minimum(1.0, doublings / fit.doublings))
    crossing = asked.crossing + speed.missed * np.maximum(0.0, asked.loaded - asked.crossing)
    stream_us = crossing / asked.clusters / fit.dram_bytes_per_us / speed.stream * apart
    full, rest = np.divmod(asked.clusters, asked.slots)

    def overlapped(stream_us: Any) -> Any:
        return (tile_us**speed.overlap + stream_us**speed.overlap) ** (1 / speed.overlap)

    last = np.where(rest > 0, overlapped(rest * stream_us), 0.0)
    return np.log(fit.call_us + full * overlapped(asked.slots * stream_us) + last)
