# SPDX-License-Identifier: Apache-2.0
"""
Reads files that decide what this program trusts or runs, so that no other user can change that.

Such files are trust documents, keys, tokens, the settings of a service and edited kernels: a user
who can write or replace one of them gains the rights of this user. They are read by the rules that
also hold for the root of the cache:

- the file belongs to this user or to the superuser, and no other user may write to it;
- so does its folder, in which other users may write only if the sticky bit keeps them from
  renaming, as in ``/tmp``;
- `distrust_parent` accepts every folder above;
- a link is followed only if it belongs to this user or to the superuser, and the same rules hold
  for its target.

The path is walked from ``/`` by descriptors, one name at a time, and the descriptor that was
checked is the one that is read, so that no file can be exchanged in between. Folders in
JITGEN_TRUST_SHARED, and all below them, are not checked, except for secrets.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from jitgen.ownership import OTHERS, distrust, distrust_parent, is_shared, shared_folders, stranger
from jitgen.support.documents import BadDocument, read_stream

_SEARCH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MOST_LINKS = 40  # the limit of Linux


class Unsafe(BadDocument):
    """Another user could have written or replaced a file; the message says who, and what to do."""


class Stamp(NamedTuple):
    """Values of ``stat`` that differ after any change of a file."""

    device: int
    inode: int
    num_bytes: int
    mtime_ns: int
    ctime_ns: int


class TrustedFile:
    """
    An open file that passed every check.

    Attributes:
        path: The path that was asked for.
        stamp: Changes with the file.
        is_open_to_readers: Whether it belongs to this user, and other users can reach and read it.
    """

    def __init__(
        self, path: Path, stream: IO[bytes], found: os.stat_result, *, is_closed: bool
    ) -> None:
        self.path = path
        self.stamp = Stamp(
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )
        readers = found.st_mode & (stat.S_IRGRP | stat.S_IROTH)
        is_mine = found.st_uid == os.geteuid()
        self.is_open_to_readers = bool(readers) and is_mine and not is_closed
        self._stream = stream

    def read(self, max_bytes: int) -> bytes:
        """Return the file's content; raises BadDocument if it has more than `max_bytes`."""
        return read_stream(self._stream, max_bytes)


def read_trusted(path: Path, max_bytes: int, *, is_secret: bool = False) -> bytes:
    """
    Return the content of the trusted file `path`.

    Args:
        path: The file; relative to the working folder unless it is absolute.
        max_bytes: Largest size that is read.
        is_secret: Whether other users must not be able to read it either.

    Raises:
        Unsafe: Another user could have written or replaced it.
        BadDocument: It is no regular file, or too large.
        OSError: It cannot be read; FileNotFoundError if it does not exist.
    """
    with opened(path, is_secret=is_secret) as file:
        return file.read(max_bytes)


@contextmanager
def opened(path: Path, *, is_secret: bool = False) -> Iterator[TrustedFile]:
    """Yield the trusted file `path`, opened; raises as `read_trusted`."""
    with _arrived(path) as place:
        descriptor = _opened_in(place.folder, place.name, place.where, _READ)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise BadDocument("it is no regular file")
            _check_file(found, place.where, is_secret=is_secret)
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                yield TrustedFile(path, stream, found, is_closed=place.is_closed)
        finally:
            os.close(descriptor)


@contextmanager
def in_memory(path: Path, max_bytes: int) -> Iterator[str]:
    """
    Yield the path of a file in memory with the content of the trusted file `path`, for libraries
    that accept only paths: so they read the bytes that were checked. Raises as `read_trusted`.
    """
    data = read_trusted(path, max_bytes)
    descriptor = os.memfd_create(path.name)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        yield f"/proc/self/fd/{descriptor}"


def names_in(path: Path) -> list[str]:
    """
    Return the names in the trusted folder `path`; no other user may create files there, not even
    with the sticky bit.

    Raises:
        Unsafe: Another user could have created a file there.
        OSError: It cannot be read.
    """
    with _arrived(path, is_file=False) as place:
        descriptor = _opened_in(place.folder, place.name, place.where, _READ | os.O_DIRECTORY)
        try:
            if reason := "" if _is_free(place.where) else distrust(os.fstat(descriptor)):
                _refuse(place.where, reason)
            return os.listdir(descriptor)  # noqa: PTH208  # a descriptor is no path
        finally:
            os.close(descriptor)


