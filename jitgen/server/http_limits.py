# SPDX-License-Identifier: Apache-2.0
"""
Connections whose requests and answers must have an end.

uvicorn keeps every header that it is sent, and waits for the rest of a request, and for a client to
read its answer, for as long as the client likes. So anybody, without a token, could fill the memory
with one connection, or take every place that there is with connections that say nothing. Here a
request is over in `REQUEST_S`, what of it is no body is bounded, and an answer that is not read
for `DRAIN_S` ends with its connection.

httptools calls trailers headers, and uvicorn adds them to the list that the request is answered by:
one that came in the same packet was a header. Here they are dropped, as RFC 9110, 6.5.1, allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jitgen.server.connection_slots import Slot

REQUEST_S = 40.0
"""In which a request must be here: its body has 30 s from when somebody reads it."""

DRAIN_S = 60.0
"""In which a client must read something of what is sent to it, 48 KiB at the most."""

MAX_HEAD = 2**16
"""Bytes of a request line with its headers, or of what follows a body."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """
    One connection.

    Attributes:
        place: Its place among all; None where they are not counted.
    """

    slot: Slot | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the first request is due from now on."""
        super().connection_made(transport)
        self._since = time.monotonic()  # the client owes the rest of a request; 0: nothing
        self._is_begun = False  # whether a request is on its way
        self._unread = 0.0  # since when what is sent is not read; 0: it is
        self._ending = 0.0  # since when it is to be closed
        self._loose = 0  # bytes since the last that had a place: a body's, or the end of a request
        if self.slot is not None:
            self.slot.end = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and give the place back."""
        super().connection_lost(exc)
        if self.slot is not None:
            self.slot.leave()

    def pause_writing(self) -> None:
        """Note that the client does not read, or not as fast as it is sent something."""
        super().pause_writing()
        self._unread = time.monotonic()
        if self.slot is not None and not self.slot.is_known:
            self.slot.idle()  # else who asks for much, reads nothing and has no token is busy

    def resume_writing(self) -> None:
        """Note that it does."""
        super().resume_writing()
        self._unread = 0.0
        if self.slot is not None and self._is_answered:
            self.slot.busy()

    def data_received(self, data: bytes) -> None:
        """Take what came; end the connection where that is more than any head has."""
        self._loose += len(data)
        # An empty line begins no request, but ends uvicorn's own time for idle connections.
        self._since = self._since or time.monotonic()
        super().data_received(data)
        if self._loose > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"headers have at most {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.scope["state"]["slot"] = self.slot
        self._since, self._is_begun = time.monotonic(), True

    def on_headers_complete(self) -> None:
        """Begin to answer; what comes behind the body has a list that is not looked at."""
        super().on_headers_complete()
        self.headers = []
        if self.slot is not None:
            self.slot.busy()

    def on_response_complete(self) -> None:
        """End an answer; without another request the connection is idle."""
        super().on_response_complete()
        if self.slot is not None and self.cycle.response_complete:
            self.slot.idle()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, which whoever reads it bounds."""
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; until the next one begins, uvicorn's own time for idle ones holds."""
        super().on_message_complete()
        self._since, self._loose, self._is_begun = 0.0, 0, False

    @property
    def _is_answered(self) -> bool:
        """Whether an answer is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes(self) -> bool:
        """Whether the client has begun a request, or none of it is answered now."""
        return self._is_begun or not self._is_answered

    def end_if_late(self, now: float) -> None:
        """End the connection if the client keeps it waiting for too long."""
        if self.transport.is_closing():  # it is, once all is sent: which may be never
            self._ending = self._ending or now
            if now - self._ending > DRAIN_S:
                self.transport.abort()
        elif self._unread and now - self._unread > DRAIN_S:
            self.transport.abort()
        elif self._since and now - self._since > REQUEST_S and self._owes:
            self.transport.close()


def end_late(connections: Iterable[Any]) -> None:
    """Close those of `connections` whose request, or the reading of whose answer, has no end."""
    now = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, BoundedHttpProtocol):
            connection.end_if_late(now)
