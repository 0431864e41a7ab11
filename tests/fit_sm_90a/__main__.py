# SPDX-License-Identifier: Apache-2.0
"""
Fit the cost model of sm_90a to the shipped tables, whose records hold the time of every candidate.

    python -m tests.fit_sm_90a "NVIDIA H100 80GB HBM3"

It prints the constants for `jitgen/targets/sm_90a/devices.py`, and what choices lose to the best
candidate: before, after, and on records that a fit has not seen (four parts, each left out once).

Fitted are logarithms of times, with the rows that each group really had. What is far behind the
best need not be predicted well, only as slow as it is: it counts where it is predicted too fast.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from jitgen.config import Arch, Layout
from jitgen.frozen import frozen
from jitgen.ops.grouped_gemm.config import KernelConfig, Problem
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import DEVICES, Fit, Speed, fit_of
from jitgen.tuning import known
from jitgen.tuning.search.trials import row_counts

COMMON = (
    *("call_us", "dram_bytes_per_us", "overlap", "beyond_us"),
    *("throttle", "cold_us", "unshared"),
)
FAR = 1.3
"""Times this much longer than the best are far behind."""

PRIOR, SPEED_PRIOR = 0.002, 0.02
"""How firmly constants are held to where they were: of all kernels, and of one tile."""

STEPS, SOFT = 25, 0.05


@frozen
class Measured:
    """The candidates of one problem and their microseconds."""

    problem: Problem
    times: tuple[tuple[KernelConfig, float], ...]

    @property
    def best(self) -> float:
        """The shortest time."""
        return min(us for _, us in self.times)


def measured(device: Device) -> list[Measured]:
    """Return the records of FP8 operands with block scales in the table of `device`."""
    found = []
    for record in known.shipped(Arch.SM_90A, device.name).values():
        if str(record.problem.scale_granularity) == "block128":
            times = tuple((KernelConfig.parse(name)[0], us) for name, us in record.times_us.items())
            found.append(Measured(problem=record.problem, times=times))
    return found


@contextmanager
def real_rows() -> Iterator[None]:
    """Let the model know the rows of each group as they were timed, for the length of a block."""
    usual = cost.sizes

    def rows(problem: Problem) -> tuple[float, ...]:
        is_even = problem.layout is Layout.CONTIGUOUS
        return usual(problem) if is_even else tuple(map(float, row_counts(problem)))

    cost.sizes = rows
    try:
        yield
    finally:
        cost.sizes = usual


def _key(config: KernelConfig) -> tuple[Any, ...]:
    tile, cluster, schedule = config.tile, config.cluster, config.schedule
    return (tile.m, tile.n, cluster.m, cluster.n, schedule.stream_b, schedule.split_k)


def _numbers(fit: Fit, keys: Sequence[Any]) -> Any:
    """Return the constants as one vector: logarithms, but for the part that is skipped."""
    common = [math.log(getattr(fit, name)) for name in COMMON]
    speeds = [fit.speeds[key] for key in keys]
    return np.array(
        common
        + [
            number
            for each in speeds
            for number in (
                math.log(each.k_block_us),
                math.log(max(each.tile_us, 0.05)),
                each.skipped,
                math.log(each.stream),
            )
        ]
    )


def _fit(numbers: Any, keys: Sequence[Any], start: Fit) -> Fit:
    """Return the constants that `_numbers` made such a vector of."""
    common = {name: float(math.exp(x)) for name, x in zip(COMMON, numbers, strict=False)}
    speeds = dict(start.speeds)
    for place, key in enumerate(keys):
        k_block, tile, skipped, stream = numbers[len(COMMON) + 4 * place :][:4]
        speeds[key] = Speed(
            k_block_us=math.exp(k_block),
            tile_us=math.exp(tile),
            skipped=float(min(1.0, max(0.0, skipped))),
            stream=math.exp(stream),
        )
    return replace(start, **common, speeds=speeds)


def fitted(data: Sequence[Measured], start: Fit, num_sms: int) -> Fit:
    """Return the constants that explain `data` best: damped Gauss-Newton steps from `start`."""
    rows = [
        (each.problem, config, math.log(min(us, each.best * FAR)), us < each.best * FAR)
        for each in data
        for config, us in each.times
    ]
    keys = sorted({_key(config) for _, config, _, _ in rows})
    of_key = defaultdict(list)
    for place, (_, config, _, _) in enumerate(rows):
        of_key[keys.index(_key(config))].append(place)
    want, is_near = (np.array([row[i] for row in rows]) for i in (2, 3))
    held = np.full(len(COMMON) + 4 * len(keys), SPEED_PRIOR)
    held[: len(COMMON)] = PRIOR

    def predicted(numbers: Any, places: Sequence[int]) -> Any:
        fit = _fit(numbers, keys, start)
        problems = (rows[place][:2] for place in places)
        return np.array([math.log(cost.predict(*each, fit, num_sms).cost) for each in problems])

    every = range(len(rows))
    at = first = _numbers(start, keys)
    damping, have = 1e-3, predicted(first, every)
    for _ in range(STEPS):
        off = have - want
        counts = is_near | (off < 0)
        weight = np.sqrt(counts / np.sqrt(1 + (off / SOFT) ** 2))  # what is far off pulls less
        slopes = np.zeros((len(rows), len(at)))
        for column in range(len(at)):
            moved = at.copy()
            moved[column] += 1e-3
            place = (column - len(COMMON)) // 4
            touched = every if column < len(COMMON) else of_key[place]
            slopes[touched, column] = (predicted(moved, touched) - have[touched]) / 1e-3
        slopes *= weight[:, None]
        left = slopes.T @ slopes + np.diag(held**2 + damping * (slopes**2).sum(0))
        right = slopes.T @ (off * weight) + held**2 * (at - first)
        tried = at - np.linalg.solve(left, right)
        found = predicted(tried, every)
        if _loss(found - want, is_near) < _loss(off, is_near):
            at, have, damping = tried, found, damping / 3
        else:
            damping *= 5
    return _fit(at, keys, start)


def _loss(off: Any, is_near: Any) -> float:
    return float(np.where(is_near | (off < 0), np.sqrt(1 + (off / SOFT) ** 2) - 1, 0).sum())


def regrets(data: Sequence[Measured], fit: Fit, num_sms: int) -> list[float]:
    """Return by what part the choice of `fit` is slower than the best candidate, each problem."""
    found = []
    for each in data:
        costs = [cost.predict(each.problem, config, fit, num_sms).cost for config, _ in each.times]
        found.append(each.times[int(np.argmin(costs))][1] / each.best - 1)
    return found


def main(name: str, tell: Callable[[str], object] = print) -> None:
    """Fit the device called `name` and say how good that is."""
    device = next(each for each in DEVICES if each.name == name)
    data, start = measured(device), fit_of(device)

    def say(what: str, lost: Sequence[float]) -> None:
        worst = sorted(lost)[-1]
        tell(f"{what}: {np.mean(lost):.2%} lost on average, {worst:.1%} at most, of {len(lost)}")

    say("before", regrets(data, start, device.num_sms))
    with real_rows():
        fit = fitted(data, start, device.num_sms)
        say("with the rows as they were", regrets(data, fit, device.num_sms))
    say("after", regrets(data, fit, device.num_sms))
    random.Random(0).shuffle(data)
    unseen: list[float] = []
    for part in range(4):
        rest = [each for place, each in enumerate(data) if place % 4 != part]
        with real_rows():
            one = fitted(rest, start, device.num_sms)
        unseen += regrets(data[part::4], one, device.num_sms)
    say("unseen", unseen)
    for field in COMMON:
        tell(f"{field}={getattr(fit, field):.4g},")
    for key, each in sorted(fit.speeds.items()):
        values = (each.k_block_us, each.tile_us, each.skipped, each.stream)
        tell("{}: _speed({:.3f}, {:.2f}, {:.2f}, {:.2f}),".format(key, *values))


if __name__ == "__main__":
    main(*sys.argv[1:])