def _is_free(where: Path) -> bool:
    return is_shared(where, shared_folders())


class _Place(NamedTuple):
    """
    The end of a path that was walked.

    Attributes:
        folder: Descriptor of the last folder.
        name: Name of the file in it.
        where: Path of the file, without links.
        is_closed: Whether a folder on the path excludes other users.
    """

    folder: int
    name: str
    where: Path
    is_closed: bool


@contextmanager
def _arrived(path: Path, *, is_file: bool = True) -> Iterator[_Place]:
    """
    Walk `path` and yield its end. Each folder and link on it is checked after it was opened; the
    last folder by the stricter rule for a file's folder, if `is_file`.
    """
    shared = shared_folders()
    # Not normalised: after a link, ``..`` is not the name before it.
    whole = os.fspath(path if path.is_absolute() else Path.cwd() / path)
    rest, links, is_closed = [*reversed(whole.split("/"))], 0, False
    folder, where = os.open("/", _SEARCH), Path("/")
    try:
        while True:
            name = rest.pop()
            if name in ("", ".") and rest:
                continue
            found, is_free = os.fstat(folder), is_shared(where, shared)
            is_closed |= not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)
            if not is_free:
                _check_folder(found, where, is_last=is_file and not rest)
            below, target = _step(folder, name, where / name, is_free=is_free)
            if target:
                links += 1
                rest += reversed(target.split("/"))
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if target and not target.startswith("/"):
                os.close(below)
            elif not rest:
                os.close(below)
                yield _Place(folder, name, where if name in ("", ".") else where / name, is_closed)
                return
            else:
                os.close(folder)
                folder = below
                above = where.parent if name == ".." else where / name
                where = Path("/") if target else above
    finally:
        os.close(folder)


def _step(folder: int, name: str, where: Path, *, is_free: bool) -> tuple[int, str]:
    """
    Return a descriptor of `name` in `folder`, and the target if it is a link. For an absolute
    target it is the descriptor of ``/``.
    """
    below = _opened_in(folder, name, where, _SEARCH)
    try:
        found = os.fstat(below)
        if not stat.S_ISLNK(found.st_mode):
            return below, ""
        if (reason := stranger(found)) and not is_free:
            _refuse(where, f"is a link that {reason}")
        target = os.readlink("", dir_fd=below)
        if not target.startswith("/"):
            return below, target
        root = os.open("/", _SEARCH)
    except BaseException:
        os.close(below)
        raise
    os.close(below)
    return root, target


def _opened_in(folder: int, name: str, where: Path, flags: int) -> int:
    """Return a descriptor of `name` in `folder`; an error has the whole path."""
    try:
        return os.open(name or ".", flags, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(where)) from None


def _check_folder(found: os.stat_result, where: Path, *, is_last: bool) -> None:
    if reason := distrust_parent(found):
        _refuse(where, reason)
    if is_last and found.st_mode & OTHERS and not found.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(found.st_mode)
        _refuse(where, f"can be written by other users (mode {mode:04o})")


def _check_file(found: os.stat_result, where: Path, *, is_secret: bool) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if is_secret and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unsafe(
            f"others can use {where}, which is a secret (mode {mode:04o}); unless it was copied, "
            f"run: {keep_private(where, found)}"
        )
    if (reason := distrust(found)) and (is_secret or not _is_free(where)):
        _refuse(where, reason, may_share=not is_secret)


def keep_private(path: Path, found: os.stat_result) -> str:
    """
    Return the command that makes a file or folder private to this user. If another user owns it,
    the command changes the owner first: after chmod alone this user could not read it any more.
    """
    mode = "700" if stat.S_ISDIR(found.st_mode) else "600"
    user = os.geteuid()
    owns = "" if found.st_uid == user else f"chown {user} {path} && "
    return f"{owns}chmod {mode} {path}"


def _refuse(where: Path, reason: str, *, may_share: bool = True) -> NoReturn:
    remedy = "use a copy of your own in a folder of your own"
    if reason.startswith("can be"):
        remedy = f"run: chmod {'o-w' if reason.endswith('everybody') else 'go-w'} {where}"
    if may_share:
        remedy += (
            ", or, if they may decide what is trusted and run here, name the folder in "
            "JITGEN_TRUST_SHARED"
        )
    raise Unsafe(f"{where} {reason}; {remedy}")
