# SPDX-License-Identifier: Apache-2.0
"""
Fit the cost model of sm_90a to what was measured: the shipped table of a device, whose records hold
the time of every candidate, and its survey in ``tests/surveys``, which `jitgen bench choice` saved.

    python -m tests.fit_sm_90a "NVIDIA H200" fp8        # or bf16

It prints the constants for `jitgen/targets/sm_90a/devices.py`, and what choices lose to the best
candidate: before, after, on records that a fit has not seen (four parts, each left out once), and
in surveys that no fit sees.
Every fit begins with constants that know nothing of any tile but its size.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from jitgen.config import Arch
from jitgen.selection.choice import bucket
from jitgen.targets.protocol import Device
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import DEVICES, Fit, Speed, fit_of
from tests.fit_sm_90a.data import Measured, measured, unseen
from tests.fit_sm_90a.fitting import first, fitted
from tests.fit_sm_90a.points import COMMON, key_of

PARTS = 4


def regret(each: Measured, fit: Fit, num_sms: int) -> float:
    """
    Return how much slower the choice of `fit` is than the best candidate, as a part of the best
    one's time.
    """
    asked = bucket(each.problem, Arch.SM_90A)
    costs = [cost.predict(asked, config, fit, num_sms).cost for config, _ in each.times]
    return each.regrets[int(np.argmin(costs))]


def _plain(now: Fit, device: Device) -> Fit:
    """Return the constants that all tiles share before a fit begins."""
    return replace(
        now,
        call_us=3.6,
        dram_bytes_per_us=950 * device.dram_gbps,
        fill_bytes_per_us=7e6,
        cold_us=200.0,
        unshared=0.05,
        bf16=None,
    )


def main(name: str, types: str = "fp8", *, tell: Callable[[str], object] = print) -> None:
    """Fit tiles of `types` on the device called `name`, and say how good that is."""
    device = next(each for each in DEVICES if each.name == name)
    data, now = measured(device, types), fit_of(device)
    now = now.bf16 or now if types == "bf16" else now
    keys = {key_of(config) for each in data for config, _ in each.times}
    start = first(_plain(now, device), sorted(keys))

    def say(what: str, fit_for: Callable[[Measured], Fit], *, others: bool = True) -> None:
        sources = {
            "table": [each for each in data if not each.is_survey],
            "surveys": [each for each in data if each.is_survey],
            "surveys of no fit": unseen(device, types) if others else [],
        }
        for source, part in sources.items():
            lost = [regret(each, fit_for(each), device.num_sms) for each in part]
            if lost:
                tell(
                    f"{what}, {source}: {np.mean(lost):.2%} lost on average, {max(lost):.1%} at "
                    f"most, {sum(one > 0.08 for one in lost)} of {len(lost)} beyond 8 %"
                )

    say("before", lambda _: now)
    fit = fitted(data, start, device.num_sms)
    say("after", lambda _: fit)
    random.Random(0).shuffle(data)
    left_out: dict[int, Fit] = {}
    for part in range(PARTS):
        rest = [each for place, each in enumerate(data) if place % PARTS != part]
        one = fitted(rest, start, device.num_sms)
        left_out |= {id(each): one for each in data[part::PARTS]}
    say("left out", lambda each: left_out[id(each)], others=False)
    for field in COMMON:
        tell(f"{field}={getattr(fit, field):.4g},")
    for key, each in sorted(fit.speeds.items()):
        values = (getattr(each, spec.name) for spec in fields(Speed))
        tell(
            "{}: _speed({:.4f}, {:.3f}, {:.3f}, {:.3f}, {:.4f}, {:.4f}, {:.3f}),".format(
                key, *values
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
