# SPDX-License-Identifier: Apache-2.0
"""
An entry: its files, the ``meta.json`` that describes them, and how both are read and written.

``meta.json`` is indented JSON for people to read. Its ``digest`` field is the SHA-256 of the file's
own bytes with that digest written as zeros, so that every flipped bit is detected, even in a time
or in white space. Every byte of an entry is checked when it is read, and entries are written so
that they survive a power failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Self, TypedDict, TypeGuard

from jitgen.cache.folder import Damaged, Folder, unique_name
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

SCHEMA = 1
META = "meta.json"
SOURCE = "kernel.py"
LIBRARY = "kernel.so"
OBJECT = "kernel.o"
"""Native code that a process uses itself if there is no linker; never in a store."""

SIGNATURES = "signatures.json"
"""
Signatures of the record, see `jitgen.signing`; a file of their own, so that more can be added.
"""

LIMITS = {SOURCE: 2**22, LIBRARY: 2**26, OBJECT: 2**26, META: 2**18, SIGNATURES: 2**16}
"""
Largest size of each file in bytes, a hundred times what is usual; a larger one is not even read.
Nothing else is ever opened.
"""

EDITED = "override"
"""Field of a key document: SHA-256 of an edited source. Such an entry never leaves this cache."""

_HEX64 = re.compile(r"[0-9a-f]{64}")
_NO_DIGEST = b"0" * 64
# Unique in the file: nested fields are indented more, and JSON text contains no line breaks.
_DIGEST_FIELD = b'\n  "digest": "%b"'


def is_key(text: object) -> TypeGuard[str]:
    """Return whether `text` is a key: 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _HEX64.fullmatch(text) is not None


def check_key(key: str) -> str:
    """
    Return `key`, which is then safe as a file name.

    Raises:
        ValueError: `key` is not a key.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is no key: a key is 64 hexadecimal digits in lower case")
    return key


def key_of(document: Mapping[str, object]) -> str:
    """Return the key of a key document: the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()


class FileRecord(TypedDict):
    """The record of a file: its digest, and its size."""

    sha256: str
    bytes: int


@frozen
class Meta:
    """
    The contents of ``meta.json``, the record of an entry.

    Attributes:
        schema: Version of this record.
        key: Name of the entry, and digest of `key_document`.
        key_document: Everything that the artifact's bytes depend on; only JSON values.
        name: Readable name of the kernel.
        arch: Target, for example ``sm_90a``.
        config: The kernel's config as JSON.
        symbol: Exported function in the library.
        library: File that is loaded: ``kernel.so``, or ``kernel.o`` for an entry that is not in a
            store.
        files: For each file its ``sha256`` and its size in ``bytes``.
        created: Time at which the kernel was compiled, ISO 8601, UTC.
        compile_s: Seconds that the compiler took.
        link_s: Seconds that the linker took.
        host_isa: CPU level for which the host part was compiled; the CPU must support it.
        jitgen: Version of jitgen that compiled it.
        builder: Digests of the contents of its builders: ``compiler`` and ``linker``.
    """

    schema: int = SCHEMA
    key: str
    key_document: dict[str, object]
    name: str
    arch: str
    config: dict[str, object]
    symbol: str
    library: str
    files: dict[str, FileRecord]
    created: str
    compile_s: float
    link_s: float
    host_isa: tuple[str, ...]
    jitgen: str
    builder: dict[str, str] = field(default_factory=dict)

    def with_files(self, files: Mapping[str, bytes]) -> Self:
        """
        Return this record with digests and sizes of `files`.

        Raises:
            Damaged: The source or the library is not among them, or the record contradicts itself.
        """
        records: dict[str, FileRecord] = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in files.items()
        }
        return self.from_json(replace(self, files=records).to_json())

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes, without ``meta.json``."""
        return sum(record["bytes"] for record in self.files.values())

    @property
    def is_edited(self) -> bool:
        """Whether a person edited the kernel's source; see `EDITED`."""
        return EDITED in self.key_document

    def to_json(self) -> dict[str, object]:
        """Return the record as JSON values."""
        document = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return document | {"host_isa": list(self.host_isa)}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """
        Return the record that `to_json` wrote.

        Raises:
            Damaged: A field is missing, unknown or of the wrong type, a file name is not allowed,
                the library or the source is not listed, or the key is not the digest of the key
                document.
        """
        if not isinstance(document, dict):
            raise Damaged("meta.json is not an object")
        if document.get("schema") != SCHEMA:
            raise Damaged(f"meta.json has schema {shown(document.get('schema'))}, not {SCHEMA}")
        document = {"builder": {}, **document}  # entries of earlier versions have none
        if document.keys() != _TYPES.keys():
            names = sorted(document.keys() ^ _TYPES.keys())
            raise Damaged(f"meta.json has missing or unknown fields: {shown(names)}")
        for name, allowed in _TYPES.items():
            if type(document[name]) not in allowed:
                raise Damaged(f"meta.json has a bad {name}")
        if not all(type(item) is str for item in document["host_isa"]):
            raise Damaged("meta.json has a bad host_isa")
        if not all(type(item) is str for item in document["builder"].values()):
            raise Damaged("meta.json has a bad builder")
        _check_files(document["files"], document["library"])
        meta = cls(**document | {"host_isa": tuple(document["host_isa"])})
        if meta.key != key_of(meta.key_document):
            raise Damaged("the key is not the digest of the key document")
        return meta

    def encode(self) -> bytes:
        """Return the bytes of ``meta.json``."""
        document = self.to_json() | {"digest": _NO_DIGEST.decode()}
        text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"
        blank = text.encode("ascii")
        digest = hashlib.sha256(blank).hexdigest().encode()
        return blank.replace(_DIGEST_FIELD % _NO_DIGEST, _DIGEST_FIELD % digest)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """
        Return the record in `data`, the bytes of a ``meta.json``.

        Raises:
            Damaged: `data` is not exactly what `encode` wrote.
        """
        try:
            document = parse_json(data, max_bytes=LIMITS[META])
        except BadDocument as error:
            raise Damaged(f"meta.json is no record: {error}") from None
        digest = document.pop("digest", None) if isinstance(document, dict) else None
        if not isinstance(digest, str) or not is_key(digest):
            raise Damaged("meta.json has no digest")
        blank = data.replace(_DIGEST_FIELD % digest.encode(), _DIGEST_FIELD % _NO_DIGEST)
        if hashlib.sha256(blank).hexdigest() != digest:
            raise Damaged("meta.json does not have its digest")
        return cls.from_json(document)


