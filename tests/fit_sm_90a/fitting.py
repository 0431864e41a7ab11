# SPDX-License-Identifier: Apache-2.0
"""
The way to better constants: steps of Adam on three things at once.

*Near the times*, with the rows that each group really had: what counts is how candidates of one
problem compare, and little by what all of them are off. What is far behind the best need not be
predicted well, only as slow as it is: it counts where it is predicted too fast.

*Good choices*, with those rows and with what the selector sees: the edge of a bucket and no rows of
groups. A choice is softened to a part of each candidate, the more the faster it is predicted.

*Near the first constants*, which know nothing of any tile but its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgen.config import Arch
from jitgen.selection.choice import bucket
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import Fit, Speed
from tests.fit_sm_90a.data import Measured
from tests.fit_sm_90a.points import Constants, Points, key_of

FAR = 1.3
"""Factor by which a time must be longer than the best to be far behind."""

SOFT = 0.05
"""Relative error from which on errors count by their size, below by their square."""

STEPS, RATE = 150, 0.03
"""Number of steps of Adam, and the most that each number changes in one."""

HEAT = 0.02
"""Candidates that are predicted slower than the first by this part have 1/e of its weight."""

CHOSEN, CHOSEN_REAL, SHARED = 100.0, 30.0, 0.4
"""
Weights of three errors beside the comparison of candidates, which has 1: the loss of the choices by
the rows that the selector sees, the loss of those by real rows, and the error that all candidates
of a problem share.
"""

HELD = 0.01
"""Weight of the distance of constants from the first ones."""

MOST_LOST = 1.0
"""Loss beyond which a choice is no worse: times above twice the best count as twice."""


def first(fit: Fit, keys: Sequence[Any]) -> Fit:
    """Return constants that know nothing of tiles but their size; others are those of `fit`."""

    def speed(key: Any) -> Speed:
        size = key[0] * key[1] / 128**2
        return Speed(
            k_block_us=0.32 * size,
            tile_us=0.4 + 0.4 * size,
            skipped=0.5,
            stream=1.0,
            throttled=0.1,
            missed=0.05,
            overlap=3.7,
        )

    return replace(fit, speeds={key: speed(key) for key in keys})


def fitted(data: Sequence[Measured], start: Fit, num_sms: int) -> Fit:
    """Return the constants that are best for `data`, near `start`."""
    problem = _Problems(data, start, num_sms)
    at = first = problem.constants.vector(start)
    widths = problem.constants.widths()
    mean, square = np.zeros(len(at)), np.zeros(len(at))
    for step in range(1, STEPS + 1):
        slope = problem.slope(at) + 2 * HELD * (at - first) / widths**2
        mean, square = 0.9 * mean + 0.1 * slope, 0.98 * square + 0.02 * slope**2
        rate = RATE * (1 - (step - 1) / (STEPS + 1))
        size = np.sqrt(square / (1 - 0.98**step)) + 1e-9
        at = at - rate * mean / (1 - 0.9**step) / size
    return problem.constants.fit(at)


class _Problems:
    """What was measured, with real rows and as the selector sees it."""

    def __init__(self, data: Sequence[Measured], start: Fit, num_sms: int) -> None:
        asked = [
            (each, bucket(each.problem, Arch.SM_90A), config)
            for each in data
            for config, _ in each.times
        ]
        keys = [key_of(config) for _, _, config in asked]
        self.constants = Constants(start, keys)

        def points(work: Any) -> Points:
            return Points(self.constants, [(work(*one), key_of(one[-1])) for one in asked])

        self._real = points(
            lambda each, _, c: cost.work(each.problem, c, num_sms, each.distribution)
        )
        self._seen = [
            points(
                lambda _, edge, c, i=i: cost.work(edge, c, num_sms, cost.row_distributions(edge)[i])
            )
            for i in (0, -1)
        ]
        self._of = np.repeat(np.arange(len(data)), [len(each.times) for each in data])
        self._lost = np.minimum(MOST_LOST, np.concatenate([each.regrets for each in data]))
        times = np.array([us for each in data for _, us in each.times])
        far = FAR * np.array([each.best for each in data])[self._of]
        self._want, self._is_near = np.log(np.minimum(times, far)), times < far

    def slope(self, at: Any) -> Any:
        """Return the derivative of the error by each number."""
        count = len(self._sum(self._lost))
        have = self._real.predicted(at)
        pull = self._compared(have) + CHOSEN_REAL * self._softened(have)
        found = pull @ self._real.slopes(at, have)
        seen = [each.predicted(at) for each in self._seen]
        pull = CHOSEN * self._softened(sum(seen) / len(seen)) / len(seen)
        for each, have in zip(self._seen, seen, strict=True):
            found += pull @ each.slopes(at, have)
        return found / count

    def _sum(self, numbers: Any) -> Any:
        """
        Return the sums of `numbers`, one of each candidate, over the candidates of each problem.
        """
        return np.bincount(self._of, numbers)

    def _compared(self, have: Any) -> Any:
        """Return how the error of comparisons changes with each prediction."""
        off = have - self._want
        share = self._is_near / self._sum(self._is_near)[self._of]
        shared = self._sum(off * share)
        apart = off - shared[self._of]
        pull = apart / SOFT**2 / np.sqrt(1 + (apart / SOFT) ** 2) * (self._is_near | (apart < 0))
        common = SHARED * shared / SOFT**2 / np.sqrt(1 + (shared / SOFT) ** 2) - self._sum(pull)
        return pull + common[self._of] * share

    def _softened(self, predicted: Any) -> Any:
        """Return how what is lost changes with each prediction."""
        least = np.full(self._of[-1] + 1, math.inf)
        np.minimum.at(least, self._of, predicted)
        part = np.exp((least[self._of] - predicted) / HEAT)
        part /= self._sum(part)[self._of]
        return -part * (self._lost - self._sum(part * self._lost)[self._of]) / HEAT
