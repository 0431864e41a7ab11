# SPDX-License-Identifier: Apache-2.0
"""
Object stores: S3, Google Cloud Storage, Azure, and a folder in the same layout, for writing.

Credentials come from where the stores' own programs take them, ``AWS_*`` variables or an instance's
role, never from the URL. obstore is configured to try once, with short time limits. Its threads do
not survive a fork, and a request in the child would hang; there an error is raised instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from jitgen.cache.entry import is_key
from jitgen.errors import ToolchainError
from jitgen.remote.budget import ANSWER_S, CONNECT_S, PUSH_S
from jitgen.remote.outcomes import LocalFailure, NotFound, RemoteError, Unreachable, remote_error

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_first_user: list[int] = []
"""Id of the process that first used obstore; its forked children cannot use it."""


class Objects:
    """
    One object store. Safe to use from any thread.

    Attributes:
        url: Its URL.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://account/container`` or ``file:///folder``.
        is_patient: Whether a request may take a minute: for a command that does nothing else.
        is_written: Whether to create a missing folder; default: `is_patient`.
    """

    def __init__(
        self, url: str, *, is_patient: bool = False, is_written: bool | None = None
    ) -> None:
        self.url = url
        self._is_patient = is_patient
        self._is_written = is_patient if is_written is None else is_written
        self._store: ObjectStore | None = None

    def cancel(self) -> None:
        """Do nothing: obstore's own time limits end a request."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """
        Return the object at `path`.

        Raises:
            NotFound: The object does not exist, or may not be read.
            Unreachable: It cannot be read, or is larger than `max_bytes`.
            LocalFailure: This process was forked, or has no descriptor or memory left.
        """
        obstore = self._obstore()
        try:
            found = obstore.get(self._opened(), path)
            size = found.meta["size"]
            if size > max_bytes:
                raise Unreachable(f"{path} has {size} bytes, and {max_bytes} are the most expected")
            return bytes(found.bytes())
        except FileNotFoundError:
            raise NotFound("not there") from None
        except PermissionError as error:
            raise NotFound(_denied(error)) from None
        except obstore.exceptions.PermissionDeniedError as error:
            # S3 says so of an absent object, too, without the permission to list the bucket.
            raise NotFound(_denied(error)) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None

    def create(self, path: str, data: bytes) -> bool:
        """
        Create the object `path`; returns False, and changes nothing, if there is one already.

        Raises:
            Unreachable, LocalFailure: It cannot be written.
        """
        obstore = self._obstore()
        try:
            obstore.put(self._opened(), path, data, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return False
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None
        return True

    def replace(self, path: str, data: bytes) -> bool:
        """Create or overwrite the object `path`; returns True, and raises as `create`."""
        obstore = self._obstore()
        try:
            obstore.put(self._opened(), path, data, mode="overwrite")
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None
        return True

    def remove(self, path: str) -> None:
        """Remove the object at `path`, if there is one; raises as `create`."""
        obstore = self._obstore()
        try:
            obstore.delete(self._opened(), path)
        except FileNotFoundError:
            return
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None

    def keys(self) -> Iterator[str]:
        """Yield the key of every entry in the store; raises as `create`."""
        obstore = self._obstore()
        try:
            for page in obstore.list(self._opened(), "v1/ac"):
                for found in page:
                    name = found["path"].rsplit("/", 1)[-1].removesuffix(".json")
                    if is_key(name):
                        yield name
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None

    def _obstore(self) -> ModuleType:
        try:
            import obstore
        except ImportError as error:
            raise ToolchainError(
                f"{self.url} needs the package obstore ({error}); run: pip install obstore"
            ) from error
        if not _first_user:
            _first_user.append(os.getpid())
        if _first_user[0] != os.getpid():
            raise LocalFailure(
                "object stores cannot be used in a process that was forked after use"
            )
        return obstore

    def _opened(self) -> ObjectStore:
        if self._store is None:
            from obstore.store import LocalStore, from_url

            parts = urlsplit(self.url)
            if parts.scheme == "file":
                self._store = LocalStore(unquote(parts.path), mkdir=self._is_written)
            else:
                answer_s = PUSH_S if self._is_patient else ANSWER_S
                options: ClientConfig = {
                    "connect_timeout": f"{CONNECT_S * 1000:.0f}ms",
                    "timeout": f"{answer_s * 1000:.0f}ms",
                    # for a private store; S3 itself is used over TLS in any case
                    "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
                }
                self._store = from_url(
                    self.url, client_options=options, retry_config={"max_retries": 0}
                )
        return self._store


def _remote_error(error: Exception) -> RemoteError:
    """Return the error for a failure of obstore, whose text has the system's error."""
    words = _first_line(error)
    return remote_error(RuntimeError(words), words)


def _denied(error: Exception) -> str:
    return f"not there, or not to be read: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """Return the first line of an error; obstore repeats it below as debug output."""
    return str(error).strip().split("\n", 1)[0][:300] or type(error).__name__
