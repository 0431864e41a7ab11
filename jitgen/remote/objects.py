# SPDX-License-Identifier: Apache-2.0
"""
Object stores: S3, Google Cloud Storage, Azure, and a folder that looks like one, to write to.

Who may read and write there is said where the stores' own programs are told, in ``AWS_*`` variables
or an instance's role, never in the URL. obstore is set to try once and to give up soon. Its threads
do not outlive a fork, and a child that asks would wait for ever: it is told so instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from jitgen.cache.entry import is_key
from jitgen.errors import ToolchainError
from jitgen.remote.budget import ANSWER_S, CONNECT_S, PUSH_S
from jitgen.remote.outcomes import LocalFailure, NotFound, RemoteError, Unreachable, remote_error

_first_user: list[int] = []
"""The process that first used obstore here; its forked children cannot."""


class Objects:
    """
    One place of objects. Safe to use from any thread.

    Attributes:
        url: What it is called.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://account/container`` or ``file:///folder``.
        is_patient: Whether it may take a minute, because somebody waits for just that.
        is_written: Whether a folder that is not there is made; as `is_patient` if not given.
    """

    def __init__(
        self, url: str, *, is_patient: bool = False, is_written: bool | None = None
    ) -> None:
        self.url = url
        self._is_patient = is_patient
        self._is_written = is_patient if is_written is None else is_written
        self._store: Any = None

    def cancel(self) -> None:
        """Do nothing: obstore ends by itself what takes too long."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """
        Return the object at `path`.

        Raises:
            NotFound: There is none.
            Unreachable: The place does not give it, or it is larger than `max_bytes`.
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
            # S3 says so of what is not there, too, to whoever may not list the bucket.
            raise NotFound(_denied(error)) from None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None

    def create(self, path: str, data: bytes) -> bool:
        """
        Put `data` at `path`, unless something is there already; returns whether it was put.

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
        """Put `data` at `path`, in place of what is there; returns True, and raises as `create`."""
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
        """Yield the key of every entry that lies here; raises as `create`."""
        obstore = self._obstore()
        try:
            for page in obstore.list(self._opened(), "v1/ac"):
                for found in page:
                    name = found["path"].rsplit("/", 1)[-1].removesuffix(".json")
                    if is_key(name):
                        yield name
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _remote_error(error) from None

    def _obstore(self) -> Any:
        try:
            import obstore
        except ImportError as error:
            raise ToolchainError(
                f"{self.url} needs the package obstore ({error}); run: pip install 'jitgen[remote]'"
            ) from error
        if not _first_user:
            _first_user.append(os.getpid())
        if _first_user[0] != os.getpid():
            raise LocalFailure(
                "object stores cannot be used in a process that was forked after use"
            )
        return obstore

    def _opened(self) -> Any:
        if self._store is None:
            from obstore.store import LocalStore, from_url

            parts = urlsplit(self.url)
            if parts.scheme == "file":
                self._store = LocalStore(unquote(parts.path), mkdir=self._is_written)
            else:
                answer_s = PUSH_S if self._is_patient else ANSWER_S
                options: Any = {
                    "connect_timeout": f"{CONNECT_S * 1000:.0f}ms",
                    "timeout": f"{answer_s * 1000:.0f}ms",
                    # a store of one's own; S3 itself is asked over TLS, whatever is said here
                    "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
                }
                self._store = from_url(
                    self.url, client_options=options, retry_config={"max_retries": 0}
                )
        return self._store


def _remote_error(error: Exception) -> RemoteError:
    """Return what it means that obstore failed, whose errors hold the system's words."""
    words = _first_line(error)
    return remote_error(RuntimeError(words), words)


def _denied(error: Exception) -> str:
    return f"not there, or not to be read: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    """Return what went wrong; behind the first line obstore says it again, as source."""
    return str(error).strip().split("\n", 1)[0][:300] or type(error).__name__
