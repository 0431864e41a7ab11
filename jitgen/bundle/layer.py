# SPDX-License-Identifier: Apache-2.0
"""
The layer of a bundle: entries below ``v1/entries``, and the plans that they cover, both in the
layout of a prewarmed store.

::

    v1/entries/ab/<key>/                   meta.json  signatures.json  kernel.py  kernel.so
    v1/prewarmed/<target>/plans/<name>.json
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jitgen.bundle import archive
from jitgen.cache.entry import META, SIGNATURES, Entry
from jitgen.cache.folder import Damaged
from jitgen.cache.root import VERSION
from jitgen.remote import wire
from jitgen.remote.wire import Packed
from jitgen.runtime.coverage import BadCoverage, Coverage
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.text import shown

_NAME = re.compile(rf"{VERSION}/entries/([0-9a-f]{{2}})/([0-9a-f]{{64}})/([a-z]+\.[a-z]+)")
_NOTE = re.compile(rf"{VERSION}/prewarmed/([a-z0-9_]+)/plans/([a-z0-9-]+)\.json")
_MAX_NOTE_BYTES = 2**16


def write(entries: Iterable[Entry], notes: Iterable[Coverage] = ()) -> bytes:
    """
    Return the tar of `entries` and of `notes` on the plans that they cover; the order of the
    arguments does not change the bytes.
    """
    files = [*_files(sorted(entries, key=lambda entry: entry.key))]
    said = {
        f"{VERSION}/prewarmed/{note.arch}/plans/{note.file}.json": canonical_json(note.to_json())
        for note in notes
    }
    files += [(name, said[name].encode("ascii")) for name in sorted(said)]
    return archive.write(files)


def read(data: bytes) -> tuple[tuple[Packed, ...], tuple[Coverage, ...]]:
    """
    Return the entries in the tar of a layer, sorted by key, and the notes on their plans.

    Every digest is checked. Signatures are not, and the notes are not signed.

    Raises:
        Damaged: It is not a tar of entries, an entry differs from its record, or a note on a plan
            is malformed.
    """
    parts: dict[str, dict[str, bytes]] = {}
    notes: list[Coverage] = []
    for name, content in archive.read(data).items():
        if (match := _NOTE.fullmatch(name)) is not None:
            notes.append(_note(match[1], match[2], content))
            continue
        match = _NAME.fullmatch(name)
        if match is None or not match[2].startswith(match[1]):
            raise Damaged(f"the layer holds what no store does: {shown(name)}")
        parts.setdefault(match[2], {})[match[3]] = content
    return tuple(_checked(key, parts[key]) for key in sorted(parts)), tuple(notes)


def _note(arch: str, name: str, content: bytes) -> Coverage:
    try:
        found = Coverage.from_json(parse_json(content, max_bytes=_MAX_NOTE_BYTES))
    except (BadDocument, BadCoverage) as error:
        raise Damaged(f"what the layer says of a plan: {error}") from None
    if (str(found.arch), found.file) != (arch, name):
        raise Damaged("what the layer says of a plan has the name of something else")
    return found


def _checked(key: str, files: dict[str, bytes]) -> Packed:
    record, signatures = files.pop(META, b""), files.pop(SIGNATURES, b"")
    try:
        return wire.checked(record, files, key, signatures)
    except Damaged as damage:
        raise Damaged(f"entry {key[:12]} of the layer: {damage}") from None


def _files(entries: Iterable[Entry]) -> Iterator[tuple[str, bytes]]:
    for entry in entries:
        files = {META: entry.meta.encode()}
        files |= {SIGNATURES: entry.signatures} if entry.signatures else {}
        for name, data in (files | dict(sorted(entry.files.items()))).items():
            yield f"{VERSION}/entries/{entry.key[:2]}/{entry.key}/{name}", data
