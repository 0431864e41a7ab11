# SPDX-License-Identifier: Apache-2.0
"""
The signer: a process of its own, the only one that ever has the signing key.

It reads statements and writes envelopes, a JSON object a line. It signs only what it has parsed as
a statement about an entry, and sets the time itself. An attacker who takes over the service can
therefore have entries signed while that lasts, each of which is in the signer's log, but cannot
steal the key or sign a trust document.

The service starts it with a socket pair; or the operator starts it as another user, behind a socket
of the file system (``jitgen signer --key FILE --socket PATH``), so that the service cannot read the
key file either.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jitgen.errors import JitgenError, ResourceError, SigningError
from jitgen.server.confine import undumpable
from jitgen.server.log import Log
from jitgen.signing import dsse, times
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import PAYLOAD_TYPE, Statement

MAX_LINE = 2**15
"""Most bytes of a line; a statement has one kilobyte."""

_MOST_CLIENTS = 64


def answer(line: bytes, key: PrivateKey, log: Log) -> dict[str, object]:
    """Return ``{"envelope": ...}`` for a line that holds a statement, else ``{"error": ...}``."""
    try:
        # Signed is the statement as parsed, encoded again, with the present time.
        statement = replace(Statement.decode(line.strip()), signed_at=times.now())
        envelope = dsse.seal(PAYLOAD_TYPE, statement.encode(), key)
    except SigningError as error:
        log.event("refused to sign", level="error", reason=str(error))
        return {"error": str(error)}
    log.event("signed", key=statement.key, meta=statement.meta_sha256, keyid=key.keyid)
    return {"envelope": envelope.to_json()}


def serve(connection: socket.socket, key: PrivateKey, log: Log) -> None:
    """Sign for one client until it disconnects."""
    with connection, suppress(OSError):
        connection.sendall(json.dumps({"keyid": key.keyid}).encode("ascii") + b"\n")
        for line in _lines(connection):
            made = json.dumps(answer(line, key, log)).encode("ascii")
            connection.sendall(made + b"\n")


def _lines(connection: socket.socket) -> Iterator[bytes]:
    rest = b""
    while received := connection.recv(2**14):
        *lines, rest = (rest + received).split(b"\n")
        if len(rest) > MAX_LINE or any(len(line) > MAX_LINE for line in lines):
            return  # no statement is that long
        yield from lines


def listen(
    path: Path, key: PrivateKey, log: Log, *, begun: Callable[[], None] = lambda: None
) -> None:
    """
    Sign for clients that connect to the socket `path`, until interrupted.

    The file's group may connect: put `path` into a folder that only the service's group can enter.
    Each client has a thread, since services stay connected; a silent client delays no other.
    `begun` is called once clients can connect.

    Raises:
        ResourceError: No socket can be created there.
    """
    slots = threading.BoundedSemaphore(_MOST_CLIENTS)

    def serve_one(connection: socket.socket) -> None:
        try:
            serve(connection, key, log)
        finally:
            slots.release()

    with socket.socket(socket.AF_UNIX) as server:
        before = os.umask(0o117)
        try:
            path.unlink(missing_ok=True)
            server.bind(str(path))
        except OSError as error:
            raise ResourceError(
                f"no socket can be made at {path}: {error.strerror or error}; name one in a folder "
                "that is there and that you may write to"
            ) from error
        finally:
            os.umask(before)
        server.listen(4)
        log.event("signer listens", socket=str(path), keyid=key.keyid)
        begun()
        while True:
            connection, _ = server.accept()
            if slots.acquire(blocking=False):
                threading.Thread(target=serve_one, args=(connection,), daemon=True).start()
            else:
                log.event("client refused", level="error", reason=f"{_MOST_CLIENTS} are connected")
                connection.close()


def main(descriptor: str, key_file: str) -> None:
    """Sign for the service at the other end of the socket `descriptor`, then end the process."""
    os.set_inheritable(int(descriptor), False)
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            undumpable()
            key = PrivateKey.load(Path(key_file))
        except JitgenError as error:
            connection.sendall(json.dumps({"error": str(error)}).encode("ascii") + b"\n")
            sys.exit(1)
        serve(connection, key, Log())
