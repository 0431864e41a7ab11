# SPDX-License-Identifier: Apache-2.0
"""
Limits of time and size for the requests and responses of a connection.

uvicorn stores every header it receives, and waits without a limit for the rest of a request and for
the client to read the response. A client without a token could thus fill the memory with one
connection, or occupy every slot with silent ones. Here a request must arrive within `REQUEST_S`,
everything but its body is bounded, and a response that is not read for `DRAIN_S` closes the
connection.

httptools reports trailers as headers, and uvicorn adds them to the list of headers of the request:
one in the same packet as the head was taken for a header. Here they are dropped, as RFC 9110,
6.5.1, allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jitgen.server.connection_slots import Slot

REQUEST_S = 40.0
"""Time limit for a request to arrive; its body has 30 s from when the handler reads it."""

DRAIN_S = 60.0
"""Time within which a client must read some of the response: at most 48 KiB of it."""

MAX_HEAD = 2**16
"""Most bytes of a request line with its headers, or of trailers after a body."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """
    One HTTP connection, with limits of time and size.

    Attributes:
        slot: Its slot; None where connections are not counted.
    """

    slot: Slot | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the connection; the time limit of the first request starts, too."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._since = time.monotonic()  # time since which a request is due; 0: none is due
        self._is_begun = False  # whether a request has begun to arrive
        self._unread = 0.0  # since when the client does not read; 0: it reads
        self._ending = 0.0  # time since which it is closing; 0: it is not closing
        self._loose = 0  # bytes since the last body part or end of a request: a head or trailers
        if self.slot is not None:
            self.slot.end = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection and free its slot."""
        super().connection_lost(exc)
        if self.slot is not None:
            self.slot.leave()

    def pause_writing(self) -> None:
        """Record that the client reads too slowly, or not at all."""
        super().pause_writing()
        self._unread = time.monotonic()
        if self.slot is not None and not self.slot.is_known:
            self.slot.idle()  # else a client without a token that does not read would count as busy

    def resume_writing(self) -> None:
        """Record that the client reads on."""
        super().resume_writing()
        self._unread = 0.0
        if self.slot is not None and self._is_answered:
            self.slot.busy()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; reject a head, or trailers, of more than `MAX_HEAD` bytes."""
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
        """Start the response; trailers go into a new list, which is ignored."""
        super().on_headers_complete()
        self.headers = []
        if self.slot is not None:
            self.slot.busy()

    def on_response_complete(self) -> None:
        """End a response; without another request the connection is idle."""
        super().on_response_complete()
        if self.slot is not None and self.cycle.response_complete:
            self.slot.idle()

    def on_body(self, body: bytes) -> None:
        """Receive a part of a body; the handler that reads the body bounds its size."""
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; until the next one, uvicorn's own limit for idle connections applies."""
        super().on_message_complete()
        self._since, self._loose, self._is_begun = 0.0, 0, False

    @property
    def _is_answered(self) -> bool:
        """Whether a response is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes(self) -> bool:
        """
        Whether a request has begun to arrive, or no response is under way: then the client owes the
        rest of it, or a new one.
        """
        return self._is_begun or not self._is_answered

    def end_if_late(self, now: float) -> None:
        """Close the connection if the client exceeds one of the time limits."""
        if self.transport.is_closing():  # it closes once all is sent, which may be never
            self._ending = self._ending or now
            if now - self._ending > DRAIN_S:
                self.transport.abort()
        elif self._unread and now - self._unread > DRAIN_S:
            self.transport.abort()
        elif self._since and now - self._since > REQUEST_S and self._owes:
            self.transport.close()


def end_late(connections: Iterable[object]) -> None:
    """Close each of `connections` that exceeds a time limit."""
    now = time.monotonic()
    for connection in list(connections):
        if isinstance(connection, BoundedHttpProtocol):
            connection.end_if_late(now)
