# SPDX-License-Identifier: Apache-2.0
"""Gathers the data of one kernel that a page shows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from inspect import cleandoc
from typing import TYPE_CHECKING, cast

from jitgen.codegen.partials import Part, origins
from jitgen.codegen.render import Source
from jitgen.compile import inspect
from jitgen.compile.inspect import Resources
from jitgen.config import Arch, Config
from jitgen.errors import ConfigError, RenderError, ToolchainError
from jitgen.inspect import code, emulated, hardware, measured, memory
from jitgen.inspect.code import Listing
from jitgen.inspect.emulated import Emulation
from jitgen.inspect.hardware import Occupancy
from jitgen.inspect.measured import Speed
from jitgen.inspect.memory import MemoryMap
from jitgen.runtime.spec import document
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require, target

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from jitgen.cache import Entry, Store

_ATTRIBUTE = re.compile(r" {4}(\w[\w, ]*): ")


@frozen
class Number:
    """A number that follows from a config: its name, its value, and what it means."""

    name: str
    value: int | bool
    meaning: str


@frozen
class Inspected:
    """
    The data of one kernel that a page shows.

    Attributes:
        name: Its name.
        arch: Its target.
        key: Digest of its key document.
        config: Its config in JSON form.
        numbers: Numbers that follow from the config.
        key_document: All that the artifact's bytes depend on.
        parts: The templates from which its source is made; empty if the templates of this
            installation give another source.
        listings: Source, PTX and SASS; of a kernel for the host, source and its code.
        resources: Resources of the GPU kernel; None for the host.
        shared, tensor: The maps of its shared and tensor memory; None if it has none, or the source
            does not define it.
        occupancy: How many CTAs fit on an SM; None for the host, or if the limits are not known.
        speed: Its measurements, and the problems that it is chosen for.
        emulation: Findings of the emulator; None if it did not run.
        entry: Properties of its cache entry, by name; empty if there is none.
        notes: Notes for the reader.
    """

    name: str
    arch: str
    key: str
    config: Mapping[str, object]
    numbers: tuple[Number, ...]
    key_document: Mapping[str, object]
    parts: tuple[Part, ...]
    listings: tuple[Listing, ...]
    resources: Resources | None
    shared: MemoryMap | None
    tensor: MemoryMap | None
    occupancy: Occupancy | None
    speed: Speed
    emulation: Emulation | None
    entry: Mapping[str, str]
    notes: tuple[str, ...]

    def listing(self, language: str) -> Listing | None:
        """Return the listing in a language; None where there is none."""
        return next((each for each in self.listings if each.language == language), None)


def inspected(
    source: Source,
    key: str,
    store: Store,
    entry: Entry | None,
    *,
    emulates: bool = False,
    plan_names: Sequence[str] | None = None,
) -> Inspected:
    """
    Gather the data of a kernel. Compiles its source with line information, unless that is cached.

    Args:
        source: Its source: that of the entry, or the one that the templates render now.
        key: Its key.
        store: The store of measurements.
        entry: Its entry in the cache; None if there is none.
        emulates: Whether to run it in the emulator, which takes from seconds to a minute.
        plan_names: Names of shipped plans or plan files, whose problems are searched for those that
            the kernel is chosen for; None for all shipped plans.

    Raises:
        PlanError: There is no such plan.
        UnsupportedConfig: The target cannot run the config.
        ToolchainError: Compiler, linker or nvdisasm is not installed.
        CompileError: The compiler refused the source.
        EmulationError: The kernel cannot be emulated.
    """
    config, arch = source.config, source.arch
    derived = require(config, arch).derived
    if arch.is_gpu:
        listings, found, notes = _gpu(source, entry)
    else:
        listings, found, notes = _host(source, entry, emulates=emulates)
    parts, why = _parts(source)
    family = target(arch).family
    sm = hardware.MULTIPROCESSORS.get(family)
    dynamic = int(getattr(derived, "smem_bytes", 0))
    tensor = memory.tensor(source.text, sm.tensor_columns) if sm and sm.tensor_columns else None
    occupancy = None
    if found is not None:
        occupancy = hardware.occupancy(
            family,
            registers=found.registers,
            threads=found.threads,
            # `hardware` counts the system's reserve, the cubin counts it as static memory
            shared_bytes=max(dynamic, found.shared_bytes - (sm.reserved_bytes if sm else 0)),
            tensor_columns=tensor.total if tensor else 0,
        )
    return Inspected(
        name=source.name,
        arch=str(arch),
        key=key,
        config=config.to_json(),
        numbers=tuple(numbers(derived)),
        key_document=document(config, arch) if entry is None else entry.meta.key_document,
        parts=parts,
        listings=listings,
        resources=found,
        shared=memory.shared(source.text, dynamic, sm.cta_shared_bytes) if sm else None,
        tensor=tensor,
        occupancy=occupancy,
        speed=measured.speed_of(config, arch, store, plan_names),
        emulation=_emulation(config, arch, source) if emulates and arch.is_gpu else None,
        entry=_facts(entry, store),
        notes=(*notes, *why),
    )


def _parts(source: Source) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the templates from which a source is made, or a note why there are none."""
    try:
        return origins(source).parts, ()
    except (ConfigError, RenderError) as error:
        return (), (f"Without its templates: {error}.",)


