# SPDX-License-Identifier: Apache-2.0
"""
Two ways to better constants, one behind the other.

`near` brings predictions near the times, with the rows that each group really had. What is far
behind the best need not be predicted well, only as slow as it is: it counts where it is predicted
too fast. `choosing` then looks at what the selector sees, the edge of a bucket and no rows of
groups, and at nothing but what the choice loses: a choice is softened to a part of each candidate,
the more the faster it is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgen.config import Arch, DType
from jitgen.ops.grouped_gemm.config import Problem
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import Fit
from jitgen.tuning.choice import bucket
from tests.fit_sm_90a.data import Measured, real_rows
from tests.fit_sm_90a.points import Constants, Points, key_of

FAR = 1.3
"""Times this much longer than the best are far behind."""

PRIOR, SPEED_PRIOR = 0.002, 0.02
"""How firmly constants are held to where they were: of all kernels, and of one tile."""

STEPS, SOFT = 25, 0.05

CHOOSING_STEPS, RATE = 150, 0.01
"""Of the second way: how many, and how far each number goes at most in one."""

HEAT = 0.015
"""Candidates that are predicted so much slower than the first get 1/e of its part."""

PULL = 0.0003
"""How firmly constants are held to those of the first way."""

KEPT = 0.003
"""How much a wrong prediction counts beside what a choice loses."""


def near(data: Sequence[Measured], start: Fit, num_sms: int) -> Fit:
    """Return the constants that explain `data` best: damped Gauss-Newton steps from `start`."""
    constants, points, want, is_near = _real(data, start, num_sms)
    held = np.full(constants.size, SPEED_PRIOR)
    held[: len(constants.common)] = PRIOR
    at = first = constants.vector(start)
    damping, have = 1e-3, points.predicted(first)
    for _ in range(STEPS):
        off = have - want
        weight = np.sqrt(_weight(off, is_near))
        slopes = points.slopes(at, have) * weight[:, None]
        left = slopes.T @ slopes + np.diag(held**2 + damping * (slopes**2).sum(0))
        right = slopes.T @ (off * weight) + held**2 * (at - first)
        tried = at - np.linalg.solve(left, right)
        found = points.predicted(tried)
        if _loss(found - want, is_near) < _loss(off, is_near):
            at, have, damping = tried, found, damping / 3
        else:
            damping *= 5
    return constants.fit(at)


def choosing(data: Sequence[Measured], start: Fit, num_sms: int) -> Fit:
    """Return constants near `start` with which choices lose less: steps of Adam."""
    constants, points, want, is_near = _real(data, start, num_sms)
    asked = [
        (bucket(each.problem, Arch.SM_90A), config) for each in data for config, _ in each.times
    ]
    seen = Points(constants, [(cost.work(*one, num_sms), key_of(one[1])) for one in asked])
    ends = np.cumsum([len(each.times) for each in data])
    lost = np.concatenate([each.regrets for each in data])
    at = best = first = constants.vector(start)
    least, mean, square = math.inf, np.zeros(constants.size), np.zeros(constants.size)
    for step in range(1, CHOOSING_STEPS + 1):
        have, predicted = points.predicted(at), seen.predicted(at)
        parts, expected = _softened(predicted, lost, ends)
        off = have - want
        value = expected.mean() + KEPT * _loss(off, is_near) / len(off)
        value += PULL * ((at - first) ** 2).sum()
        if value < least:
            least, best = value, at
        pull = -parts * (lost - np.repeat(expected, np.diff(ends, prepend=0))) / HEAT / len(ends)
        slope = seen.slopes(at, predicted).T @ pull
        slope += (
            KEPT * points.slopes(at, have).T @ (_weight(off, is_near) * off) / SOFT**2 / len(off)
        )
        slope += 2 * PULL * (at - first)
        mean, square = 0.9 * mean + 0.1 * slope, 0.98 * square + 0.02 * slope**2
        rate = RATE * (1 - step / (CHOOSING_STEPS + 1))
        size = np.sqrt(square / (1 - 0.98**step)) + 1e-9
        at = at - rate * mean / (1 - 0.9**step) / size
    return constants.fit(best)


def _real(data: Sequence[Measured], start: Fit, num_sms: int) -> tuple[Constants, Points, Any, Any]:
    """Return the constants, the candidates with their real rows, their times, which are near."""
    rows, want, is_near = [], [], []
    for each in data:
        with real_rows(each):
            rows += [(cost.work(each.problem, c, num_sms), key_of(c)) for c, _ in each.times]
        want += [math.log(min(us, each.best * FAR)) for _, us in each.times]
        is_near += [us < each.best * FAR for _, us in each.times]
    constants = Constants(start, [key for _, key in rows], speeds_of(data[0].problem))
    return constants, Points(constants, rows), np.array(want), np.array(is_near)


def speeds_of(problem: Problem) -> str:
    """Return the field of `Fit` that has the tiles for `problem`."""
    return "bf16_speeds" if problem.a_dtype is DType.BF16 else "speeds"


def _weight(off: Any, is_near: Any) -> Any:
    """Return how much each error counts: what is far off pulls less."""
    return (is_near | (off < 0)) / np.sqrt(1 + (off / SOFT) ** 2)


def _loss(off: Any, is_near: Any) -> float:
    return float(np.where(is_near | (off < 0), np.sqrt(1 + (off / SOFT) ** 2) - 1, 0).sum())


def _softened(predicted: Any, lost: Any, ends: Any) -> tuple[Any, Any]:
    """Return each candidate's part of the choice, and what each problem loses so."""
    parts, expected = np.empty(len(predicted)), np.empty(len(ends))
    for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        part = np.exp((predicted[start:end].min() - predicted[start:end]) / HEAT)
        parts[start:end] = part / part.sum()
        expected[place] = parts[start:end] @ lost[start:end]
    return parts, expected
