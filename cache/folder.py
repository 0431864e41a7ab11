# SPDX-License-Identifier: Apache-2.0
"""
Folders opened by descriptor, with checks of which users may have written the files in them.

Native code is loaded from a cache, so a user who can write there can run code as its reader. This
user and the superuser are trusted; a folder or file of another user, or one to which other users
may write, is not: see `jitgen.ownership.distrust`. The check is of the open descriptor: a path may
lead elsewhere a moment later.

If others must be able to write (a volume of Kubernetes, a folder that a group shares), the setting
`trust_shared` names the folder; then nothing at or below it is checked.

Everything below a folder is opened from its descriptor, one name at a time, and never through a
link. So the folder that was checked is the one that is used, even if another process changes paths
at the same time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from jitgen.errors import CacheError
from jitgen.ownership import distrust


class Damaged(CacheError):
    """
    A file in the cache has other contents than were stored; the message says how it differs.

    Attributes:
        reason: The message without its subject, where that is a folder or file.
    """

    def __init__(self, reason: str, subject: object = "") -> None:
        super().__init__(f"{subject} {reason}" if subject else reason)
        self.reason = reason


class Untrusted(Damaged):
    """Another user could have put the file or folder there."""


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# The content is wrong, in contrast to "cannot be read now" (no descriptors left, a stale handle, an
# input/output error, which a network file system gives for a server that does not answer).
_WRONG = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR})


ASIDE = ".aside-"
"""
Prefix of the new name of a file that was in the way and could only be renamed; a sweep removes it.
"""


def unique_name() -> str:
    """Return a file name that no other process uses."""
    return os.urandom(16).hex()


class Folder:
    """
    An open folder; a context manager that closes it.

    Every method may raise OSError if the disk fails. Names are single: no method takes a path.

    Attributes:
        descriptor: Its descriptor.
        place: Path at which the folder was found, as text.
        is_shared: Whether it is in a place where, by the user's setting, others may write.
    """

    def __init__(self, descriptor: int, place: Path | str, *, is_shared: bool) -> None:
        self.descriptor = descriptor
        self.place = str(place)
        self.is_shared = is_shared

    @property
    def path(self) -> Path:
        """Path under which the folder was opened, for messages."""
        return Path(self.place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def folder(self, name: str, *, create: bool = False) -> Folder:
        """
        Return the folder `name` in this one, opened.

        Raises:
            FileNotFoundError: The folder does not exist, and `create` is false.
            Untrusted: Another user could have written to it.
            Damaged: It is a file or a link, or its mode keeps it from being opened.
        """
        place = f"{self.place}/{name}"
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, self.mode(0o777), dir_fd=self.descriptor)
        try:
            descriptor = os.open(name, _READ | os.O_DIRECTORY, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                self._explain(name, wants_folder=True)
            raise
        try:
            if reason := "" if self.is_shared else distrust(os.fstat(descriptor)):
                raise Untrusted(reason, place)
        except BaseException:
            os.close(descriptor)
            raise
        return Folder(descriptor, place, is_shared=self.is_shared)

    def service(self, name: str) -> Folder:
        """
        Return the folder `name`, opened. It is created if there is none, or if a file or an
        unwritable folder is in its place, because the cache does not need anything below it.
        Whatever is in its place is renamed, or removed if it cannot be renamed.
        """
        with suppress(Damaged, PermissionError), ExitStack() as stack:
            found = stack.enter_context(self.folder(name, create=True))
            if os.access(".", os.W_OK | os.X_OK, dir_fd=found.descriptor, effective_ids=True):
                stack.pop_all()
                return found
        try:
            self.move(name, self, f"{ASIDE}{unique_name()}")
        except OSError:
            if not self.discard(name):
                raise
        return self.folder(name, create=True)

    def _explain(self, name: str, *, wants_folder: bool) -> None:
        """Raise Damaged if the kind, owner or mode of `name` is why it cannot be opened."""
        found, place = self.stat(name), f"{self.place}/{name}"
        if found is None:
            return
        if stat.S_ISLNK(found.st_mode):
            raise Untrusted(f"is no {'folder' if wants_folder else 'file'} but a link", place)
        if wants_folder and not stat.S_ISDIR(found.st_mode):
            raise Damaged("is no folder", place)
        if reason := "" if self.is_shared else distrust(found):
            raise Untrusted(reason, place)
        if found.st_uid == os.geteuid():
            raise Damaged(f"cannot be opened (mode {stat.S_IMODE(found.st_mode):04o})", place)

    @contextmanager
    def below(self, *names: str, create: bool = False) -> Iterator[Folder]:
        """Yield the folder that `names` lead to, one below the other; raises as `folder` does."""
        with ExitStack() as stack:
            found = self
            for name in names:
                found = stack.enter_context(found.folder(name, create=create))
            yield found

    def mode(self, most: int) -> int:
        """Return the mode for new files: private, or by the umask if the folder is shared."""
        return most if self.is_shared else most & 0o700

    def read(self, name: str, limit: int, *, num_bytes: int | None = None) -> bytes:
        """
        Return the content of the regular file `name`.

        Args:
            name: The file.
            limit: Its largest size in bytes; a larger file is not read.
            num_bytes: The size that it must have; None for any.

        Raises:
            FileNotFoundError: The file does not exist.
            Untrusted: Another user could have written to it.
            Damaged: It is no regular file, or has another size.
            OSError: It cannot be read now; its content is unknown, and a later read may succeed.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise Damaged(f"{name} is no regular file")
                if reason := "" if self.is_shared else distrust(found):
                    raise Untrusted(reason, self.path / name)
                if found.st_size > limit or num_bytes not in (None, found.st_size):
                    wanted = f"at most {limit}" if num_bytes is None else num_bytes
                    raise Damaged(f"{name} has {found.st_size} bytes instead of {wanted}")
                # One byte more than expected: then a read that returns less has reached the end.
                chunks = [os.read(descriptor, found.st_size + 1)]
                while chunks[-1] and sum(map(len, chunks)) < found.st_size:
                    chunks.append(os.read(descriptor, found.st_size + 1))
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EACCES:
                self._explain(name, wants_folder=False)
            if error.errno in _WRONG:
                raise Damaged(f"{name} cannot be read: {error.strerror}") from None
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def read_if_there(self, name: str, limit: int) -> tuple[bytes, str]:
        """
        Return the content of the file `name`, empty if there is none; and why it cannot be read,
        empty if it can. Raises in neither case, so a caller must look at the second value.
        """
        try:
            return self.read(name, limit), ""
        except FileNotFoundError:
            return b"", ""
        except (Damaged, OSError) as error:
            return b"", str(error)

    def write(self, name: str, data: bytes, *, mode: int | None = None, sync: bool = True) -> None:
        """
        Write the new file `name`; a file that cannot be written in full is removed again.

        Args:
            name: The file, which must not exist.
            data: Its content.
            mode: Its mode; None for the usual mode of this folder.
            sync: Whether it is to survive a power failure.
        """
        descriptor = os.open(name, _WRITE, self.mode(0o666), dir_fd=self.descriptor)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if mode is not None:
                os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.descriptor)
            raise
        finally:
            os.close(descriptor)

    def replace(self, name: str, data: bytes, drafts: Folder, *, sync: bool = True) -> None:
        """
        Write the file `name` in one step, replacing an earlier one: the data is first written to
        `drafts`.
        """
        draft = unique_name()
        drafts.write(draft, data, sync=sync)
        try:
            drafts.move(draft, self, name)
        except OSError:
            drafts.discard(draft)
            raise

    def replace_durably(self, name: str, data: bytes) -> None:
        """
        Write the file `name`, in place of an earlier one, in one step that survives a power
        failure, also in a newly created root.
        """
        for is_last in (False, True):
            draft = f"{ASIDE}{unique_name()}"  # in this folder: only one must be synced
            self.write(draft, data)
            try:
                self.move(draft, self, name)
                break
            except FileNotFoundError:  # a sweep removed it as an abandoned draft
                if is_last:
                    raise
            except OSError:
                self.discard(draft)
                raise
        self.sync()
        for above in ("..", "../.."):  # the folders themselves may be new
            with suppress(OSError):
                descriptor = os.open(above, _READ | os.O_DIRECTORY, dir_fd=self.descriptor)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def append(self, name: str, data: bytes, limit: int) -> None:
        """Append `data` to the file `name` at once, unless it has `limit` bytes already."""
        descriptor = os.open(name, _APPEND, self.mode(0o666), dir_fd=self.descriptor)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_size < limit:
                os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names of all files and folders in this folder, in no particular order."""
        return os.listdir(self.descriptor)  # noqa: PTH208  # a descriptor is no path

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of `name`, of a link itself; None if there is nothing."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def move(self, name: str, to: Folder, new_name: str) -> None:
        """Rename `name` to `new_name` in `to`, in place of an earlier file or empty folder."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def discard(self, name: str) -> bool:
        """
        Remove the file or folder `name`, whatever it is; links are removed and not followed.

        Returns whether it is gone; never raises because of the disk.
        """
        try:
            os.unlink(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return True
        except OSError:  # a folder: EISDIR here, EPERM elsewhere
            import shutil

            with suppress(OSError, RecursionError):
                shutil.rmtree(name, ignore_errors=True, dir_fd=self.descriptor)
        try:
            return self.stat(name) is None
        except OSError:
            return False

    def touch(self) -> None:
        """Set this folder's times to now."""
        os.utime(self.descriptor)

    def sync(self) -> None:
        """Make the names in this folder survive a power failure."""
        os.fsync(self.descriptor)

    def lock(self, *, exclusive: bool, wait: bool = False) -> bool:
        """
        Lock this folder until it is closed; returns False if another process holds it.
        True as well if the file system has no locks.
        """
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self.descriptor, kind if wait else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True
