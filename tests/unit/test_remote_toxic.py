# SPDX-License-Identifier: Apache-2.0
"""
Places that are dead, slow or lying: the result is right, the time is bounded, the reason is told.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

import pytest

from jitgen.events import EventKind
from jitgen.remote import wire
from jitgen.remote.breaker import FIRST_S, Breaker
from jitgen.remote.budget import FETCH_S, SPENT_S, allowance
from jitgen.remote.outcomes import Miss
from jitgen.settings import settings
from tests import toxic

from .remote_stand import KEY, Stand, entry_of, forget, is_same, told

ENTRY = entry_of(1, KEY)
PACKED = wire.pack(ENTRY.meta.encode(), ENTRY.files, ENTRY.signatures)

_DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
QUICK_S, SLOW_S = 0.35, 1.3
"""What a place may cost a host once: one that fails at once, and one that dawdles."""


def _lost(stand: Stand, url: str) -> Miss:
    found = stand.ask(url, ENTRY, may_compile=False)
    assert isinstance(found, Miss)
    assert stand.store.read(ENTRY.key) is None
    return found


def _reason(found: object) -> str:
    assert isinstance(found, Miss)
    return found.reason


_ERRORS: dict[str, tuple[toxic.Poison, str]] = {
    "500": (toxic.answer(500), "HTTP 500"),
    "cut": (toxic.cut, "closed"),
    "too short": (
        toxic.answer(200, PACKED, content_type=wire.TAR, content_length=len(PACKED) + 1),
        "breaks off after 9216",
    ),
    "10 GB": (
        toxic.answer(200, b"", content_type=wire.TAR, content_length=10 * 2**30),
        "10737418240 bytes",
    ),
    "flood": (toxic.flood, f"more than {wire.MAX_BYTES} bytes"),
    "redirect": (toxic.answer(302, location="http://127.0.0.1:1/"), "a redirect (HTTP 302)"),
    "web page": (toxic.answer(200, b"<html>", content_type="text/html"), "of type 'text/html'"),
}


@pytest.mark.parametrize("case", _ERRORS)
def test_error_is_told_and_the_host_does_not_ask_again(stand: Stand, case: str) -> None:
    poison, reason = _ERRORS[case]
    with toxic.toxic(poison) as server:
        with told(EventKind.FETCH) as seen:
            assert reason in _lost(stand, server.url).reason
        assert reason in seen[0].detail
        forget()  # another process of this host
        assert "not asked for 30 s" in _lost(stand, server.url).reason
        assert len(server.requests) == 1


def test_without_a_listener(stand: Stand) -> None:
    with toxic.refusing() as url:
        assert "refused" in _lost(stand, url).reason


_LIES: dict[str, tuple[toxic.Poison, str]] = {
    "bomb": (
        toxic.answer(
            200,
            wire.compress(bytes(wire.MAX_BYTES + 1)),
            content_type=wire.TAR,
            content_encoding="zstd",
        ),
        "does not say that it holds at most",
    ),
    "other coding": (
        toxic.answer(200, b"", content_type=wire.TAR, content_encoding="gzip"),
        "encoded as 'gzip'",
    ),
    "garbage": (toxic.answer(200, b"x" * 4096, content_type=wire.TAR), "what no entry has"),
    "nothing": (toxic.answer(200, b"", content_type=wire.TAR), "not written as jitgen writes it"),
    "cut inside": (toxic.entry(PACKED[:1000]), "in the middle of a file"),
    "revoked": (toxic.answer(410, b'{"reason": "it is wrong"}'), "it is wrong"),
}


@pytest.mark.parametrize("case", _LIES)
def test_lie_is_refused_and_other_kernels_are_asked_for(stand: Stand, case: str) -> None:
    poison, reason = _LIES[case]
    other = entry_of(2, KEY)
    with toxic.toxic(poison) as server:
        with told(EventKind.REJECT) as seen:
            assert reason in _lost(stand, server.url).reason
        assert len(seen) == 1
        _lost(stand, server.url)
        assert len(server.requests) == 1

        server.poison = toxic.entry(wire.pack(other.meta.encode(), other.files, other.signatures))
        assert is_same(stand.ask(server.url, other), other)


def test_good_answer_arrives(stand: Stand) -> None:
    for poison in (toxic.entry(PACKED), toxic.answer(200, PACKED, content_type=wire.TAR)):
        with toxic.toxic(poison) as server:
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)
        assert [request.path for request in server.requests] == [f"/v1/entries/{ENTRY.key}"]


def test_words_of_a_place_do_nothing_to_a_terminal(stand: Stand) -> None:
    poison = toxic.answer(422, json.dumps({"reason": "\x1b[2J\nall is well"}).encode())
    with toxic.toxic(poison) as server:
        reason = _lost(stand, server.url).reason
    assert reason.endswith(r"(\x1b[2J all is well)")


def test_who_is_told_to_ask_again_at_once_does_not(stand: Stand) -> None:
    async def poison(request: toxic.Request, writer: asyncio.StreamWriter) -> None:
        status = {"/v1/compile": 202, f"/v1/jobs/{ENTRY.key}": 200}.get(request.path, 404)
        await toxic.answer(status, b'{"state": "queued"}', retry_after=0)(request, writer)

    with toxic.toxic(poison) as server, settings.scope(compile_timeout=1.0):
        assert isinstance(stand.ask(server.url, ENTRY), Miss)
        assert 3 < len(server.requests) < 10


def test_no_thread_is_left_behind_by_an_answer_that_ends_with_its_connection(stand: Stand) -> None:
    """Its connection has no socket any more by which to end it."""

    async def poison(request: toxic.Request, writer: asyncio.StreamWriter) -> None:
        writer.write(toxic.head(200, {"content-type": wire.TAR, "connection": "close"}))
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)

    before = set(threading.enumerate())
    with toxic.toxic(poison) as server:
        assert "no answer within" in _lost(stand, server.url).reason
        fetching = [
            t for t in threading.enumerate() if t.name == "jitgen-fetch" and t not in before
        ]
        for thread in fetching:
            thread.join(2)
        assert not any(thread.is_alive() for thread in fetching)


def test_connection_is_used_again(stand: Stand) -> None:
    poison = toxic.entry(PACKED)
    toxic.KEEPING.append(poison)
    with toxic.toxic(poison) as server:
        for _ in range(3):
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)
        assert (len(server.requests), server.connections) == (3, 1)


class TestObjectStore:
    """The same bad days, of an object store: its client is another one."""

    @pytest.fixture
    def s3(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
            monkeypatch.setenv(f"AWS_{name}", "x")
        return lambda url: monkeypatch.setenv("AWS_ENDPOINT_URL", url)

    @pytest.mark.parametrize("status", [403, 404])
    def test_forbidden_is_not_there(
        self, stand: Stand, s3: Callable[[str], None], status: int
    ) -> None:
        """S3 answers 403 for an absent object without the permission to list the bucket."""
        with toxic.toxic(toxic.answer(status)) as server:
            s3(server.url)
            found = stand.fetch(ENTRY, "s3://bucket/prefix")
            assert isinstance(found, Miss)
            assert found.is_not_found
            assert Breaker(stand.store, "s3://bucket/prefix").state() is None

    @pytest.mark.parametrize(
        "poison",
        [
            toxic.answer(500),
            toxic.answer(401),
            toxic.cut,
            toxic.answer(200, b"", content_length=10 * 2**30, last_modified=_DATE),
        ],
    )
    def test_error_is_told_and_the_host_does_not_ask_again(
        self, stand: Stand, s3: Callable[[str], None], poison: toxic.Poison
    ) -> None:
        with toxic.toxic(poison) as server:
            s3(server.url)
            assert isinstance(stand.fetch(ENTRY, "s3://bucket/prefix"), Miss)
            forget()
            found = stand.fetch(ENTRY, "s3://bucket/prefix")
            assert isinstance(found, Miss)
            assert "not asked for 30 s" in found.reason
            assert len(server.requests) == 1

    @pytest.mark.nightly
    @pytest.mark.parametrize("case", ["silence", "a byte a second", "endless"])
    def test_slow_answer_costs_its_time_once_a_host(
        self, stand: Stand, s3: Callable[[str], None], case: str
    ) -> None:
        with toxic.toxic(_SLOW[case]()) as server:
            s3("http://127.0.0.1:1")
            stand.fetch(ENTRY, "s3://other")  # imports what is imported once
            s3(server.url)
            assert _timed(lambda: stand.fetch(ENTRY, "s3://bucket")) < SLOW_S
            assert isinstance(stand.fetch(ENTRY, "s3://bucket"), Miss)
            assert len(server.requests) == 1


class TestBreaker:
    def test_opens_for_twice_as_long_each_time_and_one_tries(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now)
        with toxic.toxic(toxic.answer(500)) as server:
            for wait_s in (FIRST_S, 60, 120, 240, 480, 600, 600):
                count = len(server.requests)
                _lost(stand, server.url)
                _lost(stand, server.url)
                assert len(server.requests) == count + 1
                state = Breaker(stand.store, server.url).state()
                assert state is not None
                assert state.wait_s == wait_s
                now += wait_s + 1

            server.poison = toxic.entry(PACKED)
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)
            assert Breaker(stand.store, server.url).state() is None

    def test_while_one_tries_others_go_without(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time()
        with toxic.toxic(toxic.answer(500)) as server:
            _lost(stand, server.url)
            monkeypatch.setattr("time.time", lambda: now + FIRST_S + 60)
            with Breaker(stand.store, server.url).attempt():
                assert "another process tries again" in _lost(stand, server.url).reason

    def test_where_nothing_can_be_written_the_process_remembers(self, stand: Stand) -> None:
        from jitgen.cache import Store

        stand.store = Store.open(stand.folder / "root", mode="ro")
        with toxic.toxic(toxic.answer(500)) as server:
            _lost(stand, server.url)
            assert "not asked for 30 s" in _lost(stand, server.url).reason
            assert len(server.requests) == 1

    @pytest.mark.parametrize("content", [b"", b"{", b'{"until": "x"}', b'{"until": 1e300}'])
    def test_damaged_file_closes_nothing(self, stand: Stand, content: bytes) -> None:
        with toxic.toxic(toxic.answer(500)) as server:
            _lost(stand, server.url)
            (path,) = (stand.folder / "root" / "v1" / "breakers").iterdir()
            path.write_bytes(content)
            forget()
            server.poison = toxic.entry(PACKED)
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)


def test_time_that_brought_nothing_is_limited(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with toxic.toxic(toxic.answer(404)) as server:
        allowance.spend(SPENT_S)
        assert "enough time was lost" in _lost(stand, server.url).reason
        assert not server.requests


def test_quick_answers_that_nothing_is_there_are_free(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    with toxic.toxic(toxic.answer(404)) as server:
        _lost(stand, server.url)
        monkeypatch.setattr("jitgen.remote.request_policy.QUICK_S", 0.0)
        allowance.spend(SPENT_S - 1e-9)
        stand.ask(server.url, entry_of(2, KEY), may_compile=False)
        assert "enough time was lost" in _reason(stand.ask(server.url, entry_of(3, KEY)))
        assert len(server.requests) == 2


_SLOW: dict[str, Callable[[], toxic.Poison]] = {
    "silence": lambda: toxic.silence,
    "a letter of the head at a time": lambda: toxic.dripping_head,
    "a byte a second": lambda: toxic.dripping(PACKED),
    "endless": lambda: toxic.endless,
}


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_slow_answer_is_not_waited_for(stand: Stand) -> None:
    with toxic.toxic(toxic.dripping(PACKED)) as server:
        assert _timed(lambda: _lost(stand, server.url)) < FETCH_S + 1
        assert "not asked for 30 s" in _lost(stand, server.url).reason
        assert len(server.requests) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("case", _SLOW)
def test_slow_places_cost_their_time_once_a_host(stand: Stand, case: str) -> None:
    with toxic.toxic(_SLOW[case]()) as server:
        _lost(stand, "http://127.0.0.1:1")  # imports what is imported once
        assert _timed(lambda: _lost(stand, server.url)) < SLOW_S
        forget()
        assert _timed(lambda: _lost(stand, server.url)) < 0.05
        assert len(server.requests) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("case", [*_ERRORS, *_LIES])
def test_failures_cost_their_time_once_a_host(stand: Stand, case: str) -> None:
    with toxic.toxic((_ERRORS | _LIES)[case][0]) as server:
        _lost(stand, "http://127.0.0.1:1")
        assert _timed(lambda: _lost(stand, server.url)) < QUICK_S
        assert _timed(lambda: _lost(stand, server.url)) < 0.05


@pytest.mark.nightly
@pytest.mark.parametrize("dead", [toxic.refusing, toxic.black_hole])
def test_dead_places_cost_their_time_once_a_host(
    stand: Stand, dead: Callable[[], AbstractContextManager[str]]
) -> None:
    with dead() as url:
        _lost(stand, "http://127.0.0.1:1")
        assert _timed(lambda: _lost(stand, url)) < QUICK_S
        forget()
        assert _timed(lambda: _lost(stand, url)) < 0.05


@pytest.mark.nightly
def test_name_that_does_not_resolve_costs_its_time_once_a_host(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolving a name has no limit of its own."""
    over = threading.Event()

    def resolve(*_: object, **__: object) -> NoReturn:
        over.wait(30)
        raise socket.gaierror("no such name")

    _lost(stand, "http://127.0.0.1:1")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert _timed(lambda: _lost(stand, "http://kernels.invalid")) < SLOW_S
    forget()
    assert _timed(lambda: _lost(stand, "http://kernels.invalid")) < 0.05
    over.set()
