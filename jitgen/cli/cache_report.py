# SPDX-License-Identifier: Apache-2.0
"""``jitgen cache report``: a page about the whole cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import click

from jitgen.cli.cache import open_store
from jitgen.cli.options import with_output
from jitgen.cli.output import Output, counted, human_size
from jitgen.cli.paths import TO_WRITE, write_text
from jitgen.support import vocabulary as v
from jitgen.support.frozen import frozen


@frozen
class _Reported:
    file: v.File
    bytes: v.Bytes
    entries: v.Count
    states: Annotated[Mapping[str, v.Count], v.by("state")]
    reasons: Annotated[Mapping[str, v.Count], v.by("reason")]
    failures: v.Count
    quarantined: v.Count


@click.command()
@click.option(
    "-o",
    "--output",
    "file",
    type=TO_WRITE,
    default=Path("jitgen-cache.html"),
    show_default=True,
    help="The file to write.",
)
@with_output
def report(output: Output, file: Path) -> None:
    """
    Make a page about the cache: every entry with its size, age and loads, and whether calls of this
    installation find it, or why not; recorded failures; and the quarantine.

    It is one file of HTML that needs no network.
    """
    from jitgen.inspect.cache_page import cache_page
    from jitgen.inspect.cache_report import report as look_over

    found = look_over(open_store(changes=False))
    text = cache_page(found)
    write_text(file, text)
    size = len(text.encode("utf-8"))
    document = _Reported(
        file=file,
        bytes=size,
        entries=len(found.rows),
        states={str(state): count for state, count in found.states.items()},
        reasons=found.reasons,
        failures=len(found.failures),
        quarantined=len(found.damages),
    )
    output.report("cache report", document, lambda: output.line(str(file)))
    output.note(
        f"{human_size(size)}, {counted(len(found.rows), 'entry', 'entries')}: open it in a browser"
    )
