# SPDX-License-Identifier: Apache-2.0
"""``jitgen show``: one kernel, as source, PTX, SASS, resources or key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jitgen.cli.lookup import Named, find
from jitgen.cli.options import with_output
from jitgen.cli.output import Output, human_time
from jitgen.errors import ConfigError, KernelMiss
from jitgen.settings import settings
from jitgen.targets.legality import require

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.codegen.render import Source


def _stage(name: str, text: str) -> Callable[[Decorated], Decorated]:
    return click.option(f"--{name}", "stage", flag_value=name, help=text)


@click.command()
@click.argument("config_or_key", metavar="CONFIG-or-KEY")
@_stage("source", "The generated Python source.")
@_stage("ptx", "The PTX (GPU targets).")
@_stage("sass", "The disassembly (GPU targets; needs jitgen[inspect]).")
@_stage("resources", "Registers, stack, shared memory, barriers (GPU targets).")
@_stage("key", "The key alone.")
@click.option(
    "-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE."
)
@with_output
def show(output: Output, config_or_key: str, stage: str | None, file: Path | None) -> None:
    """
    Show a kernel, named by its config or by the first digits of its key.

    Without a flag: what is known about it. A kernel that is not in the cache is compiled where
    machine code is asked for; the source and the key need no compiler.
    """
    from jitgen.cache import Store

    store = Store.open()
    named = find(config_or_key, store)
    require(named.config, named.arch)
    if stage in ("ptx", "sass", "resources") and not named.arch.is_gpu:
        raise ConfigError(f"{named.name} runs on the host: it has a source, but no {stage}")
    document, text = _SHOWN[stage or "summary"](store, named, output)
    if file is not None:
        try:
            file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        except OSError as error:
            raise click.FileError(str(file), error.strerror or "cannot be written") from error
        output.note(f"wrote {file}")
        document = {**document, "file": str(file)}
    output.result(
        "show",
        {**named.to_json(), **document},
        lambda: None if file is not None else output.text(text),
    )


def _summary(store: Store, named: Named, output: Output) -> tuple[dict[str, Any], str]:
    """What is known without compiling: derived numbers, and the entry if there is one."""
    derived = dataclasses.asdict(require(named.config, named.arch).derived)  # type: ignore[call-overload]
    rows = [("name", named.name), ("arch", str(named.arch)), ("key", named.key)]
    rows += [(name.replace("_", " "), str(value)) for name, value in derived.items()]
    entry = store.read(named.key)
    facts: dict[str, Any] | None = None
    if entry is None:
        rows.append(("cached", "no"))
    else:
        meta = entry.meta
        facts = {
            "directory": str(entry.directory),
            "created": meta.created,
            "compile_s": meta.compile_s,
            "link_s": meta.link_s,
            "files": {name: record["bytes"] for name, record in meta.files.items()},
            "host_isa": list(meta.host_isa),
            "jitgen": meta.jitgen,
        }
        rows.append(("cached", str(entry.directory)))
        rows.append(("compiled", f"{meta.created}, in {human_time(meta.compile_s)}"))
        rows += [(name, output.size(size)) for name, size in facts["files"].items()]
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    return {"config": named.config.to_json(), "derived": derived, "entry": facts}, text


def _source(store: Store, named: Named, _: Output) -> tuple[dict[str, Any], str]:
    text = _rendered(store, named).text
    return {"source": text}, text


def _ptx(store: Store, named: Named, _: Output) -> tuple[dict[str, Any], str]:
    from jitgen.compile import inspect

    text = inspect.ptx(_rendered(store, named))
    return {"ptx": text}, text


def _sass(store: Store, named: Named, output: Output) -> tuple[dict[str, Any], str]:
    from jitgen.compile import inspect

    text = inspect.sass(_entry(store, named, output).library)
    return {"sass": text}, text


def _resources(store: Store, named: Named, output: Output) -> tuple[dict[str, Any], str]:
    from jitgen.compile import inspect

    found = inspect.resources(_entry(store, named, output).library)
    derived = require(named.config, named.arch).derived
    lines = inspect.spill_lines(_rendered(store, named)) if found.spill_instructions else {}
    resources = {
        **dataclasses.asdict(found),
        "spill_lines": {str(line): number for line, number in lines.items()},
        # a property of the launch, which machine code does not hold
        "dynamic_shared_bytes": getattr(derived, "smem_bytes", 0),
    }
    words = {
        **resources,
        "spill_lines": ", ".join(f"{n} x line {line}" for line, n in lines.items()),
    }
    if not lines:
        del words["spill_lines"]
    width = max(map(len, words))
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in words.items())
    return {"resources": resources}, text


def _key(_: Store, named: Named, __: Output) -> tuple[dict[str, Any], str]:
    from jitgen.runtime.spec import document

    return {"key_document": document(named.config, named.arch)}, named.key


_SHOWN = {
    "summary": _summary,
    "source": _source,
    "ptx": _ptx,
    "sass": _sass,
    "resources": _resources,
    "key": _key,
}


def _rendered(store: Store, named: Named) -> Source:
    """Return the source: of the entry whose key was given, else as the templates render it now."""
    from jitgen.codegen.render import Source, render

    entry = store.read(named.key) if named.is_key else None
    if entry is None:
        return render(named.config, named.arch)
    text = entry.source
    config = named.config
    return Source(config=config, arch=named.arch, name=named.name, text=text, entry=config.op)


def _entry(store: Store, named: Named, output: Output) -> Entry:
    """Return the compiled entry; compile it where the cache has none and the settings allow it."""
    entry = store.read(named.key)
    if entry is not None:
        return entry
    if settings.on_miss == "error":
        raise KernelMiss(
            named.name, f"{named.name} is not compiled, and compiling is off (JITGEN_ON_MISS=error)"
        )
    from jitgen.runtime.entries import build
    from jitgen.runtime.spec import spec_of
    from jitgen.runtime.tiers import Tiers

    output.note(f"compiling {named.name}")
    return build(Tiers(store), spec_of(named.config, named.arch))[0]
