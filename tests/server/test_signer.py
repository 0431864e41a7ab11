# SPDX-License-Identifier: Apache-2.0
"""The signer: statements in, envelopes out; and what compile processes cannot reach."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jitgen.compile import children
from jitgen.server import confine, signer
from jitgen.server.confine import Confinement, confined, probe
from jitgen.server.log import Log
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import Statement

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


def test_behind_a_socket(tmp_path: Path) -> None:
    """The operator's way: the key is another user's, and the service has a socket."""
    path = tmp_path / "signer.sock"
    threading.Thread(target=signer.listen, args=(path, KEY, LOG), daemon=True).start()
    while not path.exists() or not path.is_socket():
        pass
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        for _ in range(1000):
            try:
                client.connect(str(path))
                break
            except ConnectionRefusedError:  # bound, and does not listen yet
                continue
        lines = client.makefile("rb")
        hello = json.loads(lines.readline())
        client.sendall(b"nonsense\n" + statement().encode() + b"\n")
        refused, signed = (json.loads(lines.readline()) for _ in range(2))

    assert hello == {"keyid": KEY.keyid}
    assert "error" in refused
    assert dsse.Envelope.from_json(signed["envelope"]).is_signed_by(KEY.public)
    assert path.stat().st_mode & 0o007 == 0


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
    """A host that forbids namespaces is one on which nobody is told otherwise."""
    monkeypatch.setattr(confine, "_MODULE", "no.such.module")

    assert "no" in probe()
