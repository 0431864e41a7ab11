# SPDX-License-Identifier: Apache-2.0
"""The two kernels that ``jitgen diff`` compares, each from config to machine code."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitgen.cli.kernels import document_of, source_of
from jitgen.cli.lookup import Named
from jitgen.codegen.parameters import template_of
from jitgen.codegen.render import Source, render
from jitgen.errors import ConfigError, ToolchainError
from jitgen.targets.legality import require

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.compile.compiler import Artifact

INSTALLED = "installed"
"""Name for the folder of jitgen's own templates."""

_PTX = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\s.*;", re.MULTILINE)
"""An instruction of PTX, without predicate and operands; directives begin with a point."""


@dataclasses.dataclass(frozen=True)
class Side:
    """
    One of the two kernels that are compared.

    Attributes:
        title: The text that the user typed.
        named: The kernel that it names.
        source: Its source.
        library: Its machine code, if the cache has it under the given key; otherwise it is
            compiled.
        document: Its key document; empty if other templates rendered it.
    """

    title: str
    named: Named
    source: Source
    library: bytes = dataclasses.field(default=b"", repr=False)
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, named: Named, store: Store) -> Side:
        """Return a kernel that the user named."""
        require(named.config, named.arch)
        entry = store.read(named.key) if named.is_key else None
        return cls(
            title=named.title,
            named=named,
            source=source_of(store, named),
            library=b"" if entry is None else entry.library,
            document=document_of(store, named),
        )

    @classmethod
    def rendered(cls, named: Named, folder: str) -> Side:
        """
        Return the config of `named`, rendered with the templates in `folder`.

        Raises:
            ConfigError: The folder lacks the template of the config.
            RenderError: The template fails.
        """
        require(named.config, named.arch)
        root = None if folder == INSTALLED else Path(folder).resolve()
        entry = template_of(named.config, named.arch).entry
        if root is not None and not (root / entry).is_file():
            raise ConfigError(
                f"{folder} has no template {entry}: name a folder such as jitgen's templates, or "
                f"{INSTALLED} for those"
            )
        source = render(named.config, named.arch, root)
        return cls(title=folder, named=named, source=source)

    @cached_property
    def derived(self) -> dict[str, Any]:
        """The numbers that the target's rules derive from the config."""
        return require(self.named.config, self.named.arch).numbers

    @cached_property
    def artifact(self) -> Artifact:
        """The compiled source, which is not stored in the cache."""
        from jitgen.compile import compiler

        return compiler.compile_source(self.source, wants_ptx=self.named.arch.is_gpu, links=False)

    @property
    def machine(self) -> bytes:
        """The machine code in the cache; if there is none, that of the compiled source."""
        return self.library or self.artifact.files[self.artifact.library]


def fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each field in which two documents differ, by its path, with both values."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    return [
        {"field": name, "a": left.get(name), "b": right.get(name)}
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def text(a: str, b: str, titles: tuple[str, str], context: int) -> dict[str, Any]:
    """Return the number of lines in which two texts differ, and these lines."""
    rows = [*unified_diff(a.splitlines(), b.splitlines(), *titles, n=context, lineterm="")]
    changes = rows[2:]
    return {
        "same": a == b,
        "added": sum(row.startswith("+") for row in changes),
        "removed": sum(row.startswith("-") for row in changes),
        "diff": "\n".join(rows),
    }


def counts(a: Mapping[str, int], b: Mapping[str, int]) -> list[dict[str, Any]]:
    """
    Return each instruction whose count differs between two codes, the largest difference first.
    """
    found = [
        {"instruction": name, "a": a.get(name, 0), "b": b.get(name, 0)}
        for name in a.keys() | b.keys()
        if a.get(name, 0) != b.get(name, 0)
    ]
    return sorted(found, key=lambda x: (-abs(x["a"] - x["b"]), x["instruction"]))


def compared(a: Side, b: Side, *, compiles: bool, context: int) -> dict[str, Any]:
    """
    Return how two kernels differ, part by part; a part that is not available is None, and
    `missing` has the reason.

    Raises:
        JitgenError: A kernel does not compile.
    """
    titles = (a.title, b.title)
    found: dict[str, Any] = {
        "config": fields(
            {"arch": str(a.named.arch), **a.named.config.to_json()},
            {"arch": str(b.named.arch), **b.named.config.to_json()},
        ),
        "derived": fields(a.derived, b.derived),
        "key_document": _of_key(a, b),
        "source": text(a.source.text, b.source.text, titles, context),
        **dict.fromkeys(("ptx", "sass", "resources")),
    }
    missing: dict[str, str] = {}
    reason = "" if compiles else "--no-compile"
    if compiles and not (a.named.arch.is_gpu and b.named.arch.is_gpu):
        reason = "kernels of the host have none"
    if reason:
        return {**found, "missing": dict.fromkeys(("ptx", "sass", "resources"), reason)}
    found["ptx"] = _ptx(a, b, context)
    for name, part in (("resources", _resources), ("sass", _sass)):
        try:
            found[name] = part(a, b, context)
        except ToolchainError as error:
            missing[name] = str(error)
    return {**found, "missing": missing}


def is_same(found: Mapping[str, Any]) -> bool:
    """Return whether all compared parts are equal."""
    parts = [found[name] for name in ("source", "ptx", "sass") if found[name] is not None]
    lists = [found[name] or [] for name in ("config", "derived", "key_document", "resources")]
    return all(part["same"] for part in parts) and not any(lists)


def _of_key(a: Side, b: Side) -> list[dict[str, Any]]:
    """
    Return the differences of the two key documents, except those of config and derived numbers.
    """
    if not (a.document and b.document):
        return []
    told = ("config.", "derived")
    return [x for x in fields(a.document, b.document) if not x["field"].startswith(told)]


def _ptx(a: Side, b: Side, context: int) -> dict[str, Any]:
    texts = a.artifact.ptx, b.artifact.ptx
    numbers = [Counter(name.partition(".")[0] for name in _PTX.findall(each)) for each in texts]
    return {**text(*texts, (a.title, b.title), context), "counts": counts(*numbers)}


def _sass(a: Side, b: Side, context: int) -> dict[str, Any]:
    from jitgen.compile import inspect

    texts = inspect.sass(a.machine), inspect.sass(b.machine)
    numbers = [inspect.instruction_counts(each) for each in texts]
    return {**text(*texts, (a.title, b.title), context), "counts": counts(*numbers)}


def _resources(a: Side, b: Side, _: int) -> list[dict[str, Any]]:
    from jitgen.compile import inspect

    return fields(*(dataclasses.asdict(inspect.resources(side.machine)) for side in (a, b)))


def _leaves(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
