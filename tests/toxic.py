# SPDX-License-Identifier: Apache-2.0
"""
A web server with faults: it ends connections, is slow, gives wrong answers, or never ends an
answer.

It runs on a thread of its own. A poison is a coroutine that is given the request and a stream to
write to; the connection ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field

from jitgen.remote import wire


@dataclass
class Request:
    """
    Attributes:
        method: ``GET`` or another.
        path: Path behind the server's address.
        headers: Headers, with names in lower case.
        body: Body of the request.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Poison = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Toxic:
    """
    Attributes:
        poison: What the server does; it may be changed while the server runs.
        port: Port on which it listens.
        connections: Number of connections so far.
        requests: Requests that it got.
        writers: The connections' streams.
    """

    poison: Poison
    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(_field(line) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, path, _ = lines[0].split(" ")
                request = Request(method, path, headers, body)
                self.requests.append(request)
                await self.poison(request, writer)
                await writer.drain()
                if self.poison not in KEEPING:
                    break


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


KEEPING: list[Poison] = []
"""Poisons after which the connection stays open."""


@contextmanager
def toxic(poison: Poison) -> Iterator[Toxic]:
    """Yield a server with `poison`, for the length of a with block."""
    server = Toxic(poison)
    loop = asyncio.new_event_loop()
    started, ended = threading.Event(), asyncio.Event()

    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await ended.wait()
        listening.close()
        await asyncio.sleep(0)  # what was accepted has its task
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in server.writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # that is when they are closed

    def run() -> None:
        loop.run_until_complete(main())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


@contextmanager
def refusing() -> Iterator[str]:
    """Yield the address of a port at which no process listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """Yield the address of a port that answers nothing, not even that it does not answer."""
    with ExitStack() as stack:
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))
        bound.listen(0)
        for _ in range(4):  # the queue is full: what comes next is dropped
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(bound.getsockname())
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def head(status: int, headers: Mapping[str, str | int]) -> bytes:
    """Return the beginning of an answer."""
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def answer(status: int, body: bytes = b"", **headers: str | int) -> Poison:
    """Return what answers with this; ``content_type`` stands for ``Content-Type``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("content-length", len(body))

    async def poison(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, named) + body)

    return poison


def entry(packed: bytes, **headers: str | int) -> Poison:
    """Return what answers with an entry, compressed."""
    data = wire.compress(packed)
    return answer(200, data, content_type=wire.TAR, content_encoding="zstd", **headers)


async def silence(request: Request, writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""
    await asyncio.sleep(60)


async def cut(request: Request, writer: asyncio.StreamWriter) -> None:
    """End the connection."""


async def dripping_head(request: Request, writer: asyncio.StreamWriter) -> None:
    """Send a header, a letter at a time."""
    for letter in head(200, {f"x-{number}": "y" * 100 for number in range(50)}):
        writer.write(bytes([letter]))
        await writer.drain()
        await asyncio.sleep(0.2)


def dripping(body: bytes, **headers: str | int) -> Poison:
    """Return what sends a body one byte a second."""

    async def poison(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, {"content-type": wire.TAR, "content-length": len(body), **headers}))
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1)

    return poison


async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
    """Send a body that does not end, slowly enough to stay below every size for a second."""
    writer.write(head(200, {"content-type": wire.TAR, "transfer-encoding": "chunked"}))
    while True:
        writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flood(request: Request, writer: asyncio.StreamWriter) -> None:
    """Send a body that does not end, as fast as it goes."""
    writer.write(head(200, {"content-type": wire.TAR, "transfer-encoding": "chunked"}))
    while True:
        writer.write(b"100000\r\n" + bytes(2**20) + b"\r\n")
        await writer.drain()
