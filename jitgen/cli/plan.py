# SPDX-License-Identifier: Apache-2.0
"""``jitgen plan``: what plans there are, what one asks for, and plans of what programs called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from jitgen import plans
from jitgen.cli.options import ARCH, DEVICE, with_output
from jitgen.cli.output import Column, Output, counted
from jitgen.cli.paths import TO_WRITE
from jitgen.config import Arch
from jitgen.errors import PlanError
from jitgen.recording import files
from jitgen.recording.files import Recording
from jitgen.runtime.session import select
from jitgen.targets import devices
from jitgen.targets.devices import default_arch
from jitgen.targets.early import early
from jitgen.text import printable

_MOST_NAMED = 5  # kernels asked for by name that a note lists


@click.group()
def plan() -> None:
    """Plans: what a service will call. See docs/plans.md."""


@plan.command("ls")
@with_output
def ls(output: Output) -> None:
    """List the plans that come with jitgen."""
    found = [plans.load(name) for name in plans.names()]
    document = {
        "plans": [
            {"name": each.name, "description": each.description, "problems": len(each.sweeps)}
            for each in found
        ]
    }
    columns = [
        Column("NAME"),
        Column("PROBLEMS", is_number=True),
        Column("DESCRIPTION", is_prose=True),
    ]
    rows = [(each.name, str(len(each.sweeps)), each.description) for each in found]
    output.result("plan ls", document, lambda: output.table(columns, rows))


@plan.command("show")
@click.argument("name", metavar="PLAN")
@click.option("--arch", type=ARCH, help="Target; the GPU's, else cpu, if not given.")
@DEVICE
@with_output
def show(output: Output, name: str, arch: Arch | None, device: str | None) -> None:
    """
    Show what a plan asks for on a target: each problem that stands for a bucket of the selector,
    and the kernel that is chosen for it. Nothing is compiled.
    """
    loaded = plans.load(name)
    if arch is None:
        arch = default_arch() if device is None else devices.arch_of(device)
    calls = loaded.asked(arch)
    found = [
        (asked, choice, early(choice.config, arch) if asked[1] else choice.config)
        for asked in sorted(calls, key=lambda each: -calls[each])
        for choice in [select(asked[0], arch, device=device)]
    ]
    document = {
        "plan": loaded.name,
        "description": loaded.description,
        "arch": str(arch),
        "problems": [
            {
                "op": asked[0].op,
                "problem": asked[0].to_json(),
                "calls": calls[asked],
                "kernel": config.name(arch),
                "source": str(choice.source),
            }
            for asked, choice, config in found
        ],
    }
    total = sum(calls.values())

    def human() -> None:
        columns = [
            *([Column("CALLS", is_number=True), Column("SHARE", is_number=True)] if total else []),
            Column("PROBLEM"),
            Column("KERNEL"),
            Column("CHOSEN BY"),
        ]
        rows = [
            (
                *([f"{calls[asked]:.0f}", f"{calls[asked] / total:.1%}"] if total else []),
                f"{asked[0].op} {asked[0].slug}",
                config.name(arch),
                str(choice.source),
            )
            for asked, choice, config in found
        ]
        output.table(columns, rows)
        kernels = len({config for _, _, config in found})
        output.note(f"{counted(len(found), 'problem')}, {counted(kernels, 'kernel')} for {arch}")

    output.result("plan show", document, human)


@plan.command("from-recording")
@click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "-o",
    "--output",
    "to",
    metavar="PLAN.toml",
    type=TO_WRITE,
    help="Write the plan to a file; to standard output if not given.",
)
@click.option(
    "--least",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Leave out what was called fewer times.",
)
@with_output
def from_recording(output: Output, paths: Sequence[Path], to: Path | None, least: int) -> None:
    """
    Make a plan of what programs called while JITGEN_RECORD was set.

    FILE is a file of one process, or what JITGEN_RECORD was, which stands for those of all
    processes. Calls are added up. Where calls fall into the same bucket of the selector, they are
    one entry of the plan, with the number of calls.
    """
    if to is not None and to.suffix != ".toml":
        raise click.UsageError(f"{printable(str(to))}: the name of a plan file ends in .toml")
    found = _parts(paths)
    recording = files.added(files.read(path) for path in found)
    made = plans.from_recording(recording, to.stem if to else "recorded", least=least)
    text = plans.text(made)
    if to is not None:
        try:
            to.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(to), error.strerror or "cannot be written") from error
    kept = sum(sweep.calls for sweep in made.sweeps)
    document = {
        "files": [str(path) for path in found],
        "calls": recording.total,
        "kept": kept,
        "kernels": dict(recording.kernels),
        "others": recording.others,
        "problems": len(made.sweeps),
        "plan": text if to is None else None,
        "file": None if to is None else str(to),
    }
    output.result(
        "plan from-recording", document, lambda: output.text(text) if to is None else None
    )
    _tell(output, recording, kept)
    output.note(
        f"{counted(len(made.sweeps), 'problem')} of {kept:,} calls in {counted(len(found), 'file')}"
        + ("" if to is None else f": wrote {printable(str(to))}")
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
    """Say what was called and is not in the plan."""
    counts: dict[str, Any] = dict(
        sorted(recording.kernels.items(), key=lambda item: (-item[1], item[0]))
    )
    for name in list(counts)[:_MOST_NAMED]:
        output.note(
            f"not in the plan: {printable(name)}, asked for by its config {counts[name]:,} times; "
            "prewarm it with --config"
        )
    if len(counts) > _MOST_NAMED:
        output.note(f"nor {len(counts) - _MOST_NAMED} more; --json names them all")
    if recording.others:
        output.note(
            f"{recording.others:,} calls were counted together: a process called more different "
            "problems than a recording holds"
        )
    rare = recording.total - recording.others - sum(counts.values()) - kept
    if rare:
        output.note(f"left out {rare:,} calls of problems that were called too rarely")
