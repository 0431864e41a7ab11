# SPDX-License-Identifier: Apache-2.0
"""More connections, requests and streams than there are places: who is served still."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.server import connection_slots, http_limits, prewarms
from jitgen.server.connection_slots import EXTRA, ConnectionSlots, address_of
from jitgen.server.job_handlers import _is_over
from jitgen.server.metrics import Metrics
from jitgen.server.request import HTTPError, Request
from jitgen.server.settings import Limits
from jitgen.server.tokens import Token
from tests.server.listening import WAITING, Listening, job_of, listening

STREAM = "Accept: text/event-stream"
JOB = f"/v1/jobs/{WAITING}"


@asynccontextmanager
async def silent(
    there: Listening, count: int, said: bytes = b""
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Yield so many connections, on each of which `said` was sent and nothing is read."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            reader, writer = await there.connect()
            stack.callback(writer.close)
            writer.write(said)
            found.append((reader, writer))
        await asyncio.sleep(0.1)
        yield found


@pytest.mark.parametrize(
    "said",
    [b"", b"\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX-Half: "],
    ids=["silent", "an empty line", "half a request"],
)
def test_idle_connections_shut_no_client_out(tmp_path: Path, said: bytes) -> None:
    """As many as there were places, without any token, and all others were told 503: /livez too."""

    async def scene() -> None:
        async with listening(tmp_path, connections=10) as there, silent(there, 30, said):
            for _ in range(20):
                assert (await there.get("/livez"))[0] == 200
                assert (await there.get("/metrics", "one"))[0] == 200
                assert (await there.get("/v1/info", "two"))[0] == 200
            assert len(there.service.connections) <= 10
            _, counted = await there.get("/metrics", "one")
            assert b'jitgen_service_connections_ended_total{reason="displaced"}' in counted

    asyncio.run(scene())


def test_who_showed_a_token_makes_room_last(tmp_path: Path) -> None:
    """A client between two requests keeps its connection while strangers come and go."""

    async def scene() -> None:
        async with listening(tmp_path, connections=10) as there:
            reader, writer = await there.connect()
            for _ in range(3):
                writer.write(there.head("/v1/info", "one"))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                async with silent(there, 30):
                    pass
            writer.close()

    asyncio.run(scene())


def test_one_address_has_its_share(tmp_path: Path) -> None:
    """Its own idle connections make room for it, and no others."""
    found = ConnectionSlots(10, 4, Metrics())
    ended: list[str] = []

    def enter(address: str) -> connection_slots.Slot:
        slot = found.enter(address)
        assert slot is not None
        slot.end = lambda: ended.append(address)
        return slot

    other = [enter("b") for _ in range(3)]
    mine = [enter("a") for _ in range(4)]
    assert not enter("a").is_extra
    assert ended == ["a"]
    for slot in mine[1:]:
        slot.busy()
    enter("a").busy()
    assert ended == ["a", "a"]
    assert enter("a").is_extra, "all of its own are busy"
    assert not enter("b").is_extra
    assert not any(slot.is_extra for slot in other)


def test_unread_streams_of_a_token_are_bounded(tmp_path: Path) -> None:
    """Each had a connection for ever, and as many as there were places were given."""

    async def scene() -> None:
        async with listening(tmp_path, connections=40, streams=5) as there:
            said = there.head(JOB, "one", STREAM)
            async with silent(there, 30, said) as streams:
                found = [await reader.readuntil(b"\r\n\r\n") for reader, _ in streams]
                statuses = [int(head.split()[1]) for head in found]
                assert (statuses.count(200), statuses.count(429)) == (5, 25)
                assert all(b"retry-after: " in head for head in found if b" 429 " in head)
                assert (await there.get(JOB, "one"))[0] == 200, "but not its other requests"
                assert (await there.get("/livez"))[0] == 200
                assert there.service.quotas.num_streams == 5
            await asyncio.sleep(0.1)
            assert there.service.quotas.num_streams == 0

    asyncio.run(scene())


def test_streams_of_all_tokens_leave_half_of_the_places(tmp_path: Path) -> None:
    async def scene() -> None:
        async with listening(tmp_path, connections=10) as there:
            said = [there.head(JOB, name, STREAM) for name in ("one", "two")]
            async with silent(there, 3, said[0]), silent(there, 3, said[1]) as streams:
                heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in streams]
                assert [int(head.split()[1]) for head in heads] == [200, 200, 503]

    asyncio.run(scene())


def test_a_stream_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that wants more asks again; one that reads nothing went on for ever."""
    monkeypatch.setattr("jitgen.server.job_handlers._BEAT_S", 1.0)

    async def scene() -> bytes:
        async with listening(tmp_path, stream_s=1) as there:
            status, body = await there.get(JOB, "one", STREAM)
            assert status == 200
            return body

    assert b"event: queued" in asyncio.run(scene())


