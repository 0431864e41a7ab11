# SPDX-License-Identifier: Apache-2.0
"""``jitgen inspect``: everything about a kernel, or two kernels, on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cli.lookup import KernelId, Named, find
from jitgen.cli.options import with_output
from jitgen.cli.output import Output, counted, human_size
from jitgen.cli.paths import TO_WRITE, write_text
from jitgen.errors import ConfigError
from jitgen.plans.plan import load as load_plan
from jitgen.settings import settings
from jitgen.support import vocabulary as v
from jitgen.support.codec import like
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.inspect.kernel import Inspected


@frozen
class _LookedAt(KernelId):
    """JSON form of a kernel that the written page shows."""

    lines: Annotated[Mapping[str, v.Count], v.by("language")]
    ctas_per_sm: int | None
    measured: v.Count
    right: bool | None
    notes: Sequence[str]


@frozen
class _Page:
    file: v.File
    bytes: v.Bytes
    kernels: Sequence[_LookedAt]


@click.command("inspect")
@click.argument("config_or_key", metavar="CONFIG-or-KEY")
@click.option(
    "--against",
    metavar="CONFIG-or-KEY",
    help="Another kernel to show beside it, with the differences.",
)
@click.option(
    "--plan",
    "plan_names",
    metavar="PLAN",
    multiple=True,
    help="Plans in which to find problems for which it is chosen; default: all of jitgen.",
)
@click.option("--emulate", is_flag=True, help="Run it in the emulator, and mark executed lines.")
@click.option(
    "-o",
    "--output",
    "file",
    type=TO_WRITE,
    help="The file to write; default: the kernel's name with .html.",
)
@with_output
def inspect_command(
    output: Output,
    config_or_key: str,
    *,
    against: str | None,
    plan_names: tuple[str, ...],
    emulate: bool,
    file: Path | None,
) -> None:
    """
    Make a page about a kernel: source, PTX and SASS side by side, linked by line; instructions,
    memory, occupancy, measurements, the reason why it is chosen, its derived numbers and its key.

    The page is one HTML file that needs no network. A kernel that is not in the cache is compiled.
    Needs jitgen[inspect]; --emulate also needs jitgen[emulator].
    """
    from jitgen.cache import Store
    from jitgen.inspect.page import page

    for name in plan_names:
        load_plan(name)  # a mistake is told before anything is compiled
    store = Store.open()
    every = [find(text, store) for text in (config_or_key, against) if text is not None]
    for named in every:
        require(named.config, named.arch)
        if emulate and not named.arch.is_gpu:
            raise ConfigError(
                f"{named.name} runs on this machine as it is, and is not emulated: leave out "
                "--emulate"
            )
    found = []
    for named in every:
        output.note(f"looking at {named.name}" + ", and emulating it" * emulate)
        found.append(_inspected(named, store, plan_names, emulates=emulate))
    text = page(*found)
    path = file or Path(f"{every[0].name}.html")
    write_text(path, text)
    size = len(text.encode("utf-8"))
    document = _Page(file=path, bytes=size, kernels=[_looked_at(each) for each in found])
    output.report("inspect", document, lambda: output.line(str(path)))
    output.note(f"{human_size(size)}, {counted(len(found), 'kernel')}: open it in a browser")


def _inspected(
    named: Named, store: Store, plan_names: tuple[str, ...], *, emulates: bool
) -> Inspected:
    from jitgen.codegen.render import Source, render
    from jitgen.inspect.kernel import inspected

    entry = store.read(named.key)
    if entry is None and not named.arch.is_gpu and settings.on_miss != "error":
        from jitgen.runtime.spec import spec_of
        from jitgen.runtime.tiers import Tiers, build

        entry = build(Tiers(store), spec_of(named.config, named.arch))[0]
    if entry is not None and named.is_key:
        source = Source(
            config=named.config,
            arch=named.arch,
            name=named.name,
            text=entry.source,
            entry=named.config.op,
        )
    else:
        source = render(named.config, named.arch)
    return inspected(
        source, named.key, store, entry, emulates=emulates, plan_names=plan_names or None
    )


def _looked_at(kernel: Inspected) -> _LookedAt:
    return like(
        _LookedAt,
        kernel,
        lines={each.language: len(each.lines) for each in kernel.listings},
        ctas_per_sm=None if kernel.occupancy is None else kernel.occupancy.ctas,
        measured=len(kernel.speed.measurements),
        right=None if kernel.emulation is None else kernel.emulation.is_right,
    )
