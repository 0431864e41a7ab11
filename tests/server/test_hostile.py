# SPDX-License-Identifier: Apache-2.0
"""Requests that ask for more than one client may have."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from jitgen.errors import PlanError
from jitgen.server import http_limits
from jitgen.server.supervisor import expand
from tests.service.running import Running


def test_a_plan_in_a_request_is_no_bomb() -> None:
    """A line of JSON stands for a thousand choices: half a minute without any answer."""
    problem = {
        "layout": "ragged",
        "groups": list(range(1, 102)),
        "rows_per_group": {"min": 1, "max": 8192},
        "matrix": {"n": 4096, "k": 7168},
        "dtype": "e4m3",
        "out_dtype": "bf16",
        "scale_granularity": "block128",
    }

    with pytest.raises(PlanError, match="101 combinations, and 100 are the most"):
        expand({"plan": {"problems": [problem]}, "arch": "sm_90a"})


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("here")(scope, receive, send)


@asynccontextmanager
async def _connected() -> AsyncIterator[
    tuple[asyncio.StreamReader, asyncio.StreamWriter, ServerState]
]:
    config = uvicorn.Config(_answer, lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: http_limits.BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0
    )
    async with server, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        yield reader, writer, state
        writer.close()


_HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (_HEAD, b"X-More: " + b"a" * 1000 + b"\r\n"),
        (_HEAD + b"X-Long: ", b"a" * 1000),
        (b"GET /", b"a" * 1000),
        (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-After: b\r\n" * 80),
    ],
    ids=["many headers", "a long one", "a long path", "after the body"],
)
def test_headers_without_an_end_are_cut_off(begin: bytes, more: bytes) -> None:
    """All of them were kept, so that any client could fill the memory."""

    async def sent() -> int:
        async with _connected() as (reader, writer, _):
            writer.write(begin)
            total = 0
            with suppress(ConnectionError):
                while total < 2**24:
                    writer.write(more)
                    total += len(more)
                    await writer.drain()
                    await asyncio.sleep(0)
            with suppress(ConnectionError):
                await reader.read()
            return total

    assert asyncio.run(sent()) < 2**24


@pytest.mark.parametrize("said", [b"", _HEAD, _HEAD + b"Content-Length: 9\r\n\r\nabc"])
def test_a_request_that_does_not_end_gives_its_place_back(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of them as there are connections shut all clients out, without a token."""

    async def scene() -> None:
        async with _connected() as (reader, writer, state):
            writer.write(said)
            while not state.connections:
                await asyncio.sleep(0.01)
            http_limits.end_late(state.connections)
            await asyncio.sleep(0.05)
            monkeypatch.setattr(http_limits, "REQUEST_S", 0.0)
            assert state.connections
            http_limits.end_late(state.connections)
            await reader.read()  # to its end, which comes

    asyncio.run(scene())


def test_requests_one_after_the_other_are_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection waits for its next request as long as the server keeps it."""
    monkeypatch.setattr(http_limits, "REQUEST_S", 0.0)

    async def scene() -> int:
        async with _connected() as (reader, writer, state):
            for _ in range(3):
                writer.write(_HEAD + b"X: " + b"a" * 30_000 + b"\r\n\r\n")
                assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200")
                http_limits.end_late(state.connections)
            return len(state.connections)

    assert asyncio.run(scene()) == 1


def test_uploads_wait_for_a_place_before_their_body_is_read(service: Running) -> None:
    """A write token and a thousand connections were 16 GB of bodies in memory."""
    host, port = service.url.removeprefix("http://").split(":")
    begin = (
        f"PUT /v1/entries/{'0' * 64} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
        f"Authorization: Bearer {service.tokens['write']}\r\n\r\n"
    ).encode()
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(9)
        ]
        for each in sockets:
            each.sendall(begin)
        ready, _, _ = select.select(sockets, [], [], 10)

        assert [each.recv(12) for each in ready] == [b"HTTP/1.1 429"]
