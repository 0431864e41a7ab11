# SPDX-License-Identifier: Apache-2.0
"""How the service asks its signer: a child of its own, or one behind a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from contextlib import suppress
from dataclasses import replace

from jitgen.compile import children
from jitgen.errors import ResourceError, SigningError
from jitgen.server.log import Log
from jitgen.server.settings import Signing
from jitgen.signing import dsse
from jitgen.signing.statement import Statement

_ANSWER_S = 10.0
_LINE = 2**20


class Signatures:
    """
    The way to the signer; one that died is started, or connected to, anew.

    Attributes:
        keyid: Name of the key that it signs with; empty until it said so.
    """

    def __init__(self, settings: Signing, log: Log) -> None:
        self.keyid = ""
        self._settings = settings
        self._log = log
        self._guard = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def of(self, record: bytes) -> bytes:
        """
        Return the ``signatures.json`` of the entry whose ``meta.json`` is `record`; empty where
        nothing is signed here.

        Raises:
            SigningError: The signer refuses.
            ResourceError: There is no signer.
        """
        if not self._settings.is_on:
            return b""
        line = Statement.of(record, self._settings.builder).encode() + b"\n"
        async with self._guard:
            for is_last in (False, True):
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        return await self._asked(line)
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    await self._drop()
                    if is_last:
                        raise ResourceError(f"the signer does not answer: {error}") from error
                except asyncio.CancelledError:  # its answer would be taken for the next one's
                    await self._drop()
                    raise
        raise AssertionError("the last round returned or raised")

    async def start(self) -> None:
        """
        Connect, so that what is wrong with the key is told at once.

        Raises:
            SigningError: The key cannot be used.
            ResourceError: There is no signer.
        """
        if self._settings.is_on:
            async with self._guard:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await self._connected()
                except (OSError, EOFError, ValueError, TimeoutError) as error:
                    await self._drop()
                    raise ResourceError(f"the signer does not answer: {error}") from error

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

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and not self._streams[0].at_eof():
            return self._streams
        await self._drop()
        if self._settings.socket is not None:
            self._streams = await asyncio.open_unix_connection(
                str(self._settings.socket), limit=_LINE
            )
        else:
            self._streams = await self._started()
        hello = json.loads(await _line(self._streams[0]))
        if not isinstance(hello, dict) or not {"error", "keyid"} & hello.keys():
            raise EOFError("it says something that no signer says")
        if "error" in hello:
            await self._drop()
            raise SigningError(hello["error"])
        self.keyid = str(hello["keyid"])
        self._log.event("signer ready", keyid=self.keyid)
        return self._streams

    async def _started(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await asyncio.to_thread(self._process.wait)
            self._process = None

    async def renew(self) -> None:
        """Start anew, with the key that is in the file now; one that cannot be used is told."""
        await self.close()
        try:
            await self.start()
        except (SigningError, ResourceError) as error:
            self._log.event("signer not started", level="error", reason=str(error))

    async def close(self) -> None:
        """End a signer of the service's own."""
        async with self._guard:
            await self._drop()


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("it ended")
    return line