_Code = tuple[tuple[Listing, ...], Resources | None, tuple[str, ...]]


def _gpu(source: Source, entry: Entry | None) -> _Code:
    """Return what a page shows of GPU code, compiled with line information and disassembled."""
    from jitgen.verify.artifacts import compiled

    made = compiled(source)
    listings = (
        code.source(source.text),
        code.ptx(made.ptx),
        code.sass(inspect.sass(made.library, code.LINES), made.ptx),
    )
    notes = ["PTX and SASS are those of this source, compiled once more with line information."]
    if entry is not None:
        same = inspect.mnemonics(inspect.sass(entry.library)) == inspect.mnemonics(
            inspect.sass(made.library)
        )
        notes.append(
            "Its instructions are those of the entry in the cache."
            if same
            else "Its instructions are NOT those of the entry in the cache, which another compiler "
            "made."
        )
    return listings, inspect.resources(made.library), tuple(notes)


def _host(source: Source, entry: Entry | None, *, emulates: bool) -> _Code:
    """Return what a page shows of host code: no line table maps it to lines of the source."""
    listings = [code.source(source.text)]
    notes = ["Kernels for the host have no line table: source and code are not linked."]
    if emulates:
        notes.append("They run on this machine as they are, and are not emulated.")
    if entry is None:
        notes.append("It is not compiled, so there is no code to show.")
    else:
        try:
            listings.append(code.host(inspect.host_code(entry.library)))
        except ToolchainError as error:
            notes.append(f"Without its code: {error}.")
    return tuple(listings), None, tuple(notes)


def numbers(derived: object) -> list[Number]:
    """Return the fields of `derived`, each with its meaning in the docstring of its class."""
    meanings: dict[str, str] = {}
    # Fields of base classes are documented where they are declared.
    for kind in reversed(type(derived).__mro__):
        meanings |= _meanings(kind.__doc__ or "")
    return [
        Number(
            name=spec.name, value=getattr(derived, spec.name), meaning=meanings.get(spec.name, "")
        )
        for spec in dataclasses.fields(cast("DataclassInstance", derived))
    ]


def _meanings(doc: str) -> dict[str, str]:
    """Return the texts of the section ``Attributes:`` of a docstring, by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for row in cleandoc(doc).partition("Attributes:")[2].split("\n"):
        if start := _ATTRIBUTE.match(row):
            names = [name.strip() for name in start[1].split(",")]
            found |= dict.fromkeys(names, row[start.end() :].strip())
        elif row.strip() and names:
            for name in names:
                found[name] += f" {row.strip()}"
    return found


def _emulation(config: Config, arch: Arch, source: Source) -> Emulation:
    from jitgen.verify import require_numpy

    require_numpy()
    from jitgen.verify.artifacts import compiled
    from jitgen.verify.verification import verify

    return emulated.emulation(verify(config, arch, artifact=compiled(source)).to_json())


def _facts(entry: Entry | None, store: Store) -> dict[str, str]:
    if entry is None:
        return {}
    meta = entry.meta
    hits, _ = store.index.uses(meta.key)
    return {
        "directory": str(entry.directory),
        "created": meta.created,
        "compiled in": f"{meta.compile_s:.1f} s",
        "linked in": f"{meta.link_s * 1e3:.0f} ms",
        "files": ", ".join(f"{name} {file['bytes']:,} B" for name, file in meta.files.items()),
        "host part needs": ", ".join(meta.host_isa) or "nothing special",
        "made by": f"jitgen {meta.jitgen}",
        "loads from disk": str(hits),
    }
