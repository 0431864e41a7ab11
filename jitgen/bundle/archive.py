# SPDX-License-Identifier: Apache-2.0
"""
Reads and writes plain tars, which contain only files and folders with short names.

Equal contents give equal bytes. Reading refuses an archive with a link, a device, an absolute name,
a name that leads upwards, an extension that renames the next file, or the same name twice.
Everything is in memory, and never larger than the given bytes, no matter what a header states.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgen.cache.folder import Damaged
from jitgen.remote import wire
from jitgen.support.text import shown

_BLOCK = 512
_FILE, _OLD_FILE, _FOLDER = b"0", b"\0", b"5"
_NAME_BYTES = 100


def write(files: Iterable[tuple[str, bytes]]) -> bytes:
    """
    Return a tar of `files` in their order, each folder before its first file.

    Files have mode 0444, folders 0755; user, group and time are 0.
    """
    blocks: list[bytes] = []
    folders: set[str] = set()
    for name, data in files:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth]) + "/"
            if folder not in folders:
                folders.add(folder)
                blocks.append(_header(folder, 0, _FOLDER, 0o755))
        blocks += [_header(name, len(data), _FILE, 0o444), data, bytes(-len(data) % _BLOCK)]
    return b"".join((*blocks, bytes(2 * _BLOCK)))


def read(data: bytes) -> dict[str, bytes]:
    """
    Return the files in the tar `data`, by name.

    Raises:
        Damaged: It is not a plain tar of files and folders, as this module writes it.
    """
    found: dict[str, bytes] = {}
    position = 0
    while data[position : position + 1] not in (b"", b"\0"):
        block = data[position : position + _BLOCK]
        name, size, kind = _parsed(block)
        start, end = position + _BLOCK, position + _BLOCK + size
        if end > len(data):
            raise Damaged(f"the archive ends in the middle of {shown(name)}")
        if kind != _FOLDER:
            if name in found:
                raise Damaged(f"the archive holds {shown(name)} twice")
            found[name] = data[start:end]
        position = end + -size % _BLOCK
    if data[position:].strip(b"\0") or len(data) < position + 2 * _BLOCK:
        raise Damaged("the archive does not end where it should")
    return found


def _header(name: str, size: int, kind: bytes, mode: int) -> bytes:
    if len(name) > _NAME_BYTES:
        raise ValueError(f"{name} is too long a name for a plain tar")
    return wire.tar_header(name, size, kind, mode)


def _parsed(block: bytes) -> tuple[str, int, bytes]:
    """Return name, size and kind of the member of a tar that `block`, its header, describes."""
    if len(block) < _BLOCK:
        raise Damaged("the archive ends in the middle of a header")
    blank = block[:148] + b" " * 8 + block[156:]
    if _octal(block[148:156]) != sum(blank):
        raise Damaged("a header of the archive does not have its checksum")
    name, kind = block[:_NAME_BYTES].split(b"\0")[0].decode("latin-1"), block[156:157]
    if kind not in (_FILE, _OLD_FILE, _FOLDER):
        raise Damaged(
            f"the archive holds {shown(name)}, which is neither a file nor a folder (kind "
            f"{shown(kind.decode('latin-1'))})"
        )
    if block[345:500].strip(b"\0"):
        raise Damaged("the archive holds a name that is too long")
    name = name.removeprefix("./") if name != "./" else "."
    parts = (name.rstrip("/") if kind == _FOLDER else name).split("/")
    if (name != "." and not {"", ".", ".."}.isdisjoint(parts)) or not name.isprintable():
        raise Damaged(f"the archive holds a name that no bundle has: {shown(name)}")
    size = _octal(block[124:136])
    if kind == _FOLDER and size:
        raise Damaged("the archive holds a folder with contents of its own")
    return name, size, kind


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits.isdigit() or set(digits) & set(b"89"):
        raise Damaged("a header of the archive holds a number that is none")
    return int(digits, 8)