def test_waiting_requests_of_a_token_are_bounded(tmp_path: Path) -> None:
    """They join one job, which no bound of the queue counts, and each waits for minutes."""

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(listening(tmp_path, connections=40, requests=5))
            said = there.head(JOB, "one", STREAM)
            waiting = await stack.enter_async_context(silent(there, 9, said))
            heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in waiting]
            statuses = [int(head.split()[1]) for head in heads]
            assert (statuses.count(200), statuses.count(429)) == (5, 4)
            assert (await there.get("/v1/info", "one"))[0] == 429
            assert (await there.get("/metrics", "one"))[0] == 200
            assert (await there.get("/v1/info", "two"))[0] == 200

    asyncio.run(scene())


def test_where_all_are_busy_health_is_served(tmp_path: Path) -> None:
    """And nothing else: a clear word, and the connection ends."""

    async def scene() -> None:
        async with listening(tmp_path, connections=4, streams=4) as there:
            there.service.quotas._limits = Limits(connections=100)
            said = there.head(JOB, "one", STREAM)
            async with silent(there, 4, said), silent(there, 2 * EXTRA):
                for path in ("/livez", "/readyz", "/metrics"):
                    status, _ = await there.get(path, "one")
                    assert status in (200, 503) if path == "/readyz" else status == 200
                status, body = await there.get("/v1/info", "two")
                assert status == 503
                assert b"have a request under way" in body

    asyncio.run(scene())


def test_prewarms_of_one_token_leave_room(tmp_path: Path) -> None:
    """One token's were all that there may be, for as long as its plans took."""

    async def scene() -> None:
        async with listening(tmp_path) as there:
            known = there.service.prewarms
            for _ in range(prewarms._MOST_OF_TOKEN):
                begun = prewarms.Prewarm("plan", "cpu", "default", "one", 1)
                known._known[begun.number] = begun
            answers = []
            for token in ("one", "two"):
                request: Any = SimpleNamespace(token=Token(name=token, sha256="", scopes=()))
                pool: Any = SimpleNamespace(ask=refuse)
                with pytest.raises(HTTPError) as refused:
                    await known.begin(request, "plan", "cpu", pool)
                answers.append(refused.value.status)
            assert answers == [429, 422]

    async def refuse(*_: Any, **__: Any) -> dict[str, Any]:
        return {"error": "PlanError", "reason": "no such plan"}

    asyncio.run(scene())


def test_a_bug_ends_all_of_a_prewarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as over while its other kernels went on and added rows."""

    async def examine(_pool: Any, config: dict[str, object], _arch: str) -> dict[str, Any]:
        if not config:
            raise LookupError("a bug")
        await asyncio.sleep(0.01)
        raise HTTPError(422, "E_CONFIG", "it came later")

    async def scene() -> None:
        nothing: Any = SimpleNamespace()
        begun = prewarms.Prewarm("plan", "cpu", "default", "one", 2)
        await prewarms.Prewarms(nothing)._run(begun, nothing, [{}, {"a": 1}], nothing)
        assert begun.is_over
        assert begun.error == "LookupError: a bug"
        await asyncio.sleep(0.05)
        assert begun.rows == []

    monkeypatch.setattr(prewarms, "examine", examine)
    asyncio.run(scene())


def test_a_prewarm_under_way_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A long one was dropped after enough short ones: its job answered 404, and no limit counted it.
    """
    monkeypatch.setattr(prewarms, "_MAX_FINISHED", 3)

    async def scene() -> None:
        async with listening(tmp_path) as there:
            known = there.service.prewarms
            long = prewarms.Prewarm("plan", "cpu", "default", "one", 1)
            known._known[long.number] = long
            request: Any = SimpleNamespace(token=Token(name="one", sha256="", scopes=()))
            pool: Any = SimpleNamespace(ask=expand, name="default")
            short = []
            for _ in range(6):
                short.append(await known.begin(request, "plan", "cpu", pool))
                while not short[-1].is_over:
                    await asyncio.sleep(0)
            assert known.find(long.number) is long
            assert known.find(short[0].number) is None
            assert known.find(short[-1].number) is short[-1]
            assert len(known.all()) <= 3 + 2

    async def expand(*_: Any, **__: Any) -> dict[str, Any]:
        return {"plan": "plan", "configs": []}

    asyncio.run(scene())


