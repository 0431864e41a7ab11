# SPDX-License-Identifier: Apache-2.0
"""
The way of each request: headers, trace, token, handler, then log and counters.

A warm GET passes through here, thousands of times a second: whatever can be done once is done in
the constructors.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import TYPE_CHECKING

from starlette import routing
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jitgen.server.connection_slots import VITAL, Slot
from jitgen.server.log import parent_of, trace_of
from jitgen.server.request import HTTPError, Request
from jitgen.server.routes import ROUTES, Route
from jitgen.server.tokens import Token
from jitgen.support.boundary import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import Counter

    from jitgen.server.service import Service

_NO_TOKEN = Token(name="none", scopes=())
_SINGLE = (b"authorization", b"host")
"""Headers that may occur only once: with two, a proxy and the service might each use another."""

_FULL = "all connections of the service, or of your address, have a request under way"


class Endpoint:
    """The endpoint of one route, as an ASGI application."""

    def __init__(self, service: Service, route: Route) -> None:
        self._service = service
        self._route = route
        self._latency = service.metrics.latency.labels(route.name)
        self._counts: dict[int, Counter] = {}
        requests = service.settings.log.requests
        self._logs_all = requests == "all" or (requests == "work" and not route.is_quiet)
        self._has_quota = bool(route.scope) and route.path not in VITAL

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.perf_counter()
        headers = scope["jitgen.headers"]
        parent = headers.get(b"traceparent")
        trace = trace_of(parent.decode("latin-1") if parent else None)
        token, note, is_counted = _NO_TOKEN, {}, False
        response: Response
        try:
            token = self._token(headers)
            self._admit(token)
            if self._has_quota:
                self._service.quotas.begin(token)
                is_counted = True
            if token.sha256 and (slot := slot_of(scope)) is not None:
                slot.is_known = True
            request = Request(scope, receive, headers, token, trace)
            response = await self._route.handler(self._service, request)
            note = dict(request.note)
        except HTTPError as refused:
            response = refused.response()
            note = {"code": refused.code, "reason": refused.reason}
            self._service.metrics.refused.labels(refused.code).inc()
        except Exception as error:  # a bug of the service costs this request only
            reason = f"{type(error).__name__}: {describe(error)}"
            response = HTTPError(500, "E_INTERNAL", "an error within the service").response()
            note = {"code": "E_INTERNAL", "reason": reason}
        response.raw_headers.append((b"traceparent", parent_of(trace).encode("ascii")))
        try:
            await response(scope, receive, send)
        finally:
            if is_counted:
                self._service.quotas.end(token)
            self._count(response.status_code, time.perf_counter() - start, response)
            if self._logs_all or (response.status_code >= 500 and self._route.scope):
                self._log_request(scope, response.status_code, token, trace, start, note)

    def _token(self, headers: dict[bytes, bytes]) -> Token:
        """Return the token of a request; raises HTTPError if it needs one and has no valid one."""
        route = self._route
        if not route.scope:
            return _NO_TOKEN
        header = headers.get(b"authorization")
        secret = None
        if header is not None:
            kind, _, rest = header.decode("latin-1").partition(" ")
            secret = rest.strip() if kind.lower() == "bearer" else ""
            if route.is_page and kind.lower() == "basic":
                secret = _password(rest)
        token = self._service.tokens.of(secret)
        if token is None:
            asks = 'Basic realm="jitgen"' if route.is_page else "Bearer"
            reason = "no token" if secret is None else "the token is not known, or has ended"
            raise HTTPError(401, "E_TOKEN", reason, {"WWW-Authenticate": asks})
        return token

    def _admit(self, token: Token) -> None:
        scope = self._route.scope
        if scope and scope not in token.scopes:
            raise HTTPError(403, "E_SCOPE", f"the token {token.name} is not good for {scope}")

    def _count(self, status: int, seconds: float, response: Response) -> None:
        counter = self._counts.get(status)
        if counter is None:
            metrics = self._service.metrics
            counter = metrics.requests.labels(self._route.name, str(status))
            self._counts[status] = counter
        counter.inc()
        self._latency.observe(seconds)
        if status == 200 and self._route.name == "entry":
            self._service.metrics.sent.inc(len(response.body))

    def _log_request(
        self,
        scope: Scope,
        status: int,
        token: Token,
        trace: str,
        start: float,
        note: dict[str, object],
    ) -> None:
        client = scope.get("client")
        self._service.log.event(
            "request",
            level="error" if status >= 500 else "info",
            resource=self._route.name,
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round((time.perf_counter() - start) * 1000, 2),
            token=token.name,
            client=client[0] if client else None,
            trace=trace,
            **note,
        )


def _password(encoded: str) -> str:
    """Return the password of HTTP's basic scheme: a browser sends the token as one."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode("latin-1").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


