# SPDX-License-Identifier: Apache-2.0
"""The compile service as its client sees it: every answer that it may give."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen.errors import SettingError
from jitgen.events import EventKind
from jitgen.remote import wire
from jitgen.remote.negative import negatives
from jitgen.remote.outcomes import Miss
from jitgen.settings import settings
from tests import toxic

from .remote_stand import KEY, Stand, entry_of, forget, is_same, told

ENTRY = entry_of(1, KEY)
PACKED = wire.pack(ENTRY.meta.encode(), ENTRY.files, ENTRY.signatures)
ENTRIES, JOB = f"/v1/entries/{ENTRY.key}", f"/v1/jobs/{ENTRY.key}"
MISSING = toxic.answer(404, b'{"reason": "never compiled"}')
GOOD = toxic.entry(PACKED)


def routes(**poisons: toxic.Poison | list[toxic.Poison]) -> toxic.Poison:
    """Return what answers each path with its poison; of several, with one after the other."""
    left = {
        name: list(poison) if isinstance(poison, list) else [poison]
        for name, poison in poisons.items()
    }

    async def poison(request: toxic.Request, writer: asyncio.StreamWriter) -> None:
        kind = request.path.split("/")[2].split("?")[0]
        waiting = left.get(kind, [MISSING])
        await (waiting.pop(0) if len(waiting) > 1 else waiting[0])(request, writer)

    return poison


def accepted(**headers: str | int) -> toxic.Poison:
    return toxic.answer(202, b'{"state": "queued"}', retry_after=0, **headers)


def state(name: str, **more: str) -> toxic.Poison:
    document = json.dumps({"state": name, **more}).encode()
    return toxic.answer(200, document, retry_after=0, content_type="application/json")


def test_what_is_compiled_is_not_asked_for_twice(stand: Stand) -> None:
    with toxic.toxic(routes(entries=GOOD)) as server:
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
        assert len(server.requests) == 1


def test_what_is_missing_is_compiled_there(stand: Stand) -> None:
    with toxic.toxic(routes(entries=MISSING, compile=GOOD)) as server:
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
    _, request = server.requests
    assert (request.method, request.path) == ("POST", "/v1/compile")
    assert request.headers["prefer"] == "wait=10"
    assert json.loads(request.body) == {
        "config": ENTRY.meta.config,
        "arch": "cpu",
        "key": ENTRY.key,
        "toolchain": ENTRY.meta.key_document["toolchain"],
    }


@pytest.mark.parametrize(("verify", "query"), [("off", "?unattested=1"), ("remote", "")])
def test_what_clients_gave_is_asked_for_where_nothing_is_verified(
    stand: Stand, verify: str, query: str
) -> None:
    """A service hands it out only on request by name, since it is not signed."""
    with toxic.toxic(routes(entries=GOOD)) as server, settings.scope(verify=verify):
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
    assert [request.path for request in server.requests] == [ENTRIES + query]


def test_nothing_is_compiled_where_it_may_not_be(stand: Stand) -> None:
    with toxic.toxic(routes(entries=MISSING)) as server:
        found = stand.ask(server.url, ENTRY, may_compile=False)
    assert isinstance(found, Miss)
    assert found.is_not_found
    assert len(server.requests) == 1


def test_absence_does_not_keep_from_compiling_later(stand: Stand) -> None:
    with toxic.toxic(routes(entries=MISSING, compile=GOOD)) as server:
        assert isinstance(stand.ask(server.url, ENTRY, may_compile=False), Miss)
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
        assert [request.method for request in server.requests] == ["GET", "POST"]


def test_job_is_looked_at_until_it_is_done(stand: Stand) -> None:
    poison = routes(
        entries=[MISSING, GOOD],
        compile=accepted(location=JOB),
        jobs=[state("queued"), state("compiling"), state("done")],
    )
    with toxic.toxic(poison) as server:
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
    assert [request.path for request in server.requests] == [
        *(ENTRIES, "/v1/compile", JOB, JOB, JOB, ENTRIES)
    ]


@pytest.mark.parametrize("location", ["", "http://127.0.0.1:1/v1/jobs/x", "//evil/v1/jobs/x"])
def test_job_is_looked_at_nowhere_else(stand: Stand, location: str) -> None:
    poison = routes(
        entries=[MISSING, GOOD], compile=accepted(location=location), jobs=state("done")
    )
    with toxic.toxic(poison) as server:
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)
    assert server.requests[2].path == JOB


def remembered_s(server: toxic.Toxic, purpose: str, key: str = ENTRY.key) -> float:
    """Seconds for which this process does not ask `server` again about a kernel."""
    names = (server.url, purpose, key), (server.url, purpose)
    (until,) = (negatives._known[name][0] for name in names if name in negatives._known)
    return round(until - time.monotonic())


@pytest.mark.parametrize("code", ["E_COMPILE", "E_GATE"])
def test_a_job_that_the_compiler_refused_is_a_reason_for_a_day(stand: Stand, code: str) -> None:
    failed = state("failed", code=code, reason="ptxas said no")
    with toxic.toxic(routes(entries=MISSING, compile=accepted(), jobs=failed)) as server:
        for _ in range(2):
            found = stand.ask(server.url, ENTRY)
            assert isinstance(found, Miss)
            assert "ptxas said no" in found.reason
        assert len(server.requests) == 3
        assert remembered_s(server, "compile") == 86400


def test_a_reason_of_several_lines_becomes_one(stand: Stand) -> None:
    """It is part of a warning, which is one line."""
    failed = state("failed", code="E_COMPILE", reason="ptxas said\n  no\r\n")
    with toxic.toxic(routes(entries=MISSING, compile=accepted(), jobs=failed)) as server:
        found = stand.ask(server.url, ENTRY)

    assert isinstance(found, Miss)
    assert "ptxas said no" in found.reason
    assert len(found.reason.splitlines()) == 1


@pytest.mark.parametrize("code", ["E_RESOURCE", "E_TIMEOUT", "E_TOOLCHAIN", "E_ENDED", ""])
def test_a_job_for_which_something_was_lacking_is_one_for_a_minute(stand: Stand, code: str) -> None:
    """Memory that had run out at the service used to be taken for the compiler's refusal."""
    failed = state("failed", code=code, reason="no memory")
    with toxic.toxic(routes(entries=MISSING, compile=accepted(), jobs=failed)) as server:
        found = stand.ask(server.url, ENTRY)
        assert isinstance(found, Miss)
        assert "no memory" in found.reason
        assert remembered_s(server, "compile") == 60


