# SPDX-License-Identifier: Apache-2.0
"""A request as handlers see it, their JSON responses, and the error that they raise."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive, Scope

from jitgen.cache.entry import is_key
from jitgen.server.entry_store import IDENTITY, ZSTD
from jitgen.server.tokens import Token
from jitgen.support.documents import BadDocument, parse_json

MAX_BODY = 2**16
"""Most bytes of a request's body, unless it is an entry."""

_QUERY = 200  # most characters of a value in a query string
_BODY_S = 30.0  # time limit for a body to arrive


class HTTPError(Exception):
    """
    The request is answered with an error: ``{"code", "reason", ...}``.

    Attributes:
        status: Status of the response.
        document: Its body.
        headers: Further headers, such as ``Retry-After``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        reason: str,
        headers: Mapping[str, str] | None = None,
        retry_s: float | None = None,
        **more: object,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.reason = reason
        self.document = {"code": code, "reason": reason, **more}
        self.headers = dict(headers or {})
        if retry_s is not None:
            self.headers["Retry-After"] = str(max(1, round(retry_s)))

    def response(self) -> JSONResponse:
        """Return the JSON response with this error."""
        return JSONResponse(self.document, self.status, self.headers)


class Request:
    """
    One request.

    Attributes:
        parameters: Parameters of the path, by name.
        token: The token that it was sent with.
        trace: Its trace id.
        note: Further fields for its line in the log; handlers add to it.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        headers: Mapping[bytes, bytes],
        token: Token,
        trace: str,
    ) -> None:
        self.parameters: Mapping[str, str] = scope["path_params"]
        self.token = token
        self.trace = trace
        self.note: dict[str, object] = {}
        self.scope = scope
        self._headers = headers
        self._receive = receive

    def header(self, name: bytes) -> str:
        """Return a header by its name in lower case; empty if it was not sent."""
        return self._headers.get(name, b"").decode("latin-1")

    def query(self, name: str) -> str:
        """Return a value of the query string, cut to 200 characters; empty if it is not there."""
        text: str = self.scope["query_string"].decode("latin-1")
        return dict(parse_qsl(text)).get(name, "")[:_QUERY]

    @property
    def key(self) -> str:
        """The key in the path; raises HTTPError if it is malformed."""
        key = self.parameters["key"]
        if not is_key(key):
            raise HTTPError(400, "E_KEY", "a key is 64 hexadecimal digits in lower case")
        return key

    @property
    def encoding(self) -> str:
        """Encoding in which the client accepts entries."""
        return encoding_of(self._headers.get(b"accept-encoding", b""))

    @property
    def wait_s(self) -> float:
        """Seconds that the client would wait, by ``Prefer: wait=N``; 0 without one."""
        return wait_of(self._headers.get(b"prefer", b""))

    async def body(self, most: int = MAX_BODY) -> bytes:
        """
        Return the body.

        Raises:
            HTTPError: It has more than `most` bytes, does not arrive in time, or is encoded.
        """
        if self.header(b"transfer-encoding").lower() not in ("", "chunked"):
            raise HTTPError(501, "E_ENCODING", "of transfer codings, chunked alone is known here")
        if self.header(b"content-encoding") not in ("", "identity"):
            raise HTTPError(415, "E_ENCODING", "bodies are taken as they are, not compressed")
        length = self.header(b"content-length")
        if length.isdecimal() and int(length[:12]) > most:
            raise _too_large(most)
        chunks, size = [], 0
        try:
            async with asyncio.timeout(_BODY_S):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPError(400, "E_BODY", "the body ended early")
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if size > most:
                        raise _too_large(most)
                    chunks.append(chunk)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            raise HTTPError(408, "E_BODY", f"the body did not arrive in {_BODY_S:.0f} s") from None

    async def gone(self) -> None:
        """Wait until the client disconnects; call it after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def document(self, *fields: str) -> dict[str, object]:
        """
        Return the body as a JSON object with exactly `fields`.

        Raises:
            HTTPError: It is anything else.
        """
        data = await self.body()
        try:
            found = parse_json(data, max_bytes=MAX_BODY)
        except (BadDocument, RecursionError) as error:
            raise HTTPError(400, "E_JSON", str(error) or "it nests too deeply") from None
        if not isinstance(found, dict) or set(found) != set(fields):
            raise HTTPError(400, "E_FIELDS", f"the body is a JSON object with {', '.join(fields)}")
        return found


def _too_large(most: int) -> HTTPError:
    return HTTPError(413, "E_SIZE", f"a body has at most {most} bytes", {"Connection": "close"})


@lru_cache(maxsize=256)
def encoding_of(header: bytes) -> str:
    """Return zstd if an ``Accept-Encoding`` header allows it, else identity."""
    for part in header.decode("latin-1").lower().split(","):
        name, _, quality = part.strip().partition(";")
        if name.strip() == ZSTD:
            weight = quality.partition("q=")[2].strip()
            return ZSTD if re.fullmatch(r"0(\.0*)?", weight) is None else IDENTITY
    return IDENTITY


@lru_cache(maxsize=256)
def wait_of(header: bytes) -> float:
    """Return the seconds of ``wait=N`` in a ``Prefer`` header; 0 without one."""
    match = re.search(
        r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])", header.decode("latin-1")
    )
    return float(match[1]) if match else 0.0


class JSONResponse(Response):
    """A response with one JSON document, in ASCII."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Return the bytes of the document."""
        return json.dumps(content, ensure_ascii=True, allow_nan=False).encode("ascii")
