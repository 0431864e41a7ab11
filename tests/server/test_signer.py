# SPDX-License-Identifier: Apache-2.0
"""The signer: statements in, envelopes out; and what compile processes cannot reach."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import io
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jitgen.cache import Entry
from jitgen.compile import children
from jitgen.errors import ResourceError, SigningError
from jitgen.server import confine, signer
from jitgen.server.confine import Confinement, confined, probe
from jitgen.server.log import Log
from jitgen.server.settings import Signing
from jitgen.server.signer_client import SignerClient
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import Statement
from tests.unit.store_fakes import fake_files, fake_meta

KEY = PrivateKey.generate()
LOG = Log(io.StringIO())


def statement(builder: str = "test") -> Statement:
    return Statement(
        key="1" * 64,
        meta_sha256="2" * 64,
        builder=builder,
        toolchain={"a": "1"},
        signed_at=datetime(2001, 1, 1, tzinfo=UTC),
    )


def test_a_statement_is_signed_at_the_signers_own_time() -> None:
    """Who asks can neither backdate nor postdate."""
    answer = signer.answer(statement().encode(), KEY, LOG)
    envelope = dsse.Envelope.from_json(answer["envelope"])
    said = Statement.decode(envelope.payload)

    assert envelope.is_signed_by(KEY.public)
    assert (said.key, said.meta_sha256) == ("1" * 64, "2" * 64)
    assert abs((datetime.now(UTC) - said.signed_at).total_seconds()) < 60


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        statement().encode().replace(b"jitgen.entry.v1", b"jitgen.trust.v1"),
        statement().encode().replace(b"1" * 64, b"x"),
        b'{"payload": "anything"}',
    ],
)
def test_nothing_else_is_signed(line: bytes) -> None:
    """A trust document above all: that is for the root key."""
    answer = signer.answer(line, KEY, LOG)

    assert set(answer) == {"error"}


@pytest.fixture
def listening(tmp_path: Path) -> Path:
    """The socket of a signer as the operator starts one."""
    path = tmp_path / "signer.sock"
    threading.Thread(target=signer.listen, args=(path, KEY, LOG), daemon=True).start()
    while True:
        with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
            client.connect(str(path))
            return path


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(path))
    return client


def test_behind_a_socket(listening: Path) -> None:
    """The operator's way: the key is another user's, and the service has a socket."""
    with connected(listening) as client:
        lines = client.makefile("rb")
        hello = json.loads(lines.readline())
        client.sendall(b"nonsense\n" + statement().encode() + b"\n")
        refused, signed = (json.loads(lines.readline()) for _ in range(2))

    assert hello == {"keyid": KEY.keyid}
    assert "error" in refused
    assert dsse.Envelope.from_json(signed["envelope"]).is_signed_by(KEY.public)
    assert listening.stat().st_mode & 0o007 == 0


def test_a_silent_client_is_in_no_other_clients_way(listening: Path) -> None:
    """Nor is another replica, which stays connected: the signer heard one at a time."""
    with connected(listening), connected(listening) as second:
        assert json.loads(second.makefile("rb").readline()) == {"keyid": KEY.keyid}


@pytest.mark.parametrize("hello", [{"keyid": KEY.keyid}, [], {"what": 1}])
def test_what_was_signed_is_what_was_asked_for(tmp_path: Path, hello: object) -> None:
    """A process that takes the signer's socket cannot make the service accept a false statement."""
    other = signer.answer(statement("another builder").encode(), KEY, LOG)
    path = tmp_path / "false.sock"

    async def false(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(hello).encode() + b"\n")
        while await reader.readline():
            writer.write(json.dumps(other).encode() + b"\n")
        writer.close()
        await writer.wait_closed()

    async def scene() -> None:
        async with await asyncio.start_unix_server(false, str(path)):
            client = SignerClient(Signing(socket=path), LOG)
            with pytest.raises(ResourceError, match="something"):
                await client.of(Entry.of(fake_meta(1), fake_files(1)).meta.encode())
            await client.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others)  # both connections end

    asyncio.run(scene())


LOOK = """
import ctypes, json, socket, sys
secret, signer = sys.argv[1], sys.argv[2]
found = {"secret": open(secret).read()}
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[3])), 2)
    found["network"] = True
except OSError:
    found["network"] = False
found["umount"] = ctypes.CDLL(None).umount(secret.encode()) == 0
try:
    open(f"/proc/{signer}/mem", "rb").read(1)
    found["memory"] = "read"
except OSError as error:
    found["memory"] = type(error).__name__
try:
    found["root"] = open(f"/proc/{signer}/root{secret}").read()
except OSError as error:
    found["root"] = type(error).__name__
print(json.dumps(found))
"""


def test_compile_processes_reach_neither_network_nor_secrets(tmp_path: Path) -> None:
    """Nor can they undo that, nor look into a process of the same user that holds the key."""
    if reason := probe():
        pytest.skip(f"this host does not let processes be confined: {reason}")
    secret = tmp_path / "key.pem"
    secret.write_text("secret")
    script = [sys.executable, "-S", "-c", LOOK, str(secret), str(os.getpid())]
    with socket.create_server(("127.0.0.1", 0)) as server:
        script.append(str(server.getsockname()[1]))
        found = [
            json.loads(
                subprocess.run(
                    confined(script, Confinement(is_on=is_on, hidden=(secret,))),
                    env=children.environment(),
                    check=True,
                    capture_output=True,
                ).stdout
            )
            for is_on in (False, True)
        ]

    assert (found[0]["secret"], found[0]["network"]) == ("secret", True)
    assert found[1] == {
        "secret": "",
        "network": False,
        "umount": False,
        "memory": "PermissionError",
        "root": "PermissionError",
    }


def test_what_forbids_confinement_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host that forbids namespaces the service does not claim confinement."""
    monkeypatch.setattr(confine, "_MODULE", "no.such.module")

    assert "no" in probe()


class Forbidding:
    """A C library on whose system `prctl` is not allowed."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def prctl(self, *_: int) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1


def test_a_signer_that_cannot_hide_its_memory_does_not_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It signed, and any process of the user could read the key."""
    monkeypatch.setattr(confine.ctypes, "CDLL", Forbidding)
    KEY.save(tmp_path / "key.pem")
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    with ours, pytest.raises(SystemExit):
        signer.main(str(theirs.detach()), str(tmp_path / "key.pem"))
    with pytest.raises(SigningError, match="does not allow prctl: Operation not permitted"):
        confine.undumpable()


def test_capabilities_that_cannot_be_dropped_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that root executes regains those that are left."""
    monkeypatch.setattr(confine.ctypes, "CDLL", Forbidding)

    with pytest.raises(OSError, match="prctl"):
        confine._renounce()