def test_a_job_that_is_not_known_any_more_is_no_refusal(stand: Stand) -> None:
    """A service that was started anew forgot its jobs, and clients what they wanted for a day."""
    poison = routes(entries=MISSING, compile=accepted(), jobs=MISSING)
    with toxic.toxic(poison) as server:
        assert isinstance(stand.ask(server.url, ENTRY), Miss)
        assert remembered_s(server, "compile") == 60


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_not_accepted_is_this_processs_alone(stand: Stand, status: int) -> None:
    """
    It is asked again a minute later, when the token may be another. It used to keep every process
    of the host from asking, whatever token it had.
    """
    with toxic.toxic(toxic.answer(status)) as server:
        for _ in range(2):
            found = stand.ask(server.url, ENTRY)
            assert isinstance(found, Miss)
            assert "JITGEN_TOKEN_FILE" in found.reason
        assert len(server.requests) == 1
        assert remembered_s(server, "fetch") == 60
        server.poison = GOOD
        forget()  # another process of this host
        assert is_same(stand.ask(server.url, ENTRY), ENTRY)


def test_service_that_never_finishes_is_left(stand: Stand) -> None:
    poison = routes(entries=MISSING, compile=accepted(), jobs=state("compiling"))
    with settings.scope(compile_timeout=0.3), toxic.toxic(poison) as server:
        assert isinstance(stand.ask(server.url, ENTRY), Miss)


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [
        (400, {}, "does not understand"),
        (409, {"reason": "nvidia-cutlass-dsl 4.8.0, not 4.8.1"}, "4.8.0, not 4.8.1"),
        (422, {"code": "E_REGS", "reason": "too many registers"}, "too many registers"),
        (424, {"reason": "ptxas said no"}, "ptxas said no"),
        (418, {}, "not foreseen"),
    ],
)
def test_refusal_is_told_and_remembered(
    stand: Stand, status: int, said: dict[str, str], reason: str
) -> None:
    poison = routes(entries=MISSING, compile=toxic.answer(status, json.dumps(said).encode()))
    with toxic.toxic(poison) as server, told(EventKind.FETCH) as seen:
        for _ in range(2):
            found = stand.ask(server.url, ENTRY)
            assert isinstance(found, Miss)
            assert reason in found.reason
        assert f"HTTP {status}" in seen[-1].detail
        assert len(server.requests) == 2


