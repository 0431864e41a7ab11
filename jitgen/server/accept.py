# SPDX-License-Identifier: Apache-2.0
"""
Accepts connections, and gives each a slot before anything else is done with it.

asyncio's own servers count a connection only after its TLS handshake, and keep one that never
begins a handshake for a minute, without a limit on their number. They also stop accepting for a
second when the process has no descriptor left. Here a connection counts as soon as it is accepted,
its handshake must end within `SHAKE_S`, and without a descriptor the longest idle connection is
closed to make room.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from jitgen.server.connection_slots import ConnectionSlots, Slot, address_of
from jitgen.server.http_limits import BoundedHttpProtocol

SHAKE_S = 10.0
"""Time limit of a TLS handshake."""

_PART_S = 2.0  # for the client to end TLS, which many clients never do

_PAUSE_S = 0.05  # after a connection that could not be accepted
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """
    Return a listening socket for each address of `host`.

    Raises:
        OSError: The service cannot listen at one of them.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made.append(socket.create_server(address, family=family, backlog=backlog))
            made[-1].setblocking(False)
    except OSError:
        for each in made:
            each.close()
        raise
    return made


class Acceptor:
    """
    Accepts connections at listening sockets; uvicorn uses it like a server of asyncio's.

    Args:
        sockets: The listening sockets, not blocking.
        made: Returns the protocol of a new connection.
        context: The TLS context; None for plain TCP.
        slots: The limit on connections.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        made: Callable[[Slot], BoundedHttpProtocol],
        context: ssl.SSLContext | None,
        slots: ConnectionSlots,
    ) -> None:
        self.sockets = sockets
        self._made = made
        self._context = context
        self._slots = slots
        self._joining: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._accept(each), name="accept") for each in sockets]

    def close(self) -> None:
        """Stop accepting, and end handshakes; connections after their handshake stay open."""
        for task in (*self._tasks, *self._joining):
            task.cancel()
        for each in self.sockets:
            each.close()

    async def wait_closed(self) -> None:
        """Wait until accepting has stopped."""
        await asyncio.gather(*self._tasks, *self._joining, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _SHORT:  # any other error: the client has gone already
                    self._slots.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            slot = self._slots.enter(address_of(peer))
            if slot is None:
                connection.close()
            else:
                self._join(connection, slot)

    def _join(self, connection: socket.socket, slot: Slot) -> None:
        """Start the protocol of an accepted connection; a failed handshake closes it."""
        task = asyncio.create_task(self._joined(connection, slot))
        slot.end = task.cancel  # the protocol replaces this with its own
        self._joining.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._joining.discard(task)
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                connection.close()
                slot.leave()
            if error is not None and not isinstance(error, OSError):  # a bug of the service
                context = {"message": "a connection was not made", "exception": error}
                task.get_loop().call_exception_handler(context)

        task.add_done_callback(over)

    async def _joined(self, connection: socket.socket, slot: Slot) -> None:
        connection.setblocking(False)
        with suppress(OSError):  # not TCP, or already closed
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._made(slot),
            connection,
            ssl=self._context,
            ssl_handshake_timeout=SHAKE_S if self._context else None,
            ssl_shutdown_timeout=_PART_S if self._context else None,
        )
