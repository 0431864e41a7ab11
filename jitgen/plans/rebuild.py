# SPDX-License-Identifier: Apache-2.0
"""
Compiles a kernel again and compares every byte with an entry, to find out whether the entry's
record is true.

Compiling is deterministic. So the same config, templates and toolchain give an entry with the same
bytes on any machine. An entry with other bytes was damaged in a way that digests do not detect, or
was made differently: by another compiler of the same version, by another linker, or by hand. A
person who doubts an entry can run this check, and a service runs it before it signs an entry from
another machine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from jitgen.cache.entry import LIBRARY, SOURCE
from jitgen.compile import elf
from jitgen.config import Arch, Config
from jitgen.errors import JitgenError
from jitgen.runtime.spec import KernelSpec, spec_of
from jitgen.settings import settings
from jitgen.support.frozen import frozen
from jitgen.support.text import shown
from jitgen.targets.legality import require

if TYPE_CHECKING:
    from jitgen.cache import Meta, Store
    from jitgen.compile.compile import Where

TASK = "jitgen.plans.rebuild:rebuild_task"
"""The function that `jitgen.compile.workers.run` calls."""

_MOST_SECTIONS = 6
_LINE = 80  # characters of a line that are shown


class Compared(TypedDict, total=False):
    """JSON form of a `Rebuilt`."""

    key: str
    name: str
    same: bool
    differences: list[str]
    error: str


@frozen
class Rebuilt:
    """
    The result of compiling a kernel again.

    Attributes:
        key: Its key.
        name: Its name.
        differences: A message for each difference, with its file; empty if every byte is the same.
        error: Why it could not be compiled again, so that nothing is known; empty if it was.
    """

    key: str
    name: str
    differences: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_same(self) -> bool:
        """Whether the kernel was compiled again, and every byte is the same."""
        return not self.error and not self.differences

    def to_json(self) -> Compared:
        """Return the result as JSON values."""
        return {
            "key": self.key,
            "name": self.name,
            "same": self.is_same,
            "differences": list(self.differences),
            "error": self.error,
        }


def rebuilt(
    meta: Meta,
    files: Mapping[str, bytes],
    *,
    timeout_s: float | None = None,
    where: Where | None = None,
) -> Rebuilt:
    """
    Compile what `meta` describes again, and compare it with `files`; publishes nothing.

    `meta` is not trusted: config and target are checked like those of a user, the key is computed
    again from them and from the installed versions, and the source is rendered from the templates.

    Args:
        meta: The record of an entry, its digests checked or not.
        files: The entry's files.
        timeout_s: How long the compile may take; None for JITGEN_COMPILE_TIMEOUT.
        where: Where to compile; None: in a separate process.
    """
    from jitgen.compile.compile import Where, compile_kernel

    try:
        spec = _spec(meta, files)
        artifact = compile_kernel(
            spec.config,
            spec.arch,
            where or Where.WORKER,
            timeout_s=settings.compile_timeout if timeout_s is None else timeout_s,
            text=spec.text,
        )
    except JitgenError as error:
        return Rebuilt(key=meta.key, name=meta.name, error=str(error))
    if artifact.why_private:
        return Rebuilt(key=meta.key, name=meta.name, error=artifact.why_private)
    found = [
        *_of_record(meta, {"symbol": artifact.symbol, "library": artifact.library}),
        *differences(files, artifact.files),
    ]
    return Rebuilt(key=meta.key, name=meta.name, differences=tuple(found))


def differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a message for each file in which two sets of files differ."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"{name}: it is in the entry, and compiling makes none"
        elif name not in before:
            yield f"{name}: compiling makes one, and the entry has none"
        elif before[name] != after[name]:
            yield f"{name}: {_COMPARE.get(name, _bytes)(before[name], after[name])}"


def _spec(meta: Meta, files: Mapping[str, bytes]) -> KernelSpec:
    """
    Return the spec of the kernel that `meta` describes, as this machine would compile it. The
    source of an edited kernel comes from the entry, and must have the digest that its key names.

    Raises:
        JitgenError: It is not a legal kernel, or its key on this machine would be different.
    """
    from jitgen.cache.inventory import nearest

    config, arch = Config.from_json(meta.config), Arch.parse(meta.arch)
    require(config, arch)
    text = files[SOURCE].decode("utf-8", "replace") if meta.is_edited else ""
    spec = spec_of(config, arch, text)
    if spec.key != meta.key:
        ((_, fields),) = nearest([meta], spec.document, 1)
        other = ", ".join(
            f"{each.field} is {shown(each.found)} there and {shown(each.wanted)} here"
            for each in fields
        )
        raise JitgenError(f"it cannot be compiled again here: {other}")
    return spec


def _of_record(meta: Meta, after: Mapping[str, str]) -> Iterator[str]:
    for field, value in {**after, "name": after["symbol"]}.items():
        if (found := getattr(meta, field)) != value:
            yield f"meta.json: {field} is {shown(found)}, and compiling makes {shown(value)}"


def _text(before: bytes, after: bytes) -> str:
    """Return a message with the first line in which two sources differ."""
    lines = [data.decode("utf-8", "replace").splitlines() for data in (before, after)]
    at = next(
        (n for n, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]),
        min(map(len, lines)),
    )
    old, new = (shown(each[at][:_LINE]) if at < len(each) else "nothing" for each in lines)
    return f"line {at + 1} is {old}, and is rendered as {new}"


def _bytes(before: bytes, after: bytes) -> str:
    """Return a message with the sizes of two files and the first byte that differs."""
    shorter = min(len(before), len(after))
    at = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    return f"{len(before)} bytes, compiled anew {len(after)}; the first other one is at {at}"


def _library(before: bytes, after: bytes) -> str:
    """Return a message with the first byte and the sections in which two libraries differ."""
    try:
        old, new = (
            {section.name: section.content for section in elf.sections(data)}
            for data in (before, after)
        )
    except (struct.error, ValueError, IndexError):  # not even an ELF file, whatever else it is
        return _bytes(before, after)
    other = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    more = f" and {len(other) - _MOST_SECTIONS} more" if len(other) > _MOST_SECTIONS else ""
    where = f"; other sections: {', '.join(other[:_MOST_SECTIONS])}{more}" if other else ""
    return _bytes(before, after) + where


_COMPARE = {SOURCE: _text, LIBRARY: _library}


class RebuildTask(TypedDict):
    """An entry, the root that has it, and settings that the compile reads."""

    root: str
    key: str
    settings: dict[str, list[str]]


def rebuild_task_of(store: Store, key: str) -> RebuildTask:
    """Return the task that compiles entry `key` of `store` again, in a worker process."""
    return {
        "root": str(store.root),
        "key": key,
        "settings": {
            "base": [str(path) for path in settings.base],
            "trust_shared": [str(path) for path in settings.trust_shared],
            "plugins": list(settings.plugins),
        },
    }


def rebuild_task(task: RebuildTask) -> Compared:
    """Run the task of `rebuild_task_of`; returns `Rebuilt.to_json`."""
    from jitgen.cache import Store
    from jitgen.compile.compile import Where

    with settings.scope(**task["settings"]):
        entry = Store.open(Path(task["root"]), mode="ro").read(task["key"])
        if entry is None:
            gone = (
                "the cache holds no good entry of it, so there is nothing to compare with: "
                "compile it first, with jitgen prewarm"
            )
            return Rebuilt(key=task["key"], name="", error=gone).to_json()
        # Nothing else lives in this process, so it is as good as another one of its own.
        return rebuilt(entry.meta, entry.files, where=Where.PROCESS).to_json()
