# SPDX-License-Identifier: Apache-2.0
"""
What every request passes through: its headers, its trace, its token, its handler; then log and
counters.

This is on the way of a warm GET, of which there are thousands a second: nothing here is done per
request that could be done once.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jitgen.server.call import Call, Json, Refused
from jitgen.server.headers import headers_of
from jitgen.server.log import parent_of, trace_of
from jitgen.server.places import VITAL, Place
from jitgen.server.resources import TABLE, Resource
from jitgen.server.tokens import Token
from jitgen.support.boundary import words

if TYPE_CHECKING:
    from jitgen.server.service import Service

_NOBODY = Token(name="nobody", scopes=())
_FULL = "all connections of the service, or of your address, have a request under way"


class Door:
    """The one resource behind a route, as an ASGI application."""

    def __init__(self, service: Service, resource: Resource) -> None:
        self._service = service
        self._resource = resource
        self._latency = service.metrics.latency.labels(resource.name)
        self._counts: dict[int, Any] = {}
        requests = service.settings.log.requests
        self._logs_all = requests == "all" or (requests == "work" and not resource.is_quiet)
        self._has_quota = bool(resource.scope) and resource.path not in VITAL

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.perf_counter()
        headers = scope["jitgen.headers"]
        parent = headers.get(b"traceparent")
        trace = trace_of(parent.decode("latin-1") if parent else None)
        token, note, is_counted = _NOBODY, {}, False
        try:
            token = self._known(headers)
            self._admit(token)
            if self._has_quota:
                self._service.quotas.begin(token)
                is_counted = True
            if token.sha256 and (place := place_of(scope)) is not None:
                place.is_known = True
            call = Call(scope, receive, headers, token, trace)
            response = await self._resource.handler(self._service, call)
            note = dict(call.note)
        except Refused as refused:
            response = Json(refused.document, refused.status, refused.headers)
            note = {"code": refused.code, "reason": refused.reason}
            self._service.metrics.refused.labels(refused.code).inc()
        except Exception as error:  # a mistake of ours costs this request only
            reason = f"{type(error).__name__}: {words(error)}"
            response = Json({"code": "E_INTERNAL", "reason": "a mistake of the service's"}, 500)
            note = {"code": "E_INTERNAL", "reason": reason}
        response.raw_headers.append((b"traceparent", parent_of(trace).encode("ascii")))
        try:
            await response(scope, receive, send)
        finally:
            if is_counted:
                self._service.quotas.end(token)
            self._count(response.status_code, time.perf_counter() - start, response)
            if self._logs_all or (response.status_code >= 500 and self._resource.scope):
                self._tell(scope, response.status_code, token, trace, start, note)

    def _known(self, headers: dict[bytes, bytes]) -> Token:
        """Return who asks; raises Refused where nobody knows."""
        resource = self._resource
        if not resource.scope:
            return _NOBODY
        header = headers.get(b"authorization")
        secret = None
        if header is not None:
            kind, _, rest = header.decode("latin-1").partition(" ")
            secret = rest.strip() if kind.lower() == "bearer" else ""
            if resource.is_page and kind.lower() == "basic":
                secret = _password(rest)
        token = self._service.tokens.of(secret)
        if token is None:
            asks = 'Basic realm="jitgen"' if resource.is_page else "Bearer"
            reason = "no token" if secret is None else "the token is not known, or has ended"
            raise Refused(401, "E_TOKEN", reason, {"WWW-Authenticate": asks})
        return token

    def _admit(self, token: Token) -> None:
        scope = self._resource.scope
        if scope and scope not in token.scopes:
            raise Refused(403, "E_SCOPE", f"the token {token.name} is not good for {scope}")

    def _count(self, status: int, seconds: float, response: Response) -> None:
        counter = self._counts.get(status)
        if counter is None:
            metrics = self._service.metrics
            counter = metrics.requests.labels(self._resource.name, str(status))
            self._counts[status] = counter
        counter.inc()
        self._latency.observe(seconds)
        if status == 200 and self._resource.name == "entry":
            self._service.metrics.sent.inc(len(response.body))

    def _tell(
        self,
        scope: Scope,
        status: int,
        token: Token,
        trace: str,
        start: float,
        note: dict[str, Any],
    ) -> None:
        client = scope.get("client")
        self._service.log.event(
            "request",
            level="error" if status >= 500 else "info",
            resource=self._resource.name,
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
    """Return the password of HTTP's basic scheme: a browser is given the token as one."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode("latin-1").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


class Entrance:
    """The whole of a service as an ASGI application: what no request may be, then its door."""

    def __init__(self, service: Service) -> None:
        self._router = _routes(service)
        self._refused = service.metrics.refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            scope["jitgen.headers"] = headers_of(scope["headers"], scope["http_version"])
            place = place_of(scope)
            if place is not None and place.is_extra:
                send = _closing(send)
                if scope["path"] not in VITAL:
                    raise Refused(503, "E_BUSY", _FULL, {"Retry-After": "2"})
        except Refused as refused:
            self._refused.labels(refused.code).inc()
            await Json(refused.document, refused.status, refused.headers)(scope, receive, send)
            return
        await self._router(scope, receive, send)


def place_of(scope: Scope) -> Place | None:
    """Return the place of the connection that a request came on, where somebody counts them."""
    found: Place | None = scope.get("state", {}).get("place")
    return found


def _closing(send: Send) -> Send:
    """Return `send`, with which the connection ends after the answer."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return closing


def _routes(service: Service) -> Router:
    """Return the router of a service."""
    doors: dict[tuple[str, str], ASGIApp] = {
        (resource.path, method): Door(service, resource)
        for resource in TABLE
        for method in resource.methods
        if service.settings.ui or not resource.is_page
    }
    paths = dict.fromkeys(path for path, _ in doors)
    return Router(
        [
            Route(path, _Methods({m: door for (p, m), door in doors.items() if p == path}))
            for path in paths
        ],
        redirect_slashes=False,
        default=_nothing_here,
    )


class _Methods:
    """The doors of one path, by method."""

    def __init__(self, doors: dict[str, ASGIApp]) -> None:
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._doors.get(scope["method"])
        if door is None:
            allowed = ", ".join(sorted(self._doors))
            document = {"code": "E_METHOD", "reason": f"allowed here: {allowed}"}
            door = Json(document, 405, {"Allow": allowed})
        await door(scope, receive, send)


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        document = {"code": "E_PATH", "reason": "nothing is here; see /v1/openapi.json"}
        await Json(document, 404)(scope, receive, send)
