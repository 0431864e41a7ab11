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
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from jitgen.cache.trust import Damaged
from jitgen.config.part import canonical_json
from jitgen.documents import BadDocument, parse_json
from jitgen.text import shown

SCHEMA = 1
META = "meta.json"
SOURCE = "kernel.py"
LIBRARY = "kernel.so"
OBJECT = "kernel.o"
"""What a process keeps for itself where there is no linker; never in a store."""

LIMITS = {SOURCE: 2**22, LIBRARY: 2**26, OBJECT: 2**26, META: 2**18}
"""
Largest size of each file in bytes, a hundred times what is usual; a larger one is not even read.
The only names that an entry may list: nothing else is ever opened.
"""

_HEX64 = re.compile(r"[0-9a-f]{64}")
_NO_DIGEST = b"0" * 64
# With its indentation, which no field inside of another one has, and no text can hold.
_DIGEST_FIELD = b'\n  "digest": "%b"'


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
        library: File that is loaded: ``kernel.so``; ``kernel.o`` where it is not in a store.
        files: For each file its ``sha256`` and its size in ``bytes``.
        created: When it was compiled, ISO 8601, UTC.
        compile_s: Seconds that the compiler took.
        link_s: Seconds that the linker took.
        host_isa: What the CPU must have to run the host part: the level that it was compiled for.
        jitgen: Version of jitgen that compiled it.
        builder: Digests of the contents of what built it: ``compiler`` and ``linker``.
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
    builder: dict[str, str] = field(default_factory=dict)

    def with_files(self, files: Mapping[str, bytes]) -> Self:
        """
        Return this record with digests and sizes of `files`.

        Raises:
            Damaged: The source or the library is not among them, or the record contradicts itself.
        """
        records = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in files.items()
        }
        return self.from_json(replace(self, files=records).to_json())

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """
    An artifact, in memory, whose digests were checked: these bytes are what is used of it.

    Attributes:
        key: Its key.
        meta: What is known about it.
        files: The content of each file that `meta` lists.
        directory: Where it lies on the disk, for messages: another process may have changed,
            moved or removed it. None if it is nowhere but here.
        why_private: Why it is nowhere but here; empty if it is in a store.
    """

    key: str
    meta: Meta
    files: Mapping[str, bytes] = field(repr=False)
    directory: Path | None = None
    why_private: str = field(default="", compare=False)

    @classmethod
    def of(cls, meta: Meta, files: Mapping[str, bytes]) -> Self:
        """Return the entry of `files`, which `meta` describes but for them; raises Damaged."""
        meta = meta.with_files(files)
        return cls(key=meta.key, meta=meta, files=dict(files))

    @property
    def library(self) -> bytes:
        """The native code."""
        return self.files[self.meta.library]

    @property
    def source(self) -> str:
        """The generated source."""
        return self.files[SOURCE].decode("utf-8")


def _check_files(files: dict[str, Any], library: str) -> None:
    for name, record in files.items():
        if name not in LIMITS or name == META:
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