@frozen
class Entry:
    """
    An artifact in memory whose digests were checked; these checked bytes are the ones that are
    used.

    Attributes:
        key: Its key.
        meta: The record of the entry, ``meta.json``.
        files: The content of each file that `meta` lists.
        directory: Its path on the disk, for messages only: another process may have changed, moved
            or removed it. None if it is only in memory.
        why_private: Why it is in memory only; empty if it is in a store.
        signatures: The bytes of its ``signatures.json``, unchecked; empty where there is none.
        unread: Why the signatures could not be read; such an entry may be signed, so it is not sent
            on as unsigned. Empty if they were read, or there are none.
    """

    key: str
    meta: Meta
    files: Mapping[str, bytes] = field(repr=False)
    directory: Path | None = None
    why_private: str = field(default="", compare=False)
    signatures: bytes = field(default=b"", compare=False, repr=False)
    unread: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(cls, meta: Meta, files: Mapping[str, bytes], signatures: bytes = b"") -> Self:
        """
        Return the entry of `files`; their digests and sizes are added to `meta`. Raises Damaged.
        """
        meta = meta.with_files(files)
        return cls(key=meta.key, meta=meta, files=dict(files), signatures=signatures)

    @property
    def library(self) -> bytes:
        """Bytes of the entry's native code."""
        return self.files[self.meta.library]

    @property
    def source(self) -> str:
        """Generated Python source of the entry's kernel."""
        return self.files[SOURCE].decode("utf-8")


def _check_files(files: dict[str, object], library: str) -> None:
    for name, record in files.items():
        if name not in (SOURCE, LIBRARY, OBJECT):
            raise Damaged(f"meta.json lists a file that no entry may hold: {shown(name)}")
        if not isinstance(record, dict) or record.keys() != {"sha256", "bytes"}:
            raise Damaged(f"meta.json has a bad record of {name}")
        if not is_key(record["sha256"]) or type(record["bytes"]) is not int:
            raise Damaged(f"meta.json has a bad record of {name}")
    if library not in (LIBRARY, OBJECT) or library not in files or SOURCE not in files:
        raise Damaged(f"meta.json does not list the source and its library {shown(library)}")


