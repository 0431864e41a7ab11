# SPDX-License-Identifier: Apache-2.0
"""The service's connection to its signer: a child process, or a signer behind a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jitgen.compile import children
from jitgen.errors import ResourceError, SigningError
from jitgen.server.log import Log
from jitgen.server.settings import Signing
from jitgen.signing import dsse
from jitgen.signing.statement import Statement

NO_TRUST = (
    "there is no trust document, so it is not known here whether clients accept what is signed"
)

_ANSWER_S = 10.0
_REST_S = 10.0  # between two tries to reconnect
_LINE = 2**20

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class SignerClient:
    """
    Connection to the signer, which is started again, or connected to again, if it has died.

    Attributes:
        keyid: Name of its key; empty until it sent it.
        trouble: Why nothing can be signed now; empty if all is well.
    """

    def __init__(self, settings: Signing, log: Log) -> None:
        self.keyid = ""
        self.trouble = ""
        self._tried = 0.0
        self._settings = settings
        self._log = log
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: _Streams | None = None

    async def of(self, record: bytes) -> bytes:
        """
        Return the ``signatures.json`` of the entry whose ``meta.json`` is `record`; empty if this
        service signs nothing.

        Raises:
            SigningError: The signer refuses.
            ResourceError: There is no signer.
        """
        if not self._settings.is_on:
            return b""
        line = Statement.of(record, self._settings.builder).encode() + b"\n"
        async with self._lock:
            for is_last in (False, True):
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        return await self._asked(line)
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    await self._drop()
                    if is_last:
                        raise self._silent(error) from error
                except asyncio.CancelledError:  # its answer would be taken for the next request's
                    await self._drop()
                    raise
        raise AssertionError("the last round returned or raised")

    async def start(self) -> None:
        """
        Connect, so that a bad key is reported at once.

        Raises:
            SigningError: The key cannot be used.
            ResourceError: There is no signer.
        """
        if self._settings.is_on:
            async with self._lock:
                await self._begin()

    async def revive(self) -> None:
        """Reconnect to a signer that has gone; `trouble` has the reason if that fails."""
        is_gone = self._settings.is_on and not self._is_connected and not self._lock.locked()
        if is_gone and time.monotonic() - self._tried > _REST_S:
            self._tried = time.monotonic()
            with suppress(SigningError, ResourceError):
                await self.start()

    @property
    def _is_connected(self) -> bool:
        return self._streams is not None and not self._streams[0].at_eof()

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._connected()
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            await self._drop()
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> ResourceError:
        self.trouble = f"the signer does not answer: {error or type(error).__name__}"
        return ResourceError(self.trouble)

    async def _asked(self, line: bytes) -> bytes:
        reader, writer = await self._connected()
        writer.write(line)
        await writer.drain()
        found = json.loads(await _line(reader))
        if not isinstance(found, dict) or not {"error", "envelope"} & found.keys():
            raise EOFError("it says something that no signer says")
        if "error" in found:
            raise SigningError(f"the signer refuses: {found['error']}")
        envelope = dsse.Envelope.from_json(found["envelope"])
        asked, said = Statement.decode(line.strip()), Statement.decode(envelope.payload)
        if replace(said, signed_at=asked.signed_at) != asked:
            raise EOFError("it signed something else than it was asked to")
        return dsse.encode([envelope])

    async def _connected(self) -> _Streams:
        if self._streams is not None and self._is_connected:
            return self._streams
        await self._drop()
        if self._settings.socket is not None:
            self._streams = await asyncio.open_unix_connection(
                str(self._settings.socket), limit=_LINE
            )
        else:
            self._streams = await self._started()
        try:
            self.keyid = _keyid_of(await _line(self._streams[0]))
        except SigningError as error:
            await self._drop()
            self.trouble = f"nothing can be signed: {error}"
            raise
        self.trouble = ""
        self._log.event("signer ready", keyid=self.keyid)
        return self._streams

    async def _started(self) -> _Streams:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                children.python(
                    "jitgen.server.signer", str(theirs.fileno()), str(self._settings.key)
                ),
                stdin=subprocess.DEVNULL,
                cwd=children.FOLDER,
                env=children.environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return await asyncio.open_connection(sock=ours, limit=_LINE)

    async def _drop(self) -> None:
        process, streams = self._process, self._streams
        self._process = self._streams = None
        await _ended(process, streams)

    async def renew(self) -> None:
        """
        Restart the signer with the key that is in the file now. If that key cannot be used, log it
        and keep the previous signer.
        """
        if not self._settings.is_on:
            return
        async with self._lock:
            before = self._process, self._streams
            self._process = self._streams = None
            try:
                await self._begin()
            except (SigningError, ResourceError) as error:
                self._log.event("signer not started", level="error", reason=str(error))
                self._process, self._streams = before
                self.trouble = "" if self._is_connected else self.trouble
            else:
                await _ended(*before)

    async def close(self) -> None:
        """Disconnect, and end a signer that is a child process."""
        async with self._lock:
            await self._drop()


def greeting(path: Path) -> str:
    """
    Return the keyid of the signer behind the socket `path`.

    Raises:
        SigningError: Its key cannot be used.
        ResourceError: There is no signer.
    """
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_ANSWER_S)
            client.connect(str(path))
            with client.makefile("rb") as lines:
                return _keyid_of(lines.readline(_LINE))
    except (OSError, EOFError, ValueError) as error:
        raise ResourceError(f"the signer does not answer: {error}") from error


def _keyid_of(line: bytes) -> str:
    """
    Return the key's name from the first line of a signer; raises SigningError if the signer reports
    an error, EOFError or ValueError if the line is malformed.
    """
    hello = json.loads(line)
    if not isinstance(hello, dict) or not {"error", "keyid"} & hello.keys():
        raise EOFError("it says something that no signer says")
    if "error" in hello:
        raise SigningError(str(hello["error"]))
    return str(hello["keyid"])


async def _ended(process: subprocess.Popen[bytes] | None, streams: _Streams | None) -> None:
    """End a signer that is not used any more."""
    if streams is not None:
        streams[1].close()
    if process is not None:
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.to_thread(process.wait)


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it ended")
    return line
