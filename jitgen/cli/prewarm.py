# SPDX-License-Identifier: Apache-2.0
"""``jitgen prewarm``: compile ahead of time every kernel that plans can ask for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from jitgen import plans
from jitgen.cli.lookup import parse_configs
from jitgen.cli.options import DEVICE, ArchType, with_output
from jitgen.cli.output import Column, ExitCode, Output, counted, human_size, human_time
from jitgen.config import Arch, Config
from jitgen.errors import CacheError
from jitgen.settings import settings
from jitgen.targets import devices
from jitgen.targets.devices import default_arch

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.runtime.prewarm import PrewarmReport, PrewarmRow


class _ArchList(ArchType):
    """Targets, separated by commas."""

    name = "arch,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a tuple of targets, each once."""
        parse = super().convert
        return tuple(dict.fromkeys(parse(part.strip(), param, ctx) for part in value.split(",")))


@click.command(
    epilog=f"Shipped plans: {', '.join(plans.names())}. A plan of your own is a .toml file.",
)
@click.argument("names", metavar="[PLAN]...", nargs=-1)
@click.option("--config", "config_names", metavar="NAME", multiple=True, help="One kernel by name.")
@click.option("--arch", "archs", type=_ArchList(), help="Targets of the plans: A,B.")
@DEVICE
@click.option(
    "--jobs", "-j", type=click.IntRange(0), help="Compile processes; 0: by cores and memory."
)
@click.option("--dry-run", is_flag=True, help="List the kernels; compile nothing.")
@click.option("--check", is_flag=True, help="Exit 3 if a kernel is missing; compile nothing.")
@with_output
def prewarm(
    output: Output,
    names: tuple[str, ...],
    config_names: tuple[str, ...],
    archs: tuple[Arch, ...] | None,
    device: str | None,
    jobs: int | None,
    dry_run: bool,
    check: bool,
) -> int:
    """
    Compile every kernel that the selector can choose for plans, and no other.

    No GPU is needed: kernels are compiled for the targets that --arch names. What the cache holds
    is left alone. A kernel that fails costs itself only; then the exit code is 1.
    """
    if not names and not config_names:
        raise click.UsageError(f"name a plan ({', '.join(plans.names())}) or a --config")
    from jitgen.cache import Store

    is_dry = dry_run or check
    if device is not None:
        archs = archs or (devices.arch_of(device),)
        devices.require(device, archs)
    with settings.scope(**({} if device is None else {"device": device})):
        wanted = _wanted(names, config_names, archs)
    store = Store.open()
    if store.mode != "rw" and not is_dry:
        raise CacheError(
            f"prewarming writes the cache, which it may not now: JITGEN_CACHE={store.mode}"
        )
    start = time.perf_counter()
    reports = _run(output, store, wanted, jobs=jobs, is_dry=is_dry)
    wall_s = time.perf_counter() - start
    rows = [row for report in reports for row in report.rows]

    def human() -> None:
        _print(output, rows, is_dry=is_dry)
        output.note(_summary(rows, wall_s, max((report.jobs for report in reports), default=0)))

    counts = {state: sum(row.state == state for row in rows) for state in _STATES}
    is_missing = counts["would compile"] > 0
    document = {
        "dry_run": is_dry,
        "ok": not counts["failed"] and not (check and is_missing),
        "wall_s": wall_s,
        "jobs": max((report.jobs for report in reports), default=0),
        "counts": {state.replace(" ", "_"): count for state, count in counts.items()},
        "kernels": [
            {
                "name": row.name,
                "key": row.key,
                "state": str(row.state).replace(" ", "_"),
                "seconds": row.seconds,
                "bytes": row.bytes,
                "error": row.error,
            }
            for row in rows
        ],
    }
    output.result("prewarm", document, human)
    if check and is_missing:
        return ExitCode.WOULD_COMPILE
    return ExitCode.FAILED if counts["failed"] else ExitCode.OK


_STATES = ("cached", "fetched", "compiled", "failed", "would compile")


def _wanted(
    names: tuple[str, ...], config_names: tuple[str, ...], archs: tuple[Arch, ...] | None
) -> dict[Arch, list[Config]]:
    """Return the configs to compile for each target, each once."""
    found: dict[Arch, dict[Config, None]] = {}
    if names:
        loaded = [plans.load(name) for name in names]
        for arch in archs or (default_arch(),):
            found[arch] = {config: None for plan in loaded for config in plans.configs(plan, arch)}
    for config, arch in parse_configs(config_names):
        found.setdefault(arch, {})[config] = None
    return {arch: list(configs) for arch, configs in found.items()}


def _run(
    output: Output,
    store: Store,
    wanted: dict[Arch, list[Config]],
    *,
    jobs: int | None,
    is_dry: bool,
) -> list[PrewarmReport]:
    from jitgen.runtime.prewarm import PrewarmState
    from jitgen.runtime.prewarm import prewarm as run

    total = sum(len(configs) for configs in wanted.values())
    reports = []
    with output.progress(total, "checking" if is_dry else "compiling") as progress:

        def on_progress(row: PrewarmRow, _done: int, _total: int) -> None:
            if row.state is PrewarmState.FAILED:
                progress.note(f"failed: {row.name}: {row.error}")
            is_news = row.state is PrewarmState.COMPILED
            progress.advance(f"{human_time(row.seconds)} {row.name}" if is_news else "")

        for arch, configs in wanted.items():
            reports.append(
                run(
                    configs,
                    arch=arch,
                    jobs=jobs,
                    dry_run=is_dry,
                    on_progress=on_progress,
                    store=store,
                )
            )
    return reports


def _print(output: Output, rows: list[PrewarmRow], *, is_dry: bool) -> None:
    if is_dry:
        output.table(
            [Column("STATE"), Column("NAME")], [(str(row.state), row.name) for row in rows]
        )
        return
    output.table(
        [
            Column("STATE"),
            Column("TIME", is_number=True),
            Column("SIZE", is_number=True),
            Column("NAME"),
        ],
        [
            (
                str(row.state),
                human_time(row.seconds) if row.seconds else "",
                output.size(row.bytes) if row.bytes else "",
                row.name,
            )
            for row in rows
        ],
    )


def _summary(rows: list[PrewarmRow], wall_s: float, jobs: int) -> str:
    """Return one line: counts, time, rate, size."""
    parts = [
        f"{count} {state}"
        for state in _STATES
        if (count := sum(row.state == state for row in rows))
    ]
    text = f"{counted(len(rows), 'kernel')}: {', '.join(parts)}"
    compiled = sum(row.state == "compiled" for row in rows)
    if compiled:
        rate = compiled / wall_s * 60
        text += f" in {human_time(wall_s)} by {counted(jobs, 'process', 'processes')}"
        text += f" ({rate:.0f} a minute)"
    size = sum(row.bytes for row in rows)
    return f"{text}; {human_size(size)} in the cache" if size else text
