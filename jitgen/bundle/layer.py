# SPDX-License-Identifier: Apache-2.0
"""
The layer of a bundle: entries as a store has them, below ``v1/entries``.

::

    v1/entries/ab/<key>/   meta.json  signatures.json  kernel.py  kernel.so
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
from jitgen.text import shown

_NAME = re.compile(rf"{VERSION}/entries/([0-9a-f]{{2}})/([0-9a-f]{{64}})/([a-z]+\.[a-z]+)")


def write(entries: Iterable[Entry]) -> bytes:
    """Return the tar of `entries`; equal entries give equal bytes, in whatever order they come."""
    return archive.write(_files(sorted(entries, key=lambda entry: entry.key)))


def read(data: bytes) -> tuple[Packed, ...]:
    """
    Return the entries in the tar of a layer, of which every digest was checked, by key.

    Who signed them is not looked at.

    Raises:
        Damaged: It is no tar of entries, or one of them is not what its record says.
    """
    parts: dict[str, dict[str, bytes]] = {}
    for name, content in archive.read(data).items():
        match = _NAME.fullmatch(name)
        if match is None or not match[2].startswith(match[1]):
            raise Damaged(f"the layer holds what no store does: {shown(name)}")
        parts.setdefault(match[2], {})[match[3]] = content
    return tuple(_checked(key, parts[key]) for key in sorted(parts))


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