async def paused(there: Listening, number: int) -> None:
    """Wait until `number` connections, and no others, write to clients that do not read."""
    while [each.flow.write_paused for each in there.state.connections] != [True] * number:
        await asyncio.sleep(0.02)


def test_an_answer_that_is_not_read_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever for the client to read on, with all that was to be sent in memory."""
    monkeypatch.setattr(http_limits, "DRAIN_S", 0.0)

    async def scene() -> None:
        async with listening(tmp_path) as there:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", there.port))
            client.sendall(there.head("/v1/openapi.json") * 400)
            await paused(there, 1)
            http_limits.end_late(there.state.connections)
            await asyncio.sleep(0.1)
            assert not there.state.connections
            assert not len(there.service.connections)
            client.close()

    asyncio.run(scene())


def test_who_reads_nothing_and_has_no_token_makes_room(tmp_path: Path) -> None:
    """Answers without a token, hundreds on each connection, kept all connections busy."""

    async def scene() -> None:
        async with listening(tmp_path, connections=4) as there:
            clients = [socket.socket() for _ in range(4)]
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", there.port))
                client.sendall(there.head("/v1/openapi.json") * 400)
            await paused(there, 4)
            for _ in range(4):
                assert (await there.get("/v1/info", "one"))[0] == 200
            for client in clients:
                client.close()

    asyncio.run(scene())


def test_an_empty_line_begins_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the time that an idle connection has, and no other began: it stayed for ever."""

    async def scene() -> None:
        async with listening(tmp_path) as there:
            reader, writer = await there.connect()
            writer.write(there.head("/livez"))
            await reader.readuntil(b"true}")
            writer.write(b"\r\n")
            await asyncio.sleep(0.05)
            monkeypatch.setattr(http_limits, "REQUEST_S", 0.0)
            http_limits.end_late(there.state.connections)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scene())


def test_who_has_gone_waits_no_longer(tmp_path: Path) -> None:
    """A request that waits for a compile went on for minutes after its client, and counted."""

    async def scene() -> None:
        async with listening(tmp_path) as there:
            gone = asyncio.Event()

            async def receive() -> dict[str, Any]:
                await gone.wait()
                return {"type": "http.disconnect"}

            scope: Any = {"path_params": {}}
            token: Any = None
            request = Request(scope, receive, {}, token, "")
            waiting = asyncio.create_task(_is_over(job_of(there.service), 300.0, request))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            gone.set()
            assert await asyncio.wait_for(waiting, 5) is False

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.7", 4000), "192.0.2.7"),
        (("::ffff:192.0.2.7", 4000, 0, 0), "192.0.2.7"),
        (("2001:db8::1", 4000, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:1", 5000, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 4000, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses(peer: Any, address: str) -> None:
    """A host has 2**64 addresses of IPv6 at the least, and they are one."""
    assert address_of(peer) == address


def test_without_descriptors_idle_connections_make_room() -> None:
    """The system had no descriptor, and no client was accepted for a second at a time."""
    found = ConnectionSlots(10, 0, Metrics())
    ended = []
    slot = found.enter("a")
    assert slot is not None
    slot.end = lambda: ended.append(1)

    assert found.make_room()
    assert ended == [1]
    assert not found.make_room()
