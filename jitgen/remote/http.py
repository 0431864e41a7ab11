# SPDX-License-Identifier: Apache-2.0
"""
A small HTTP client for fetching kernels: one try, no redirects, bounded answers.

A redirect is refused, since following it would send the token to whatever host the answer names. An
answer that is longer than expected, or shorter than it states, is refused, too. Idle connections
are reused by the next request of this process, and never shared with a forked child; only a request
on a connection that the server has just closed is sent again. The client is the standard library's:
importing another one would take as long as all the rest of a fetch.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from jitgen.remote.budget import ANSWER_S, CONNECT_S
from jitgen.remote.outcomes import (
    Busy,
    LocalFailure,
    NotFound,
    RemoteError,
    Unreachable,
    remote_error,
)
from jitgen.support.frozen import frozen

_CHUNK = 2**16
_LEAST_WAIT_S, _MOST_WAIT_S = 0.2, 600.0
_MOST_IDLE = 4
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@frozen
class Answer:
    """
    The response of a server.

    Attributes:
        status: Status code.
        headers: Headers; names in lower case.
        body: Body, still encoded.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_s(self) -> float:
        """Seconds of Retry-After, 1 without the header, bounded to 0.2 and 600."""
        text = self.headers.get("retry-after", "")
        said = float(text) if text.isascii() and text.isdigit() else 1.0
        return min(max(said, _LEAST_WAIT_S), _MOST_WAIT_S)


class Server:
    """
    One server. Safe to use from any thread.

    Attributes:
        url: Its address, to which paths are added.
        is_confidential: Whether a token may be sent to it: over TLS, or to this very host.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        # HTTPConnection takes a port that is missing from the host, and finds one in ::1
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._is_tls else 80)
        self._path = parts.path
        self.is_confidential = self._is_tls or self._host in _LOOPBACK
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._pid = os.getpid()

    def session(self) -> Session:
        """Return a session for requests one after the other, on one thread."""
        if self._pid != os.getpid():  # connections and lock belong to the parent
            self._lock, self._idle, self._pid = threading.Lock(), [], os.getpid()
        return Session(self)

    def path_of(self, path: str) -> str:
        """Return `path` below the path of the server's URL."""
        return f"{self._path}/{path}"

    def take(self) -> tuple[HTTPConnection, bool]:
        """Return an idle connection and True, or a new one, not connected yet, and False."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if _is_quiet(connection):
                return connection, True
            connection.close()
        if not self._is_tls:
            return HTTPConnection(self._host, self._port, timeout=CONNECT_S), False
        import ssl

        context = ssl.create_default_context()
        secure = HTTPSConnection(self._host, self._port, timeout=CONNECT_S, context=context)
        return secure, False

    def give(self, connection: HTTPConnection) -> None:
        """Return a connection for reuse by the next request."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()


class Session:
    """Requests to one server, for one entry."""

    def __init__(self, server: Server) -> None:
        self._server = server
        # Held here, since the connection drops its socket when an answer ends with it.
        self._socket: socket.socket | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the request under way, from another thread."""
        self.is_cancelled = True
        if (opened := self._socket) is not None:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def request(
        self,
        method: str,
        path: str,
        max_bytes: int,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        answer_s: float = ANSWER_S,
    ) -> Answer:
        """
        Return the answer to one request; its status is below 300, 304, or 4xx except 429.

        Raises:
            Unreachable: The server cannot be reached, breaks off, is too slow, redirects, fails
                (5xx), or answers with more than `max_bytes`.
            LocalFailure: This process has no descriptor or memory left.
            Busy: The server asks for a pause (429 or 503).
        """
        while True:
            if self.is_cancelled:
                raise Unreachable("the time is over")
            try:
                connection, is_used = self._server.take()
            except OSError as error:
                raise _remote_error(error) from None
            is_over = False
            try:
                if not is_used:
                    connection.connect()
                self._socket = connection.sock
                if (
                    self.is_cancelled
                ):  # resolving the name may have taken longer than the time limit
                    raise Unreachable("the time is over")
                connection.sock.settimeout(answer_s)
                try:
                    connection.request(
                        method,
                        self._server.path_of(path),
                        body=body,
                        headers={"User-Agent": "jitgen", **(headers or {})},
                    )
                    response = connection.getresponse()
                except ConnectionError:
                    if is_used:  # the server had closed it just then
                        continue
                    raise
                with response:
                    answer = _answer(response, max_bytes, self)
                is_over = True
            except (HTTPException, OSError, ValueError) as error:
                raise _remote_error(error) from None
            finally:
                self._socket = None
                if is_over and connection.sock is not None and not self.is_cancelled:
                    self._server.give(connection)
                else:
                    connection.close()
            _check(answer)
            return answer


class WebObjects:
    """A bucket's layout on a web server, for reading."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def read(self, path: str, max_bytes: int) -> bytes:
        """Return the object at `path`; raises as `jitgen.remote.objects.Objects.read`."""
        answer = self._session.request("GET", path, max_bytes)
        if answer.status == 200:
            if answer.headers.get("content-type", "").startswith("text/html"):
                raise Unreachable("a web page instead of an object")
            return answer.body
        if answer.status in (
            403,
            404,
            410,
        ):  # S3 answers 403 if the bucket may not be listed
            raise NotFound(f"not there (HTTP {answer.status})")
        raise Unreachable(f"HTTP {answer.status}")


def _is_quiet(connection: HTTPConnection) -> bool:
    """
    Return whether an idle connection is still open; if it can be read, the server has ended it.
    """
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _answer(response: HTTPResponse, max_bytes: int, session: Session) -> Answer:
    """
    Read an answer; raises Unreachable if it is too long or cut off, or `session` was cancelled.
    """
    said = response.length
    if said is not None and said > max_bytes:
        raise Unreachable(f"an answer of {said} bytes, and {max_bytes} are the most expected")
    chunks, size = [], 0
    while chunk := response.read(_CHUNK):
        size += len(chunk)
        if size > max_bytes or session.is_cancelled:
            raise Unreachable(f"an answer of more than {max_bytes} bytes")
        chunks.append(chunk)
    if said is not None and size < said:
        raise Unreachable(f"an answer that breaks off after {size} of {said} bytes")
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(status=response.status, headers=headers, body=b"".join(chunks))


def _check(answer: Answer) -> None:
    """Raise Unreachable for a redirect or a 5xx status, and Busy for 429 and 503."""
    status = answer.status
    if 300 <= status < 400 and status != 304:
        raise Unreachable(f"a redirect (HTTP {status}), which is not followed")
    if status in (429, 503):
        raise Busy(f"HTTP {status}, asks for {answer.retry_s:g} s", answer.retry_s)
    if status >= 500:
        raise Unreachable(f"HTTP {status}")


def _remote_error(error: Exception) -> RemoteError:
    """Return the error for a failed request."""
    words = str(error)[:300] or type(error).__name__
    if isinstance(error, socket.gaierror) and (reason := _no_descriptor()):
        return LocalFailure(f"this process cannot ask now: {words} ({reason})")
    return remote_error(error, words)


def _no_descriptor() -> str:
    """
    Return why no file can be opened, empty if one can. The resolver reads files, and reports a name
    as unknown if it cannot; that is then no statement about the name.
    """
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return str(error)
    return ""
