# SPDX-License-Identifier: Apache-2.0
"""
Accept connections, one after the other, each of which has a place before anything else is done.

asyncio's own servers know a connection once its TLS handshake is over, and one that begins none is
kept for a minute, however many there are. They stop to accept for a second where the process has
no descriptor left. Here a connection counts from when it is accepted, its handshake has `SHAKE_S`,
and where there is no descriptor the longest idle connection makes room.
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
"""In which a TLS handshake must be over."""

_PART_S = 2.0  # in which a client must say that it ends TLS, too; many never do

_PAUSE_S = 0.05  # after one that came to nothing
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


async def bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """
    Return a listening socket for each address of `host`.

    Raises:
        OSError: One of them cannot be listened at.
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
    What accepts at some listening sockets; it looks to uvicorn as a server of asyncio's does.

    Args:
        sockets: They, not blocking.
        made: Returns the protocol of a new connection.
        context: Of TLS; None: without.
        places: Who may be connected.
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
        """Accept nobody any more; who is connected stays so."""
        for task in (*self._tasks, *self._joining):
            task.cancel()
        for each in self.sockets:
            each.close()

    async def wait_closed(self) -> None:
        """Wait until nobody is accepted any more."""
        await asyncio.gather(*self._tasks, *self._joining, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _SHORT:  # else the client has gone already
                    self._slots.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            slot = self._slots.enter(address_of(peer))
            if slot is None:
                connection.close()
            else:
                self._join(connection, slot)

    def _join(self, connection: socket.socket, slot: Slot) -> None:
        """Make a connection of what was accepted; a handshake that fails ends it."""
        task = asyncio.create_task(self._joined(connection, slot))
        slot.end = task.cancel  # until its protocol has another way
        self._joining.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._joining.discard(task)
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                connection.close()
                slot.leave()
            if error is not None and not isinstance(error, OSError):  # a mistake of ours
                context = {"message": "a connection was not made", "exception": error}
                task.get_loop().call_exception_handler(context)

        task.add_done_callback(over)

    async def _joined(self, connection: socket.socket, slot: Slot) -> None:
        connection.setblocking(False)
        with suppress(OSError):  # it is no TCP, or has gone
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._made(slot),
            connection,
            ssl=self._context,
            ssl_handshake_timeout=SHAKE_S if self._context else None,
            ssl_shutdown_timeout=_PART_S if self._context else None,
        )
