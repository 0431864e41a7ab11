# SPDX-License-Identifier: Apache-2.0
"""Supervisors that fail to start, and those that send lines which the service does not know."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import sys
from typing import Any

import pytest

from jitgen.server import pools
from jitgen.server.confine import Confinement
from jitgen.server.log import Log
from jitgen.server.pools import Pool
from jitgen.server.settings import Toolchain

HELLO = '{"hello": {"cannot": "", "jitgen": "0"}}'


def pool_of(monkeypatch: pytest.MonkeyPatch, *lines: str) -> Pool:
    """Return a pool whose supervisor says `lines` and then waits."""
    said = "".join(f"{line}\n" for line in lines)
    code = f"import os, sys, time\nos.write(int(sys.argv[1]), {said.encode()!r})\ntime.sleep(60)"
    pool = Pool(Toolchain(jobs=1), Confinement(), 5.0, Log(io.StringIO()))
    monkeypatch.setattr(
        pool, "_command", lambda number: [sys.executable, "-S", "-c", code, str(number)]
    )
    return pool


@pytest.mark.parametrize("error", [OSError("no room"), asyncio.CancelledError()])
def test_a_supervisor_without_a_connection_is_ended(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed, and another one was started beside it."""
    started: list[subprocess.Popen[bytes]] = []
    sockets: list[socket.socket] = []

    async def fail(*, sock: socket.socket, **_: Any) -> None:
        sockets.append(sock)
        raise error

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    pool = pool_of(monkeypatch)
    monkeypatch.setattr(pools.subprocess, "Popen", Recorded)
    monkeypatch.setattr(pools.asyncio, "open_connection", fail)

    async def scene() -> None:
        with pytest.raises(type(error)):
            await pool._run()
        await pool.close()

    asyncio.run(scene())
    assert started[0].returncode is not None
    assert sockets[0].fileno() == -1


@pytest.mark.parametrize(
    "lines",
    [
        ('{"welcome": 1}',),
        ('{"hello": {"cannot": ""}}',),
        ('["hello"]',),
        (HELLO, '{"answer": 1}'),
        (HELLO, "7"),
        (HELLO, '{"ask": []}'),
        (HELLO, "[" * 50_000),
    ],
    ids=lambda lines: " ".join(lines)[:60],
)
def test_a_supervisor_is_restarted_whatever_it_says(
    lines: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that restarts it ended with a KeyError, or others."""
    monkeypatch.setattr(pools, "_REST_S", (0.01, 0.01))
    pool = pool_of(monkeypatch, *lines)

    async def scene() -> None:
        pool.start()
        async with asyncio.timeout(20):
            while pool.restarts < 2:
                await asyncio.sleep(0.01)
                assert pool._keeper is not None
                assert not pool._keeper.done()
        assert not pool.is_ready
        await pool.close()

    asyncio.run(scene())
