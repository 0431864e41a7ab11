# SPDX-License-Identifier: Apache-2.0
"""``jitgen show``: the source, PTX, SASS, resources or key of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from jitgen.cache.entry import EDITED
from jitgen.cli.kernels import document_of, entry_of, source_of
from jitgen.cli.lookup import KernelId, Named, find
from jitgen.cli.options import with_output, with_stage
from jitgen.cli.output import Output, human_time
from jitgen.cli.paths import TO_WRITE, write_text
from jitgen.errors import ConfigError
from jitgen.support import vocabulary as v
from jitgen.support.codec import absent, inline, like
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require, rules

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.codegen.render import Source


@frozen
class _EntryFacts:
    """JSON form of what is known about an entry of the cache."""

    directory: v.File
    created: v.When
    compile_s: v.Seconds
    link_s: v.Seconds
    files: Annotated[Mapping[str, v.Bytes], v.by("file")]
    host_isa: Sequence[str]
    jitgen: str
    edited: bool


@frozen
class _Summary:
    kernel: KernelId = inline()
    config: v.ConfigValues
    derived: v.DerivedValues
    entry: _EntryFacts | None
    invariant: v.Invariant
    override: v.File | None
    file: v.File | None = absent()


@frozen
class _Origin:
    """A line of a template's file, counted from 1."""

    partial: v.File
    line: v.Count


@frozen
class _SourceText:
    """Output of ``show --source``; with ``--from`` the origin of each line, or null."""

    kernel: KernelId = inline()
    source: str
    origins: Sequence[_Origin | None] | None = absent()
    file: v.File | None = absent()


@frozen
class _Part:
    """A file of a template, and the first and last line of the source that it makes."""

    partial: v.File
    depth: v.Count
    first: int | None
    last: int | None
    own_lines: v.Count


@frozen
class _Partials:
    kernel: KernelId = inline()
    partials: Sequence[_Part]
    file: v.File | None = absent()


@frozen
class _Ptx:
    """Output of ``show --ptx``; with ``--line-info`` the source line of each line, or null."""

    kernel: KernelId = inline()
    ptx: str
    lines: Sequence[int | None] | None = absent()
    file: v.File | None = absent()


@frozen
class _Sass:
    """Output of ``show --sass``; with ``--line-info`` the source line of each line, or null."""

    kernel: KernelId = inline()
    sass: str
    lines: Sequence[int | None] | None = absent()
    file: v.File | None = absent()


@frozen
class _Resources:
    kernel: KernelId = inline()
    resources: v.Values
    file: v.File | None = absent()


@frozen
class _KeyDocument:
    kernel: KernelId = inline()
    key_document: v.Values
    file: v.File | None = absent()


@click.command()
@click.argument("config_or_key", metavar="CONFIG|KEY|FILE")
@with_stage(
    source="The generated Python source.",
    partials="The templates that the source is made of, and the lines that each makes.",
    ptx="The PTX (GPU targets).",
    sass="The disassembly (GPU targets; needs jitgen[inspect]).",
    resources="Registers, stack, shared memory, barriers (GPU targets).",
    key="The key alone.",
)
@click.option(
    "--line-info",
    is_flag=True,
    help="With --ptx or --sass: the source line of each instruction.",
)
@click.option(
    "--from",
    "with_origins",
    is_flag=True,
    help="With --source: the template, and its line, of each line.",
)
@click.option("-o", "--output", "file", type=TO_WRITE, help="Write to FILE.")
@with_output
def show(
    output: Output,
    config_or_key: str,
    *,
    stage: str | None,
    file: Path | None,
    line_info: bool,
    with_origins: bool,
) -> None:
    """
    Show a kernel, named by its config, by the first digits of its key, or by the FILE.py of an
    edited one.

    Without a flag, the known facts about the kernel are printed. If machine code is requested, a
    kernel that is not in the cache is compiled; the source and the key need no compiler. With
    --line-info the source is compiled again, to the same instructions, and each line is printed
    before its instructions. --partials and --from need a source that the installed templates
    render: not an edited one, or one of another version.
    """
    from jitgen.cache import Store

    store = Store.open()
    named = find(config_or_key, store, with_files=True)
    require(named.config, named.arch)
    if line_info and stage not in _LINED:
        raise click.UsageError("--line-info goes with --ptx or --sass")
    if with_origins and stage != "source":
        raise click.UsageError("--from goes with --source")
    if stage in ("ptx", "sass", "resources") and not named.arch.is_gpu:
        raise ConfigError(f"{named.name} runs on the host: it has a source, but no {stage}")
    shown = _LINED[stage or ""] if line_info else _SHOWN[stage or "summary"]
    if with_origins:
        shown = _source_with_origins
    document, text = shown(store, named, output)
    if file is not None:
        write_text(file, text.rstrip("\n") + "\n")
        output.note(f"wrote {file}")
        document = replace(document, file=file)
    output.report("show", document, lambda: None if file is not None else output.text(text))