@pytest.mark.parametrize("by_job", [False, True])
def test_what_the_service_revoked_is_one_warning_with_the_reason(
    stand: Stand, caplog: pytest.LogCaptureFixture, by_job: bool
) -> None:
    """Each client used to compile it again, with nothing but the status in the way of a reason."""
    said = b'{"code": "E_REVOKED", "reason": "it is revoked: sums were wrong"}'
    gone = toxic.answer(410, said)
    by_jobs = routes(
        entries=MISSING,
        compile=accepted(location=JOB),
        jobs=state("failed", code="E_REVOKED", reason="it is revoked: sums were wrong"),
    )
    with toxic.toxic(by_jobs if by_job else routes(entries=gone)) as server:
        for _ in range(3):
            assert isinstance(found := stand.ask(server.url, ENTRY), Miss)

    assert found.reason.endswith("it is revoked: sums were wrong")
    (line,) = caplog.messages
    assert line.startswith(f"{ENTRY.meta.name} is revoked at {server.url}: sums were wrong;")
    assert "this process compiles it again, unless compiling is off" in line


@pytest.mark.parametrize("status", [429, 503])
def test_busy_service_is_left_alone_for_as_long_as_it_says(stand: Stand, status: int) -> None:
    busy = toxic.answer(status, b"", retry_after=7)
    with toxic.toxic(routes(entries=MISSING, compile=busy)) as server:
        assert isinstance(stand.ask(server.url, ENTRY), Miss)
        (until,) = (
            until
            for name, (until, _, _) in negatives._known.items()
            if name == (server.url, "compile")
        )
        assert until > 0
        server.poison = routes(entries=MISSING, compile=GOOD)
        other = entry_of(2, KEY)
        found = stand.ask(server.url, other)
        assert isinstance(found, Miss)
        assert "asks for 7 s" in found.reason
        assert [request.method for request in server.requests] == ["GET", "POST", "GET"]


class TestToken:
    @pytest.fixture
    def token(self, stand: Stand) -> Iterator[Path]:
        path = stand.folder / "token"
        path.write_text("secret\n")
        with settings.scope(token_file=path):
            yield path

    def test_is_sent_and_read_anew(self, stand: Stand, token: Path) -> None:
        with toxic.toxic(routes(entries=MISSING, compile=MISSING)) as server:
            stand.ask(server.url, ENTRY)
            token.write_text("rotated")
            stand.ask(server.url, entry_of(2, KEY))
        sent = [request.headers["authorization"] for request in server.requests]
        assert sent == ["Bearer secret", "Bearer secret", "Bearer rotated", "Bearer rotated"]

    def test_is_not_sent_in_the_open(
        self, stand: Stand, token: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("jitgen.remote.http._LOOPBACK", ())
        with toxic.toxic(routes(entries=GOOD)) as server:
            stand.ask(server.url, ENTRY)
        assert "authorization" not in server.requests[0].headers

    @pytest.mark.parametrize("text", ["two words", "\x1b", "ü"])
    def test_that_is_none_is_an_error(self, stand: Stand, token: Path, text: str) -> None:
        token.write_text(text)
        with pytest.raises(SettingError, match="JITGEN_TOKEN_FILE"):
            stand.ask("http://127.0.0.1:1", ENTRY)


def test_website_gives_out_a_bucket(stand: Stand) -> None:
    """The layout of a bucket behind a web server, only read."""
    stand.push(ENTRY)

    async def poison(request: toxic.Request, writer: asyncio.StreamWriter) -> None:
        path = stand.bucket / request.path.removeprefix("/base/")
        data = path.read_bytes() if path.is_file() else b""
        await toxic.answer(200 if data else 404, data)(request, writer)

    with toxic.toxic(poison) as server:
        assert is_same(stand.fetch(ENTRY, f"{server.url}/base"), ENTRY)
        found = stand.fetch(entry_of(2, KEY), f"{server.url}/base")
        assert isinstance(found, Miss)
        assert found.is_not_found
        server.poison = toxic.answer(200, b"<html>", content_type="text/html")
        forget()
        found = stand.fetch(entry_of(2, KEY), f"{server.url}/base")
        assert isinstance(found, Miss)
        assert "a web page" in found.reason


def test_service_with_a_poisoned_answer_gives_nothing(stand: Stand) -> None:
    """An entry of another key, one of another signer, and one without a signature."""
    other, bare = entry_of(2, KEY), entry_of(1)
    for entry in (other, bare):
        packed = wire.pack(entry.meta.encode(), entry.files, entry.signatures)
        forget()
        with toxic.toxic(routes(entries=MISSING, compile=toxic.entry(packed))) as server:
            assert isinstance(stand.ask(server.url, ENTRY), Miss)
        assert stand.store.read(ENTRY.key) is None