_NUMBER = (int, float)
_TYPES: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "key": (str,),
    "key_document": (dict,),
    "name": (str,),
    "arch": (str,),
    "config": (dict,),
    "symbol": (str,),
    "library": (str,),
    "files": (dict,),
    "created": (str,),
    "compile_s": _NUMBER,
    "link_s": _NUMBER,
    "host_isa": (list,),
    "jitgen": (str,),
    "builder": (dict,),
}


TOUCH_S = 3600.0
"""The time of last use is rewritten at most this often, in seconds."""

_TRIES = 3  # attempts to make and lock a draft, which a sweep may examine in between


def read_entry(folder: Folder, key: str, *, is_used: bool = False) -> Entry:
    """
    Return the entry in the open `folder`, once every digest was checked.

    Each file is read once; the bytes that were checked are those that the entry holds. With
    `is_used`, the time of the folder, by which pruning orders entries, is set to now if it is older
    than `TOUCH_S`.

    Raises:
        Damaged: Its content differs from the published one, or another user could have written it.
        OSError: It cannot be read just now.
    """
    meta = read_meta(folder, key)
    files = {}
    for name, record in meta.files.items():
        files[name] = _read(folder, name, record["bytes"])
        if hashlib.sha256(files[name]).hexdigest() != record["sha256"]:
            raise Damaged(f"{name} does not have its digest")
    if is_used and time.time() - os.fstat(folder.descriptor).st_mtime > TOUCH_S:
        with suppress(OSError):
            folder.touch()
    # An unreadable file is no error: readers that need a signature refuse an entry without one.
    signatures, unread = folder.read_if_there(SIGNATURES, LIMITS[SIGNATURES])
    return Entry(
        key=key,
        meta=meta,
        files=files,
        directory=folder.path,
        signatures=signatures,
        unread=unread,
    )


def read_meta(folder: Folder, key: str) -> Meta:
    """
    Return the record of entry `key` in `folder`, without reading the files.

    Raises:
        Damaged: It is missing or wrong, or belongs to another key.
        OSError: It cannot be read just now.
    """
    meta = Meta.decode(_read(folder, META))
    if meta.key != key:
        raise Damaged("meta.json belongs to another key")
    return meta


def _read(folder: Folder, name: str, num_bytes: int | None = None) -> bytes:
    try:
        return folder.read(name, LIMITS[name], num_bytes=num_bytes)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None


@contextmanager
def draft(folder: Folder) -> Iterator[tuple[Folder, str]]:
    """
    Yield a new folder in `folder`, and its name there; it is removed at the end, unless moved.

    It is locked with `flock`: that tells other processes that it is in use, leaves no file behind,
    and ends with the process.
    """
    name = unique_name()
    with folder.folder(name, create=True) as made:
        for _ in range(_TRIES):
            if made.lock(exclusive=True):
                break
            time.sleep(0.001)  # a sweep holds the lock for a moment
        try:
            yield made, name
        finally:
            folder.discard(name)


def write_entry(drafts: Folder, entry: Entry, to: Folder) -> None:
    """
    Write and sync all of `entry` in a draft, then move it into the folder `to` in one step.

    Files are read-only, because an entry with an edited file would be damaged.

    Raises:
        OSError: The disk is full, or `to` holds the entry already, for example.
    """
    for attempt in range(_TRIES):
        try:
            with draft(drafts) as (folder, name):
                for file, data in entry.files.items():
                    folder.write(file, data, mode=0o444)
                folder.write(META, entry.meta.encode(), mode=0o444)
                if entry.signatures:
                    folder.write(SIGNATURES, entry.signatures, mode=0o444)
                folder.sync()
                drafts.move(name, to, entry.key)
            break
        except FileNotFoundError:  # a sweep removed the draft before it was locked
            if attempt == _TRIES - 1:
                raise
    with suppress(OSError):
        to.sync()


def disk_bytes(folder: Folder) -> int:
    """Return the bytes that a folder of files takes on the disk, as ``du`` counts them."""
    with suppress(OSError), os.scandir(folder.descriptor) as found:
        total = os.fstat(folder.descriptor).st_blocks
        return 512 * (total + sum(f.stat(follow_symlinks=False).st_blocks for f in found))
    return 0


def entry_path(base: Path, key: str) -> Path:
    """Return where entry `key` lies below ``<root>/v1``, for messages."""
    return base / "entries" / key[:2] / key
