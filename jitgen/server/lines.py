# SPDX-License-Identifier: Apache-2.0
"""
Connections whose requests must have an end.

uvicorn keeps every header that it is sent, and waits for the rest of a request for as long as the
client likes. So anybody, without a token, could fill the memory with one connection, or take every
place that there is with connections that say nothing. Here a request is over in `REQUEST_S`, and
what of it is no body is bounded.

httptools calls trailers headers, and uvicorn adds them to the list that the request is answered by:
one that came in the same packet was a header. Here they are dropped, as RFC 9110, 6.5.1, allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 40.0
"""In which a request must be here: its body has 30 s from when somebody reads it."""

MAX_HEAD = 2**16
"""Bytes of a request line with its headers, or of what follows a body."""


class Bounded(HttpToolsProtocol):
    """One connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the first request is due from now on."""
        super().connection_made(transport)
        self._since = time.monotonic()
        self._loose = 0  # bytes since the last that had a place: a body's, or the end of a request

    def data_received(self, data: bytes) -> None:
        """Take what came; end the connection where that is more than any head has."""
        self._loose += len(data)
        super().data_received(data)
        if self._loose > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"headers have at most {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._since = time.monotonic()

    def on_headers_complete(self) -> None:
        """Begin to answer; what comes behind the body has a list that nobody looks at."""
        super().on_headers_complete()
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, which whoever reads it bounds."""
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; until the next one begins, uvicorn's own time for idle ones holds."""
        super().on_message_complete()
        self._since, self._loose = 0.0, 0

    def is_late(self, now: float) -> bool:
        """Return whether a request has been on its way for too long."""
        return bool(self._since) and now - self._since > REQUEST_S


def end_late(connections: Iterable[Any]) -> None:
    """Close those of `connections` whose request does not come to an end."""
    now = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, Bounded) and connection.is_late(now):
            connection.transport.close()
