# SPDX-License-Identifier: Apache-2.0
"""``jitgen bench plan``: where the time of a plan's calls goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jitgen.bench.protocol import conditions
from jitgen.cli.options import ARCH, with_output
from jitgen.cli.output import Column, Output, counted
from jitgen.config import Arch
from jitgen.plans.plan import load as load_plan
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.bench.plan import Timed


@click.command("plan")
@click.argument("name", metavar="PLAN")
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Time this many problems, those with most calls first.",
)
@with_output
def command(output: Output, name: str, arch: Arch | None, most: int) -> None:
    """
    Time the kernels that are chosen for a plan, and weight them with the plan's calls.

    Results are checked before anything is timed. TIME is a call of the kernel with a cold L2 on a
    GPU; SHARE is its part of the time of all calls that were timed. `jitgen plan from-recording`
    makes a plan with calls.
    """
    from jitgen.bench import plan as timing

    loaded, target = load_plan(name), arch or default_arch()
    problems, others = timing.measurable(loaded, target)
    rest = len(problems) - most
    found: list[Timed] = []
    with output.progress(min(len(problems), most), "measuring") as progress:
        for each in timing.measure(loaded, problems[:most], target):
            found.append(each)
            progress.advance()
    total = sum(each.total for each in found)
    found.sort(key=lambda each: (-each.total, -each.seconds))
    where = conditions()
    document = {
        "suite": "plan",
        "ok": True,
        "plan": loaded.name,
        "arch": str(target),
        "conditions": where,
        "total_s": total,
        "left_out": [f"{each.op} {each.slug}" for each in others],
        "beyond_most": max(0, rest),
        "rows": [
            {
                "problem": each.problem.to_json(),
                "kernel": each.kernel,
                "calls": each.calls,
                "time_us": each.seconds * 1e6,
                "predicted_us": each.predicted * 1e6,
                "share": each.total / total if total else None,
            }
            for each in found
        ],
    }

    def human() -> None:
        output.table(
            [
                Column("TIME (us)", is_number=True),
                Column("MODEL (us)", is_number=True),
                *([Column("CALLS", is_number=True), Column("SHARE", is_number=True)] * bool(total)),
                Column("PROBLEM"),
                Column("KERNEL"),
            ],
            [_cells(each, total) for each in found],
        )
        if total:
            output.note(f"all calls together: {total:.3g} s on {target}")
        output.note(", ".join(f"{name} {value}" for name, value in where.items()))

    output.result("bench plan", document, human)
    if rest > 0:
        output.note(f"{counted(rest, 'problem')} with fewer calls not timed; see --most")
    if others:
        output.note(f"{counted(len(others), 'problem')} of other operations cannot be timed alone")


def _cells(each: Timed, total: float) -> tuple[str, ...]:
    return (
        f"{each.seconds * 1e6:.1f}",
        f"{each.predicted * 1e6:.1f}",
        *([f"{each.calls:.0f}", f"{each.total / total:.1%}"] if total else []),
        each.problem.slug,
        each.kernel,
    )
