# SPDX-License-Identifier: Apache-2.0
"""A service that listens in the test's own loop: no toolchain starts, and nothing is compiled."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from jitgen.server.accept import Acceptor, bound
from jitgen.server.connection_slots import Slot
from jitgen.server.http_limits import BoundedHttpProtocol
from jitgen.server.jobs import Job, Order
from jitgen.server.log import Log
from jitgen.server.serve import App
from jitgen.server.service import Service
from jitgen.server.settings import parse_settings
from jitgen.server.tokens import new_token

WAITING = "1" * 64
"""Key of a kernel that waits for ever."""


class Listening:
    """
    A service that listens in a test's loop.

    Attributes:
        service: The service.
        port: Port on which it listens.
        state: Its connections, as uvicorn counts them.
        tokens: Texts of two tokens, each good for all reads and compiles.
    """

    def __init__(
        self, service: Service, port: int, state: ServerState, tokens: dict[str, str]
    ) -> None:
        self.service = service
        self.port = port
        self.state = state
        self.tokens = tokens

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection that says nothing yet."""
        return await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)

    def head(self, path: str, token: str = "", *lines: str) -> bytes:
        """Return a request without a body."""
        said = [f"Authorization: Bearer {self.tokens[token]}"] if token else []
        return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *said, *lines, "", ""]).encode()

    async def get(self, path: str, token: str = "", *lines: str) -> tuple[int, bytes]:
        """Return status and body of one request, on a connection of its own."""
        reader, writer = await self.connect()
        try:
            writer.write(self.head(path, token, "Connection: close", *lines))
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return int(head.split()[1]), body
        finally:
            writer.close()


@asynccontextmanager
async def listening(folder: Path, **limits: Any) -> AsyncIterator[Listening]:
    """Yield a service with these limits, and a job that waits for ever."""
    made = {name: new_token(name, ("read", "compile")) for name in ("one", "two")}
    file = folder / "tokens.toml"
    file.write_text("\n".join(table for _, table in made.values()))
    file.chmod(0o600)
    settings, errors = parse_settings(
        {
            "store": {"root": str(folder / "cache")},
            "access": {"tokens": str(file)},
            "limits": limits,
            "toolchains": [{"name": "default", "jobs": 1, "confine": "off"}],
        }
    )
    assert not errors
    service = Service(settings, Log(io.StringIO()))
    service.queue._slots["default"] = 0
    service.queue.submit(order())
    config = uvicorn.Config(App(service), lifespan="off", log_config=None)
    config.load()
    state = ServerState()

    def line(slot: Slot) -> BoundedHttpProtocol:
        made = BoundedHttpProtocol(config, state, {})
        made.slot = slot
        return made

    sockets = await bound("127.0.0.1", 0, 100)
    acceptor = Acceptor(sockets, line, None, service.connections)
    port = sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(30):
            yield Listening(service, port, state, {name: each[0] for name, each in made.items()})
    finally:
        acceptor.close()
        await acceptor.wait_closed()
        for each in list(state.connections):
            each.transport.abort()
        for task in list(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)
        await service.close()


def order() -> Order:
    """Return the order of the job that waits for ever."""
    named = {"key": WAITING, "name": "kernel", "arch": "cpu", "pool": "default", "token": "one"}
    return Order(**named, config={}, trace="")


def job_of(service: Service) -> Job:
    """Return the job that waits for ever."""
    found = service.queue.find(WAITING)
    assert found is not None
    return found