def _summary(store: Store, named: Named, output: Output) -> tuple[_Summary, str]:
    """
    Return the facts that are known without compiling: derived numbers, and the entry if there is
    one.
    """
    from jitgen.runtime.override import found

    derived = require(named.config, named.arch).numbers
    rows = [("name", named.name), ("arch", str(named.arch)), ("key", named.key)]
    rows += [(name.replace("_", " "), str(value)) for name, value in derived.items()]
    order = rules(named.arch, named.config.op).sums
    departure = order.departure(named.config)
    rows.append(("sums", f"not invariant: {departure}" if departure else f"{order.words}"))
    used = None if named.is_key or named.text else found(named.config, named.arch)
    if used is not None:
        rows.append(("calls use", f"{used.path}, as JITGEN_OVERRIDE says"))
    entry = store.read(named.key)
    facts: _EntryFacts | None = None
    if entry is None:
        rows.append(("cached", "no"))
    else:
        meta = entry.meta
        facts = like(
            _EntryFacts,
            meta,
            directory=str(entry.directory),
            files={name: record["bytes"] for name, record in meta.files.items()},
            edited=meta.is_edited,
        )
        if meta.is_edited:
            rows.append(("source", "edited by a person; it stays on this machine"))
        rows.append(("cached", str(entry.directory)))
        rows.append(("compiled", f"{meta.created}, in {human_time(meta.compile_s)}"))
        rows += [(name, output.size(size)) for name, size in facts.files.items()]
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    document = _Summary(
        kernel=named.id,
        config=named.config.to_json(),
        derived=derived,
        entry=facts,
        invariant=not departure,
        override=None if used is None else used.path,
    )
    return document, text


def _source(store: Store, named: Named, _: Output) -> tuple[_SourceText, str]:
    text = source_of(store, named).text
    return _SourceText(kernel=named.id, source=text), text


def _source_with_origins(store: Store, named: Named, _: Output) -> tuple[_SourceText, str]:
    from jitgen.codegen.partials import origins

    source = source_of(store, named)
    found = origins(source).lines
    margins, before = [], ""
    for origin in found:
        name = "" if origin is None or origin.partial == before else origin.partial
        before = before if origin is None else origin.partial
        margins.append("" if origin is None else f"{name}:{origin.line}")
    width = max(map(len, margins))
    rows = zip(margins, source.text.rstrip("\n").split("\n"), strict=True)
    text = "\n".join(f"{margin:>{width}} | {row}".rstrip() for margin, row in rows)
    document = _SourceText(
        kernel=named.id,
        source=source.text,
        origins=[None if each is None else like(_Origin, each) for each in found],
    )
    return document, text


def _partials(store: Store, named: Named, _: Output) -> tuple[_Partials, str]:
    from jitgen.codegen.partials import origins

    found = origins(source_of(store, named)).parts
    lines = ["-" if part.first is None else f"{part.first}-{part.last}" for part in found]
    width = max(map(len, lines))
    text = "\n".join(
        f"{line:>{width}}  {part.own_lines:>5}  {'  ' * part.depth}{part.partial}"
        for line, part in zip(lines, found, strict=True)
    )
    head = f"{'lines':>{width}}    own  template"
    document = _Partials(kernel=named.id, partials=[like(_Part, part) for part in found])
    return document, f"{head}\n{text}"


def _ptx(store: Store, named: Named, _: Output) -> tuple[_Ptx, str]:
    from jitgen.compile import inspect

    text = inspect.ptx(source_of(store, named))
    return _Ptx(kernel=named.id, ptx=text), text


def _sass(store: Store, named: Named, output: Output) -> tuple[_Sass, str]:
    from jitgen.compile import inspect

    text = inspect.sass(entry_of(store, named, output).library)
    return _Sass(kernel=named.id, sass=text), text


def _ptx_by_line(store: Store, named: Named, _: Output) -> tuple[_Ptx, str]:
    from jitgen.compile import by_line

    found = by_line.ptx(source_of(store, named))
    return _Ptx(kernel=named.id, ptx=found.text, lines=found.lines), found.text


def _sass_by_line(store: Store, named: Named, _: Output) -> tuple[_Sass, str]:
    from jitgen.compile import by_line

    found = by_line.sass(source_of(store, named))
    return _Sass(kernel=named.id, sass=found.text, lines=found.lines), found.text


def _resources(store: Store, named: Named, output: Output) -> tuple[_Resources, str]:
    from jitgen.compile import inspect

    entry, source = entry_of(store, named, output), source_of(store, named)
    found = inspect.resources(entry.library)
    lines = inspect.spill_lines(source) if found.spill_instructions else {}
    resources = {
        **asdict(found),
        **inspect.wgmmas(entry.library),
        "spill_lines": {str(line): number for line, number in lines.items()},
        "dynamic_shared_bytes": _dynamic_shared_bytes(store, named, entry, source),
    }
    words = {
        **resources,
        "spill_lines": ", ".join(f"{n} x line {line}" for line, n in lines.items()),
    }
    if not lines:
        del words["spill_lines"]
    width = max(map(len, words))
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in words.items())
    return _Resources(kernel=named.id, resources=resources), text


def _dynamic_shared_bytes(store: Store, named: Named, entry: Entry, source: Source) -> int:
    """Return the dynamic shared memory of the launch, which machine code does not contain."""
    if EDITED in document_of(store, named):
        from jitgen.verify import require_numpy

        require_numpy()  # the emulator's stub runs the launch
        from jitgen.verify.launched import dynamic_shared_bytes

        return dynamic_shared_bytes(entry, source)
    return getattr(require(named.config, named.arch).derived, "smem_bytes", 0)


def _key(store: Store, named: Named, _: Output) -> tuple[_KeyDocument, str]:
    return _KeyDocument(kernel=named.id, key_document=document_of(store, named)), named.key


_Document = _Summary | _SourceText | _Ptx | _Sass | _Resources | _KeyDocument | _Partials
_Shown = Callable[["Store", Named, Output], tuple[_Document, str]]
_SHOWN: dict[str, _Shown] = {
    "summary": _summary,
    "source": _source,
    "partials": _partials,
    "ptx": _ptx,
    "sass": _sass,
    "resources": _resources,
    "key": _key,
}
_LINED: dict[str, _Shown] = {"ptx": _ptx_by_line, "sass": _sass_by_line}
"""What makes the parts that can be shown with lines of the source."""
