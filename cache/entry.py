# SPDX-License-Identifier: Apache-2.0
"""
What an entry is: its files, and the ``meta.json`` that describes them.

``meta.json`` is indented JSON for people to read. Its ``digest`` field is the SHA-256 of the file's
own bytes with that digest written as zeros, so that any flipped bit is seen, be it in a time or in
white space.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from jitgen.errors import CacheError
from jitgen.model.config import canonical_json

SCHEMA = 1
META = "meta.json"
SOURCE = "kernel.py"
LIBRARIES = ("kernel.so", "kernel.o")
FILES = (SOURCE, *LIBRARIES)
"""The only names that an entry may list; nothing else is ever opened."""

_HEX64 = re.compile(r"[0-9a-f]{64}")
_NO_DIGEST = b"0" * 64
# With its indentation, which no field inside of another one has, and no text can hold.
_DIGEST_FIELD = b'\n  "digest": "%b"'


class Damaged(CacheError):
    """
    An entry is not what was published; the message says in which way.

    Attributes:
        inode: Inode of the entry's folder, or 0; it tells this folder from one published since.
    """

    def __init__(self, message: str, inode: int = 0) -> None:
        super().__init__(message)
        self.inode = inode


def is_key(text: object) -> bool:
    """Return whether `text` is a key: 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _HEX64.fullmatch(text) is not None


def check_key(key: str) -> str:
    """
    Return `key`, which is then safe as a file name.

    Raises:
        ValueError: `key` is no key.
    """
    if not is_key(key):
        raise ValueError(f"{key!r} is no key: a key is 64 hexadecimal digits in lower case")
    return key


def key_of(document: Mapping[str, Any]) -> str:
    """Return the key of a key document: the SHA-256 of its canonical JSON."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """
    What ``meta.json`` says about an entry.

    Attributes:
        schema: Version of this record.
        key: Name of the entry, and digest of `key_document`.
        key_document: Everything that the artifact's bytes depend on; only JSON values.
        name: Readable name of the kernel.
        arch: Target, for example ``sm_90a``.
        config: The kernel's config as JSON.
        symbol: Exported function in the library.
        library: File that is loaded: ``kernel.so`` or ``kernel.o``.
        files: For each file its ``sha256`` and its size in ``bytes``.
        created: When it was compiled, ISO 8601, UTC.
        compile_s: Seconds that the compiler took.
        link_s: Seconds that the linker took.
        host_isa: Instruction sets that the CPU must have to run the host part.
        jitgen: Version of jitgen that compiled it.
    """

    schema: int = SCHEMA
    key: str
    key_document: dict[str, Any]
    name: str
    arch: str
    config: dict[str, Any]
    symbol: str
    library: str
    files: dict[str, dict[str, Any]]
    created: str
    compile_s: float
    link_s: float
    host_isa: tuple[str, ...]
    jitgen: str

    @classmethod
    def describe(cls, directory: Path, **values: Any) -> Self:
        """Return the record of the files in `directory`; `values` are the other fields."""
        return cls(files=describe_files(directory), **values)

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes, without ``meta.json``."""
        return sum(record["bytes"] for record in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        document = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return document | {"host_isa": list(self.host_isa)}

    @classmethod
    def from_json(cls, document: Any) -> Self:
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
            raise Damaged(f"meta.json has schema {document.get('schema')!r}, not {SCHEMA}")
        if document.keys() != _TYPES.keys():
            names = ", ".join(sorted(document.keys() ^ _TYPES.keys()))
            raise Damaged(f"meta.json has missing or unknown fields: {names}")
        for name, allowed in _TYPES.items():
            if type(document[name]) not in allowed:
                raise Damaged(f"meta.json has a bad {name}")
        if not all(type(item) is str for item in document["host_isa"]):
            raise Damaged("meta.json has a bad host_isa")
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
            document = json.loads(data.decode("ascii"))
        except (ValueError, RecursionError) as error:
            raise Damaged(f"meta.json is not JSON: {error}") from None
        digest = document.pop("digest", None) if isinstance(document, dict) else None
        if not isinstance(digest, str) or not is_key(digest):
            raise Damaged("meta.json has no digest")
        blank = data.replace(_DIGEST_FIELD % digest.encode(), _DIGEST_FIELD % _NO_DIGEST)
        if hashlib.sha256(blank).hexdigest() != digest:
            raise Damaged("meta.json does not have its digest")
        return cls.from_json(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    An artifact whose digests were checked.

    Attributes:
        key: Its key.
        directory: Folder of its files: in the store, or private to this process where it could not
            be published.
        meta: What is known about it.
    """

    key: str
    directory: Path
    meta: Meta

    @property
    def library(self) -> Path:
        """The file to load."""
        return self.directory / self.meta.library

    @property
    def source(self) -> Path:
        """The generated source."""
        return self.directory / SOURCE


def describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    """Return digest and size of every file in `directory` that an entry may hold."""
    records: dict[str, dict[str, Any]] = {}
    for name in FILES:
        path = directory / name
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            records[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    return records


def _check_files(files: dict[str, Any], library: str) -> None:
    for name, record in files.items():
        if name not in FILES:
            raise Damaged(f"meta.json lists a file that no entry may hold: {name!r}")
        if not isinstance(record, dict) or record.keys() != {"sha256", "bytes"}:
            raise Damaged(f"meta.json has a bad record of {name}")
        if not is_key(record["sha256"]) or type(record["bytes"]) is not int:
            raise Damaged(f"meta.json has a bad record of {name}")
    if library not in LIBRARIES or library not in files or SOURCE not in files:
        raise Damaged(f"meta.json does not list the source and its library {library!r}")


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
}
