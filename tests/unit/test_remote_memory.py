# SPDX-License-Identifier: Apache-2.0
"""
What a host remembers of a place, and for how long: what was in the way here is no fault of the
place, and damage is no refused signature.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import obstore
import pytest

from jitgen.cache import Entry
from jitgen.cache.trusted import Trusted
from jitgen.errors import SigningError
from jitgen.remote import wire
from jitgen.remote.breaker import FIRST_S, Breaker
from jitgen.remote.negative import negatives
from jitgen.remote.outcomes import LocalFailure, Miss, NotFound, Unreachable
from jitgen.signing.trust import SealedTrust
from tests import toxic

from .remote_stand import KEY, THIEF, Stand, entry_of, forget, is_same

ENTRY = entry_of(1, KEY)
EMFILE = OSError(errno.EMFILE, "Too many open files")
PLACES = {
    "a service": "http://127.0.0.1:1",
    "a web server": "http://127.0.0.1:1/bucket",
    "a folder": "file:///nowhere",
    "an object store": "s3://bucket",
}


def packed(entry: Entry) -> bytes:
    return wire.pack(entry.meta.encode(), entry.files, entry.signatures)


def reason(found: object) -> str:
    assert isinstance(found, Miss)
    return found.reason


def refuse(*_: object, **__: object) -> NoReturn:
    raise EMFILE


def ask(stand: Stand, url: str) -> str:
    """Return why the place at `url` gives nothing."""
    if url == PLACES["a service"]:
        return reason(stand.ask(url, ENTRY))
    return reason(stand.fetch(ENTRY, url))


class TestWhatIsInTheWayHere:
    """
    No thread or descriptor left in this process says nothing about a place. It used to keep the
    whole host from asking there for half a minute, and each time for twice as long.
    """

    @pytest.fixture(params=PLACES)
    def url(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
            monkeypatch.setenv(f"AWS_{name}", "x")
        return PLACES[request.param]

    def test_no_thread(self, stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        class NoThread(threading.Thread):
            def start(self) -> NoReturn:
                raise RuntimeError("can't start new thread")

        monkeypatch.setattr("jitgen.remote.budget.threading.Thread", NoThread)

        assert "no thread can be started" in ask(stand, url)
        assert Breaker(stand.store, url).state() is None
        assert not negatives._known

    def test_no_descriptor(self, stand: Stand, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def get(*_: object) -> NoReturn:
            raise obstore.exceptions.GenericError(f"Error performing GET: {EMFILE.strerror}")

        files = SimpleNamespace(**{**vars(os), "open": refuse})
        monkeypatch.setattr("jitgen.remote.files.os", files)
        monkeypatch.setattr(socket, "create_connection", refuse)
        monkeypatch.setattr(obstore, "get", get)

        assert "Too many open files" in ask(stand, url)
        assert Breaker(stand.store, url).state() is None
        assert not negatives._known

    def test_no_descriptor_to_look_a_name_up(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The resolver says that there is no such name where it cannot read its own files."""

        def resolve(*_: object, **__: object) -> NoReturn:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        url = "http://kernels.invalid"
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        with monkeypatch.context() as patch:
            patch.setattr("jitgen.remote.http._no_descriptor", lambda: str(EMFILE))
            assert "Too many open files" in reason(stand.ask(url, ENTRY))
            assert Breaker(stand.store, url).state() is None
        assert "not known" in reason(stand.ask(url, ENTRY))
        assert Breaker(stand.store, url).state() is not None

    def test_a_place_that_is_left_alone_stays_so(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Trouble here used to count as an answer: a dead place was asked again at once."""
        now, breaker = time.time(), Breaker(stand.store, "http://127.0.0.1:1")
        with pytest.raises(Unreachable), breaker.attempt():
            raise Unreachable("it is dead")
        monkeypatch.setattr("time.time", lambda: now + FIRST_S + 1)
        for error in (LocalFailure("no descriptors"), KeyboardInterrupt()):
            with pytest.raises(type(error)), breaker.attempt():
                raise error
        assert breaker.state() is not None
        with pytest.raises(NotFound), breaker.attempt():
            raise NotFound("not there")

        assert breaker.state() is None

    def test_a_trust_document_that_cannot_be_read_now(
        self, stand: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        One that was unreadable while an answer was judged used to make that a refused signature,
        for as long as the process lived.
        """
        current, tries = Trusted.current, []

        def fail_once(self: Trusted) -> SealedTrust:
            tries.append(0)
            if len(tries) == 3:  # of each fetch the first looks which it is, the next refreshes it
                raise SigningError(f"the trust document cannot be read: {EMFILE}")
            return current(self)

        monkeypatch.setattr(Trusted, "current", fail_once)
        stand.look_again()
        with toxic.toxic(toxic.entry(packed(ENTRY))) as server:
            assert "Too many open files" in reason(stand.ask(server.url, ENTRY))
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)


class TestWhatAPlaceGave:
    """
    A damaged entry is requested again a minute later, an untrusted one after an hour, since it may
    be signed by then. Both used to be refused until the trust document changed.
    """

    @pytest.fixture
    def later(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        """What sets the clock ahead."""
        now, module = time.monotonic(), "jitgen.remote.negative.time"
        return lambda seconds: monkeypatch.setattr(
            module, SimpleNamespace(monotonic=lambda: now + seconds)
        )

    @pytest.mark.parametrize(
        ("data", "why", "seconds"),
        [
            (b"x" * 4096, "what no entry has", 60),
            (packed(ENTRY)[:1000], "in the middle of a file", 60),
            (packed(entry_of(1, THIEF)), "not in trust document", 3600),
            (packed(entry_of(1)), "it is not signed", 3600),
        ],
        ids=["damaged", "torn", "of a thief", "unsigned"],
    )
    def test_by_a_service(
        self, stand: Stand, later: Callable[[float], None], data: bytes, why: str, seconds: float
    ) -> None:
        with toxic.toxic(toxic.answer(200, data, content_type=wire.TAR)) as server:
            assert why in reason(stand.ask(server.url, ENTRY))
            server.poison = toxic.entry(packed(ENTRY))
            later(seconds - 10)
            assert why in reason(stand.ask(server.url, ENTRY))
            later(seconds + 10)
            assert is_same(stand.ask(server.url, ENTRY), ENTRY)

    def test_in_a_bucket(self, stand: Stand, later: Callable[[float], None]) -> None:
        stand.push(ENTRY)
        (path,) = (stand.bucket / "v1" / "ac").rglob("*.json")
        good = path.read_bytes()
        path.write_bytes(good[:-9])
        assert "cannot be read" in reason(stand.fetch(ENTRY))
        path.write_bytes(good)
        assert "cannot be read" in reason(stand.fetch(ENTRY))
        later(70)

        assert is_same(stand.fetch(ENTRY), ENTRY)

    def test_another_process_asks_by_itself(self, stand: Stand) -> None:
        """What is said of a kernel, and not of the place, is remembered by its process alone."""
        with toxic.toxic(toxic.answer(200, b"x" * 4096, content_type=wire.TAR)) as server:
            reason(stand.ask(server.url, ENTRY))
            server.poison = toxic.entry(packed(ENTRY))
            forget()

            assert is_same(stand.ask(server.url, ENTRY), ENTRY)