class HttpApp:
    """A service as an ASGI application: rejects malformed requests, then routes the others."""

    def __init__(self, service: Service) -> None:
        self._router = _routes(service)
        self._refused = service.metrics.refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            scope["jitgen.headers"] = headers_of(scope["headers"], scope["http_version"])
            slot = slot_of(scope)
            if slot is not None and slot.is_extra:
                send = _closing(send)
                if scope["path"] not in VITAL:
                    raise HTTPError(503, "E_BUSY", _FULL, retry_s=2)
        except HTTPError as refused:
            self._refused.labels(refused.code).inc()
            await refused.response()(scope, receive, send)
            return
        await self._router(scope, receive, send)


def slot_of(scope: Scope) -> Slot | None:
    """Return the slot of a request's connection; None where connections are not counted."""
    found: Slot | None = scope.get("state", {}).get("slot")
    return found


def _closing(send: Send) -> Send:
    """Return `send`, but with the header ``Connection: close`` added to the response."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return closing


def _routes(service: Service) -> routing.Router:
    """Return the router of a service."""
    paths: dict[str, dict[str, ASGIApp]] = {}
    for route in ROUTES:
        if service.settings.ui or not route.is_page:
            endpoint = Endpoint(service, route)
            paths.setdefault(route.path, {}).update(dict.fromkeys(route.methods, endpoint))
    return routing.Router(
        [routing.Route(path, _Methods(endpoints)) for path, endpoints in paths.items()],
        redirect_slashes=False,
        default=_nothing_here,
    )


class _Methods:
    """The endpoints of one path, by method."""

    def __init__(self, endpoints: dict[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            allowed = ", ".join(sorted(self._endpoints))
            error = HTTPError(405, "E_METHOD", f"allowed here: {allowed}", {"Allow": allowed})
            endpoint = error.response()
        await endpoint(scope, receive, send)


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        error = HTTPError(404, "E_PATH", "nothing is here; see /v1/openapi.json")
        await error.response()(scope, receive, send)


def headers_of(lines: Sequence[tuple[bytes, bytes]], version: str = "1.1") -> dict[bytes, bytes]:
    """
    Return headers by their name in lower case, each name once.

    HTTP allows a list to be sent as several lines of one name, which mean the same as one line with
    commas (RFC 9110, 5.3). Trailers after a body are dropped where the connection is read
    (`jitgen.server.http_limits`).

    Args:
        lines: Names in lower case and values, as the server read them.
        version: The HTTP version. From 1.1 on a request must have a Host (RFC 9112, 3.2).

    Raises:
        HTTPError: A header that must be unique occurs twice, or there is no ``Host``.
    """
    headers = dict(lines)
    if len(headers) != len(lines):
        headers = _merged(lines)
    if b"host" not in headers and version != "1.0":
        raise _malformed("the request has no Host header")
    return headers


def _merged(lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        if name in headers and name in _SINGLE:
            raise _malformed(f"the request has two {name.decode('ascii').title()} headers")
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _malformed(reason: str) -> HTTPError:
    return HTTPError(400, "E_HEADERS", reason, {"Connection": "close"})
