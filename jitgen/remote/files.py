# SPDX-License-Identifier: Apache-2.0
"""
A folder in the layout of an object store, for reading.

Plain files need no client of object stores, whose threads take longer to start than reading the
files. Writing and listing go through `jitgen.remote.objects`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jitgen.remote.outcomes import NotFound, Unreachable, remote_error


class Files:
    """
    One folder. Safe to use from any thread, and in forked children.

    Attributes:
        url: Its URL.

    Args:
        url: ``file:///folder``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = Path(unquote(urlsplit(url).path))

    def cancel(self) -> None:
        """Do nothing: a read of a disk cannot be cancelled."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """
        Return the file at `path`.

        Raises:
            NotFound: The file does not exist, or may not be read.
            Unreachable: It cannot be read, is no regular file, or is larger than `max_bytes`.
            LocalFailure: This process has no descriptor or memory left.
        """
        try:
            descriptor = os.open(self._folder / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise Unreachable(f"{path} is no regular file")
                with os.fdopen(descriptor, "rb", closefd=False) as stream:
                    data = stream.read(max_bytes + 1)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise NotFound("not there") from None
        except PermissionError as error:
            raise NotFound(f"not there, or not to be read: {error.strerror}") from None
        except OSError as error:
            raise remote_error(error, f"{path} cannot be read: {error.strerror}") from None
        if len(data) > max_bytes:
            raise Unreachable(f"{path} has more than the {max_bytes} bytes expected")
        return data
