# SPDX-License-Identifier: Apache-2.0
"""
Packs an entry into bytes for the wire, between machines that need not trust each other.

The format is a plain tar, which people can inspect: ``meta.json``, ``signatures.json`` if there is
one, then the files by name, with fixed times and owners. Equal entries give equal bytes. Reading
relies on that: the parts are extracted, checked and packed again, and an archive that differs from
the result in any byte is refused. So an archive has only one reading, and no unchecked bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import ModuleType

from jitgen.cache.entry import LIBRARY, LIMITS, META, SIGNATURES, SOURCE, Meta
from jitgen.cache.folder import Damaged
from jitgen.errors import ToolchainError
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

MAX_BYTES = 2**24
"""Largest entry on the wire, packed."""

TAR = "application/vnd.jitgen.entry.v1+tar"
"""Media type of a packed entry."""

_BLOCK = 512
_NAMES = (META, SIGNATURES, SOURCE, LIBRARY)
_LEVEL = 9  # 3 ms for an entry of 110 KB, and a tenth smaller than the default
_MAX_WINDOW = 2**24


@frozen
class Packed:
    """
    The checked content of an archive.

    Attributes:
        meta: The record.
        record: The bytes of the record, which signatures refer to.
        files: The files; their digests are those in the record.
        signatures: The bytes of ``signatures.json``, not checked; empty if there is none.
    """

    meta: Meta
    record: bytes
    files: Mapping[str, bytes]
    signatures: bytes


def pack(meta: bytes, files: Mapping[str, bytes], signatures: bytes = b"") -> bytes:
    """
    Return an entry as a tar; equal entries give equal bytes.

    Args:
        meta: The bytes of its ``meta.json``, as `Meta.encode` writes them.
        files: Its files, by name.
        signatures: The bytes of its ``signatures.json``; empty if there is none.

    Raises:
        Damaged: A file must not leave the host, or the whole is larger than `MAX_BYTES`.
    """
    for name in files:
        if name not in (SOURCE, LIBRARY):
            raise Damaged(f"{shown(name)} may not travel; only {SOURCE} and {LIBRARY} do")
    parts = {META: meta, SIGNATURES: signatures} if signatures else {META: meta}
    parts |= {name: files[name] for name in sorted(files)}
    blocks = []
    for name, data in parts.items():
        blocks += [tar_header(name, len(data)), data, bytes(-len(data) % _BLOCK)]
    packed = b"".join((*blocks, bytes(2 * _BLOCK)))
    if len(packed) > MAX_BYTES:
        raise Damaged(
            f"the entry has {len(packed)} bytes, and {MAX_BYTES} are the most that travel"
        )
    return packed


def unpack(data: bytes, key: str) -> Packed:
    """
    Return the entry in `data`, which `pack` wrote, with every digest checked.

    Signatures are not verified: see `jitgen.signing.policy.judge`.

    Raises:
        Damaged: It is malformed or too large, belongs to another key, or a digest is wrong.
    """
    if len(data) > MAX_BYTES:
        raise Damaged(f"the archive has more than {MAX_BYTES} bytes")
    parts = dict(_members(data))
    record, signatures = parts.pop(META, b""), parts.pop(SIGNATURES, b"")
    if pack(record, parts, signatures) != data:
        raise Damaged("the archive is not written as jitgen writes it")
    return checked(record, parts, key, signatures)


def checked(record: bytes, files: Mapping[str, bytes], key: str, signatures: bytes = b"") -> Packed:
    """
    Return an entry of these parts, of which every digest was checked.

    Raises:
        Damaged: The record is not as `Meta.encode` writes it, belongs to another key, or lists
            other files or digests; a part must not leave the host or is too large; or a person has
            edited the source.
    """
    for name, part in {META: record, SIGNATURES: signatures, **files}.items():
        if name not in _NAMES:
            raise Damaged(f"{shown(name)} may not travel")
        if len(part) > LIMITS.get(name, 0):
            raise Damaged(
                f"{name} has {len(part)} bytes, more than the {LIMITS.get(name, 0)} allowed"
            )
    if not signatures.isascii():
        raise Damaged("signatures.json is no text")
    meta = _meta(record, key)
    if meta.files.keys() != files.keys():
        raise Damaged("the files are not those that meta.json lists")
    for name, said in meta.files.items():
        is_long = len(files[name]) != said["bytes"]
        if is_long or hashlib.sha256(files[name]).hexdigest() != said["sha256"]:
            raise Damaged(f"{name} does not have its digest")
    return Packed(meta=meta, record=record, files=dict(files), signatures=signatures)


def _meta(record: bytes, key: str) -> Meta:
    """Return the parsed record of `key`; raises Damaged if it is wrong or must stay on its host."""
    meta = Meta.decode(record)
    if meta.key != key:
        raise Damaged("meta.json belongs to another key")
    if meta.is_edited:
        raise Damaged("its source was edited by a person, and such a kernel stays where it is")
    if meta.encode() != record:
        raise Damaged("meta.json is not written as this version of jitgen writes it")
    return meta


def tar_header(name: str, size: int, kind: bytes = b"0", mode: int = 0o444) -> bytes:
    """Return the tar header (ustar) of a file of `size` bytes; user, group and time are 0."""
    zero = b"%07o\0" % 0
    fields = (
        name.encode("ascii").ljust(100, b"\0"),
        b"%07o\0" % mode,
        zero,
        zero,
        b"%011o\0" % size,
        b"%011o\0" % 0,
        b" " * 8,  # the checksum counts as blanks
        kind.ljust(101, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """
    Yield the names and contents of an archive. Most fields of headers are not checked here: the
    caller packs the members again and compares.
    """
    position = 0
    while position + _BLOCK <= len(data) and data[position]:
        block = data[position : position + _BLOCK]
        name = block[:100].rstrip(b"\0").decode("latin-1")
        size = block[124:135]
        if name not in _NAMES or not size.isdigit() or set(size) & set(b"89"):
            raise Damaged(f"the archive holds what no entry has: {shown(name)}")
        start = position + _BLOCK
        end = start + int(size, 8)
        if end > len(data):
            raise Damaged("the archive ends in the middle of a file")
        yield name, data[start:end]
        position = end + -(end - start) % _BLOCK


def compress(data: bytes) -> bytes:
    """Return `data` as one zstd frame, which states the size of `data`."""
    return bytes(_zstandard().ZstdCompressor(level=_LEVEL).compress(data))


def decompress(data: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """
    Return the content of the zstd frame `data`.

    No more than `max_bytes` are decompressed, whatever size the frame states.

    Raises:
        Damaged: It is not a single frame, is damaged, or has more than `max_bytes`.
    """
    zstandard = _zstandard()
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size > max_bytes:  # an unknown size is larger than any
            raise Damaged(f"the zstd frame does not say that it holds at most {max_bytes} bytes")
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        # One buffer of the stated size; a frame with more content does not fit into it.
        return bytes(
            decompressor.decompress(data, read_across_frames=False, allow_extra_data=False)
        )
    except zstandard.ZstdError as error:
        raise Damaged(f"it is no zstd frame that can be read: {error}") from None


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ToolchainError(
            f"kernels travel packed, with the package zstandard ({error}); "
            "run: pip install zstandard"
        ) from error
    return zstandard
