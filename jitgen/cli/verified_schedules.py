# SPDX-License-Identifier: Apache-2.0
"""
The output of ``jitgen verify`` about schedules: what is proved, and which instructions observe the
schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgen.cli.output import Output, counted

_SHOWN = 6


def show(output: Output, name: str, trials: Sequence[dict[str, Any]]) -> None:
    """
    Print for each problem of a kernel the instructions that observe the schedule, and the orders
    tried.
    """
    observing = [trial for trial in trials if trial.get("schedules", {}).get("observed")]
    if not observing:
        return
    output.line()
    output.line(name, style="bold")
    for trial in observing:
        schedules = trial["schedules"]
        output.line(f"  {trial['values']}; {trial['problem']}")
        for one in schedules["observed"][:_SHOWN]:
            times = f" ({one['count']} times)" if one["count"] > 1 else ""
            output.line(f"    observes the schedule: {one['what']}{times}")
            output.line(f"      at {one['place']}")
        if len(schedules["observed"]) > _SHOWN:
            output.line(f"    and {len(schedules['observed']) - _SHOWN} more; see --json")
        if schedules["explored"]:
            tried = counted(len(schedules["explored"]), "other order")
            limit = schedules["most_explored"]
            modes = ", ".join(schedules["explored"])
            output.line(f"    tried {tried}, of at most {limit}: {modes}")


def summary(trials: Sequence[dict[str, Any]]) -> str:
    """Return one line with the number of problems that were proved for every schedule."""
    number = sum(bool(trial.get("schedules", {}).get("proved")) for trial in trials)
    return f"{number} of {counted(len(trials), 'problem')} proved for every schedule of it"
