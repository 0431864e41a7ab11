# SPDX-License-Identifier: Apache-2.0
"""``jitgen diff``: two kernels, part by part, from config to machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from jitgen.cli.lookup import KernelId, find
from jitgen.cli.options import with_output, with_stage
from jitgen.cli.output import ExitCode, Output
from jitgen.support import vocabulary as v
from jitgen.support.codec import absent, inline
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.cli.diff_sides import Side

_MOST_COUNTS = 12  # instructions that are shown; --json has all
_MOST_VALUE = 40  # letters of a value


@frozen
class _SideId:
    """One of the two kernels that ``diff`` compares."""

    title: str
    kernel: KernelId = inline()


@frozen
class _FieldDiffers:
    """A field in which two kernels differ, with both values."""

    field: str
    a: object
    b: object


@frozen
class _TextDiffers:
    """The number of lines in which two texts differ, and these lines."""

    same: bool
    added: v.Count
    removed: v.Count
    diff: str


@frozen
class _CountDiffers:
    """Number of times that one instruction occurs in the code of each kernel."""

    instruction: str
    a: v.Count
    b: v.Count
    field: str | None = absent()


@frozen
class _CodeDiffers(_TextDiffers):
    """Whether two codes differ, and the instructions whose counts differ."""

    counts: Sequence[_CountDiffers]


Fields = Sequence[Annotated[v.Values, _FieldDiffers]]
Code = Annotated[v.Values, _CodeDiffers]


@frozen
class _Diff:
    """What ``diff`` prints; `jitgen.cli.diff_sides` makes the parts."""

    same: bool
    a: _SideId
    b: _SideId
    config: Fields
    derived: Fields
    key_document: Fields | None
    source: Annotated[v.Values, _TextDiffers]
    ptx: Code | None
    sass: Code | None
    resources: Fields | None
    missing: Annotated[Mapping[str, v.Reason], v.by("part")]


_LINES = "Print only the lines of the {} that differ."


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@with_stage(
    source=_LINES.format("source"), ptx=_LINES.format("PTX"), sass=_LINES.format("disassembly")
)
@click.option(
    "--templates",
    nargs=2,
    metavar="DIR_A DIR_B",
    help="Compare A rendered by two versions of the templates; a DIR may be: installed.",
)
@click.option("--no-compile", is_flag=True, help="Leave out PTX, SASS and resources.")
@click.option(
    "--context",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Lines around a difference.",
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 if anything differs.")
@with_output
def diff(
    output: Output,
    /,
    a: str,
    b: str | None,
    stage: str | None,
    templates: tuple[str, str] | None,
    no_compile: bool,
    context: int,
    exit_code: bool,
) -> int:
    """
    Compare two kernels: configs, derived numbers, sources, PTX, instructions, resources.

    A and B are names, first digits of keys, or files of edited kernels. Both are compiled again;
    SASS and resources of a key are those of its entry. With --templates, A is a name or a key, and
    its config is rendered from two folders; files that a folder lacks are taken from the installed
    templates.
    """
    from jitgen.cache import Store
    from jitgen.cli import diff_sides

    if stage in ("ptx", "sass") and no_compile:
        raise click.UsageError(f"--{stage} needs the compiler, which --no-compile leaves out")
    sides = _sides(Store.open(), a, b, templates)
    compiles = not no_compile and stage != "source"
    found = diff_sides.compared(*sides, compiles=compiles, context=context)
    if stage is not None and found[stage] is None:
        raise click.UsageError(f"there is no {stage}: {found['missing'][stage]}")
    same = diff_sides.is_same(found)
    left, right = sides
    a_id, b_id = (_SideId(title=each.title, kernel=each.named.id) for each in sides)
    document = _Diff(same=same, a=a_id, b=b_id, **found)

    def human() -> None:
        if stage is None:
            _print(output, left, right, found)
        elif found[stage]["diff"]:
            output.text(found[stage]["diff"])
        output.note("nothing differs" if same else f"compared {left.title} with {right.title}")

    output.report("diff", document, human)
    return ExitCode.FAILED if exit_code and not same else ExitCode.OK


def _sides(
    store: Store, a: str, b: str | None, templates: tuple[str, str] | None
) -> tuple[Side, Side]:
    from jitgen.cli.diff_sides import Side

    if b is not None and templates is None:
        return (
            Side.of(find(a, store, with_files=True), store),
            Side.of(find(b, store, with_files=True), store),
        )
    if b is not None or templates is None:
        raise click.UsageError("give two kernels, or one and --templates DIR_A DIR_B")
    if a.endswith(".py"):
        raise click.UsageError("--templates renders a config: name a kernel, not a file")
    named = find(a, store)
    return Side.rendered(named, templates[0]), Side.rendered(named, templates[1])


def _print(output: Output, a: Side, b: Side, found: dict[str, Any]) -> None:
    """Print a line for each part, then the fields and numbers that differ."""
    rows = [
        (name, "missing" if found[name] is None else _state(found[name]), _detail(name, found))
        for name in ("config", "derived", "key_document", "source", "ptx", "sass", "resources")
    ]
    columns = ["PART", "STATE", "~DETAIL"]
    output.table(columns, [(name.replace("_", " "), *rest) for name, *rest in rows])
    for name in ("config", "derived", "key_document", "resources"):
        if found[name]:
            _fields(output, name.replace("_", " "), found[name])
    for name in ("ptx", "sass"):
        numbers = (found[name] or {}).get("counts", [])
        if numbers:
            shown = [{"field": x["instruction"], **x} for x in numbers[:_MOST_COUNTS]]
            _fields(output, f"instructions of {name.upper()}", shown, is_number=True)
            if len(numbers) > _MOST_COUNTS:
                output.line(f"and {len(numbers) - _MOST_COUNTS} more; see --json")
    output.line()
    output.fields(
        [("A", f"{a.title}  {a.named.key[:12]}"), ("B", f"{b.title}  {b.named.key[:12]}")]
    )


def _state(part: Any) -> str:
    is_same = not part if isinstance(part, list) else part["same"]
    return "same" if is_same else "differs"


def _detail(name: str, found: dict[str, Any]) -> str:
    part = found[name]
    if part is None:
        return str(found["missing"][name])
    if isinstance(part, list):
        return ", ".join(each["field"] for each in part)
    return "" if part["same"] else f"+{part['added']} -{part['removed']} lines"


def _fields(
    output: Output, title: str, rows: list[dict[str, Any]], *, is_number: bool = False
) -> None:
    output.line()
    mark = ">" * is_number
    columns = [title.upper(), f"{mark}A", f"{mark}B"]
    output.table(columns, [(x["field"], _shown(x["a"]), _shown(x["b"])) for x in rows])


def _shown(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:12]}..."
