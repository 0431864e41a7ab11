# SPDX-License-Identifier: Apache-2.0
"""
The attack as a command: ``python -m tests.chaos`` from the checkout, with a report at the end.

Without ``--full`` every stage takes a sample, as in the tests. The whole takes an hour on two
cores. Run it as root, on a machine that you can spare: only root can be two users, mount and fill a
disk.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from jitgen import __version__
from tests.chaos.report import Stage
from tests.chaos.stages import NAMED, STAGES


def _head(stages: list[Stage], *, full: bool) -> str:
    """Return what was run where, and how it ended."""
    failed = [stage.name for stage in stages if not stage.ok]
    verdict = f"FAILED in {', '.join(failed)}" if failed else "nothing failed"
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
    when = f"{datetime.now(tz=UTC):%Y-%m-%d}"
    return (
        f"jitgen {__version__}, chaos, {'everything' if full else 'a sample'}: {verdict}\n"
        f"{when}, Python {platform.python_version()}, {machine}, as {user}"
    )


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(NAMED)), metavar="[STAGE]...")
@click.option("--full", is_flag=True, help="Everything instead of a sample.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write it there.")
def main(names: tuple[str, ...], full: bool, report: Path | None) -> None:
    """Attack the cache and the compiler, with every STAGE or those that are named."""
    logging.getLogger("jitgen").addHandler(logging.NullHandler())
    stages = []
    for name in names or STAGES:
        stages.append(NAMED[name](not full))
        click.echo(stages[-1].text() + "\n")
    text = "\n\n".join([_head(stages, full=full), *(stage.text() for stage in stages)]) + "\n"
    click.echo(text.split("\n\n", 1)[0])
    if report:
        report.write_text(text)
    sys.exit(0 if all(stage.ok for stage in stages) else 1)


if __name__ == "__main__":
    main()
