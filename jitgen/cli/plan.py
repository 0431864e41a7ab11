# SPDX-License-Identifier: Apache-2.0
"""
``jitgen plan``: list and show plans, and make plans from recordings of programs and from models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from jitgen.cli.options import ARCH, DEVICES, with_output
from jitgen.cli.output import Output, counted
from jitgen.cli.paths import write_text
from jitgen.cli.plan_model import PLAN_FILE, from_config
from jitgen.config import Arch, Config
from jitgen.config.problem import Problem
from jitgen.errors import PlanError
from jitgen.plans import recording as files
from jitgen.plans.plan import launches as plan_launches
from jitgen.plans.plan import load as load_plan
from jitgen.plans.plan import names as plan_names
from jitgen.plans.recorded import between, from_recording
from jitgen.plans.recording import Recording
from jitgen.plans.write import text as plan_text
from jitgen.selection.device import covered
from jitgen.support import vocabulary as v
from jitgen.support.codec import like
from jitgen.support.frozen import frozen
from jitgen.support.text import printable
from jitgen.targets.devices import arch_of, default_arch, require

_MOST_NAMED = 5  # kernels asked for by name that a note lists


@frozen
class _ListedPlan:
    """A plan that comes with jitgen."""

    name: str
    description: str
    problems: v.Count


@frozen
class _Plans:
    plans: Sequence[_ListedPlan]


@frozen
class _PlannedProblem:
    """A problem of a plan, and one of its kernels."""

    op: str
    problem: v.ProblemValues
    calls: float
    kernel: v.Name
    source: str
    devices: Sequence[str]


@frozen
class _ShownPlan:
    plan: str
    description: str
    arch: v.ArchName
    devices: Sequence[str]
    problems: Sequence[_PlannedProblem]


@frozen
class _RecordedPlan:
    files: Sequence[v.File]
    calls: float
    kept: float
    kernels: Annotated[Mapping[str, float], v.by("kernel")]
    others: v.Count
    problems: v.Count
    plan: str | None
    file: v.File | None


@click.group()
def plan() -> None:
    """Plans: the sizes that a service will call. See docs/plans.md."""


plan.add_command(from_config)


@plan.command("ls")
@with_output
def ls(output: Output) -> None:
    """List the plans that come with jitgen."""
    found = [load_plan(name) for name in plan_names()]
    plans = [like(_ListedPlan, each, problems=len(each.sweeps)) for each in found]
    columns = ["NAME", ">PROBLEMS", "~DESCRIPTION"]
    rows = [(each.name, str(len(each.sweeps)), each.description) for each in found]
    output.report("plan ls", _Plans(plans=plans), lambda: output.table(columns, rows))


@plan.command("show")
@click.argument("name", metavar="PLAN")
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@DEVICES
@with_output
def show(output: Output, name: str, arch: Arch | None, devices: tuple[str, ...]) -> None:
    """
    Show the kernels of a plan on a target. Nothing is compiled.

    There is a line for each problem that represents a bucket of the selector and each kernel that
    its calls may launch, with the devices that choose it.
    """
    loaded = load_plan(name)
    if arch is None:
        arch = arch_of(devices[0]) if devices else default_arch()
    for each in devices:
        require(each, [arch])
    found: dict[_Row, dict[str, None]] = {}
    for launch in plan_launches(loaded, arch, devices=devices):
        row = _Row(launch.problem, launch.is_early, launch.calls, launch.config, launch.source)
        found.setdefault(row, {})[launch.device] = None
    every = covered(arch, devices)
    rows = sorted(found, key=lambda row: -row.calls)
    problems = [
        like(
            _PlannedProblem,
            row,
            op=row.problem.op,
            problem=row.problem.to_json(),
            kernel=row.config.name(arch),
            devices=[*found[row]] if arch.is_gpu else [],
        )
        for row in rows
    ]
    document = _ShownPlan(
        plan=loaded.name,
        description=loaded.description,
        arch=arch,
        devices=every if arch.is_gpu else (),
        problems=problems,
    )
    calls = loaded.asked(arch)

    def human() -> None:
        _print(output, arch, found, rows, sum(calls.values()), len(every))
        kernels = len({row.config for row in rows})
        text = f"{counted(len(calls), 'problem')}, {counted(kernels, 'kernel')} for {arch}"
        output.note(f"{text} on {', '.join(every)}" if arch.is_gpu else text)

    output.report("plan show", document, human)


class _Row(NamedTuple):
    """
    A problem, whether its kernel starts early, its calls, its kernel and the source of the choice.
    """

    problem: Problem
    is_early: bool
    calls: float
    config: Config
    source: str


def _print(
    output: Output,
    arch: Arch,
    found: dict[_Row, dict[str, None]],
    rows: list[_Row],
    total: float,
    most: int,
) -> None:
    """Print a row for each of `rows`; `total` is the number of all calls, `most` of devices."""
    columns = [
        *([">CALLS", ">SHARE"] if total else []),
        "PROBLEM",
        "KERNEL",
        "CHOSEN BY",
        *(["DEVICES"] if most > 1 else []),
    ]
    output.table(
        columns,
        [
            (
                *([f"{row.calls:.0f}", f"{row.calls / total:.1%}"] if total else []),
                f"{row.problem.op} {row.problem.slug}",
                row.config.name(arch),
                row.source,
                *(["all" if len(found[row]) == most else ", ".join(found[row])] * (most > 1)),
            )
            for row in rows
        ],
    )


@plan.command("from-recording")
@click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
)
@PLAN_FILE
@click.option(
    "--least",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Leave out problems with fewer calls.",
)
@click.option("--fill", "fills", is_flag=True, help="Add the buckets of rows between called ones.")
@with_output
def from_recording_command(
    output: Output, paths: Sequence[Path], to: Path | None, least: int, fills: bool
) -> None:
    """
    Make a plan of calls that JITGEN_RECORD counted.

    FILE is the file of one process, or the value of JITGEN_RECORD, which means the files of all
    processes. Calls are added up. Calls in the same bucket of the selector become one entry of the
    plan, with the number of calls.

    A longer run would call more sizes. With --fill the plan also has, for each problem, the buckets
    between the smallest and the largest one that was called.
    """
    if to is not None and to.suffix != ".toml":
        raise click.UsageError(f"{printable(str(to))}: the name of a plan file ends in .toml")
    found = _parts(paths)
    recording = files.added(files.read(path) for path in found)
    name = to.stem if to else "recorded"
    made = from_recording(recording, name, least=least, fills=fills)
    text = plan_text(made)
    if to is not None:
        write_text(to, text)
    kept = sum(sweep.calls for sweep in made.sweeps)
    document = _RecordedPlan(
        files=found,
        calls=recording.total,
        kept=kept,
        kernels=recording.kernels,
        others=recording.others,
        problems=len(made.sweeps),
        plan=text if to is None else None,
        file=to,
    )
    output.report(
        "plan from-recording", document, lambda: output.text(text) if to is None else None
    )
    _tell(output, recording, kept)
    if gaps := between(recording, made.sweeps):
        output.note(
            f"not called: {counted(len(gaps), 'bucket')} of rows between those that were; "
            "--fill adds them"
        )
    output.note(
        f"{counted(len(made.sweeps), 'problem')} of {counted(kept, 'call')} in "
        f"{counted(len(found), 'file')}" + ("" if to is None else f": wrote {printable(str(to))}")
    )


def _parts(paths: Sequence[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        parts = files.parts(path)
        if not parts:
            raise PlanError(
                f"there is no recording {printable(str(path))}, nor one of any process beside it; "
                "set JITGEN_RECORD to this path and run the program"
            )
        found |= dict.fromkeys(parts)
    return list(found)


def _tell(output: Output, recording: Recording, kept: int) -> None:
    """Print which calls of the recording are not in the plan."""
    counts: dict[str, int] = dict(
        sorted(recording.kernels.items(), key=lambda item: (-item[1], item[0]))
    )
    for name in list(counts)[:_MOST_NAMED]:
        output.note(
            f"not in the plan: {printable(name)}, asked for by its config "
            f"{counted(counts[name], 'time')}; prewarm it with --config"
        )
    if len(counts) > _MOST_NAMED:
        output.note(f"nor {len(counts) - _MOST_NAMED} more; --json names them all")
    if recording.others:
        output.note(
            f"counted together: {counted(recording.others, 'call')}, as a process called more "
            "different problems than a recording holds"
        )
    rare = recording.total - recording.others - sum(counts.values()) - kept
    if rare:
        output.note(f"left out {counted(rare, 'call')} of problems that were called too rarely")
