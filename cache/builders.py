# SPDX-License-Identifier: Apache-2.0
"""
Records which compiler and linker publish to a store.

::

    <root>/v1/builders/<versions>     digests of the first builder that published for them
    <root>/v1/builders/<fingerprint>  the digest that goes with files of these sizes and times

A key names versions, so two processes with equal versions publish under equal keys. If their
installations differ, only the first to publish may go on publishing.

Each record begins with its own SHA-256: a damaged one is ignored, and does not end publishing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jitgen.cache.entry import Meta, is_key
from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.cache.root import Root
from jitgen.errors import CacheError
from jitgen.events import warn_once
from jitgen.support.documents import BadDocument, canonical_json, parse_json

_FOLDER = "builders"
_MAX_BYTES = 4096


class Builders:
    """The records of builders under one root; no method raises because of the disk."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def digest(self, fingerprint: str) -> str | None:
        """Return the digest that is stored for a fingerprint, if there is one."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base, base.folder(_FOLDER) as folder:
                    found = _unsealed(folder.read(fingerprint, _MAX_BYTES))
                    text = "" if found is None else found.decode("ascii", "replace")
                    return text if is_key(text) else None
        return None

    def remember(self, fingerprint: str, digest: str) -> None:
        """Store `digest` under `fingerprint`."""
        with (
            suppress(OSError, CacheError),
            self._root.create() as base,
            base.service("tmp") as drafts,
            base.service(_FOLDER) as folder,
        ):
            folder.replace(fingerprint, _sealed(digest.encode("ascii")), drafts, sync=False)

    def count(self) -> int:
        """Return how many records there are."""
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base, base.folder(_FOLDER) as folder:
                    return len(folder.names())
        return 0

    def forget(self) -> int:
        """
        Remove all records, so that the next process to publish is the first; returns their number.
        """
        with suppress(OSError, CacheError):
            base = self._root.open()
            if base is not None:
                with base, base.folder(_FOLDER) as folder:
                    return sum(folder.discard(name) for name in folder.names())
        return 0


def other_builder(base: Folder, meta: Meta, root: Path) -> str:
    """
    Return why the builder of an entry may not publish to `base`, warning once; empty if it may.

    Raises:
        OSError, Damaged: The record cannot be read or written.
    """
    differs = _difference(base, meta.key_document, meta.builder) if meta.builder else ""
    if not differs:
        return ""
    reason = (
        f"the {differs} here is not what first published kernels of these versions to {root}, "
        "though the versions are equal"
    )
    warn_once(
        "builder",
        "kernels compiled now are not kept: %s; reinstall it, or if this one is right: "
        "jitgen cache adopt",
        reason,
    )
    return reason


def _difference(base: Folder, document: Mapping[str, object], builder: Mapping[str, str]) -> str:
    """
    Return which parts of `builder` (compiler, linker) differ from the first recorded builder of the
    versions in `document`, joined by "and"; empty if none does.

    If no builder is recorded for these versions, `builder` is recorded as the first.
    """
    versions = {name: document.get(name) for name in ("toolchain", "options", "host")}
    name = hashlib.sha256(canonical_json(versions).encode("ascii")).hexdigest()
    with base.service(_FOLDER) as folder:
        first = _record(folder, name)
        if first is None:
            text = json.dumps(dict(builder), sort_keys=True).encode("ascii")
            with base.service("tmp") as drafts:
                folder.discard(name)  # there may be a damaged record
                _write_first(folder, name, _sealed(text), drafts)
            first = _record(folder, name) or dict(builder)
    return " and ".join(part for part in sorted(builder) if first.get(part) != builder[part])


def _write_first(folder: Folder, name: str, text: bytes, drafts: Folder) -> None:
    """
    Write a record unless another process has written it first: then the record is already there and
    complete.
    """
    draft = unique_name()
    drafts.write(draft, text)
    try:
        with suppress(FileExistsError):
            os.link(draft, name, src_dir_fd=drafts.descriptor, dst_dir_fd=folder.descriptor)
    except OSError:  # a file system without links: the last one wins
        drafts.move(draft, folder, name)
    drafts.discard(draft)


def _record(folder: Folder, name: str) -> dict[str, str] | None:
    try:
        found = parse_json(_unsealed(folder.read(name, _MAX_BYTES)) or b"")
    except (FileNotFoundError, PermissionError, Damaged, BadDocument):
        return None  # any other OSError is raised: this builder must not replace an unknown one
    is_record = isinstance(found, dict) and all(type(text) is str for text in found.values())
    return found if is_record else None


def _sealed(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode("ascii") + b"\n" + content


def _unsealed(data: bytes) -> bytes | None:
    """Return the content inside `data`, which `_sealed` made; None if `data` is anything else."""
    content = data.partition(b"\n")[2]
    return content if data == _sealed(content) else None
