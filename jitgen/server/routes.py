# SPDX-License-Identifier: Apache-2.0
"""
The table of routes: path, methods, scope, handler, and the meaning of each status.

The router, the check of tokens, labels of metrics, the OpenAPI document, and a test of every scope
are derived from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

from starlette.responses import Response

from jitgen.server import bundle_handlers, entry_handlers, job_handlers, status_handlers, ui
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.server.request import Request
    from jitgen.server.service import Service

Handler = Callable[["Service", "Request"], Awaitable[Response]]

_ERRORS = {
    401: "no token, or none that is known",
    403: "the token is not good for this",
}


@frozen
class Route:
    """
    One route.

    Attributes:
        name: Its name in metrics and logs.
        path: Its path, with parameters in braces.
        scope: Scope that a token needs; empty: no token is needed.
        handler: The function that answers.
        summary: One line about it.
        answers: The meaning of each status, besides those of every route with a scope.
        methods: HTTP methods.
        is_quiet: Whether it is cheap: its requests are logged only with ``log.requests = "all"``.
        is_page: Whether it is for browsers, which send the token as a password.
    """

    name: str
    path: str
    scope: str
    handler: Handler = field(repr=False)
    summary: str
    answers: dict[int, str]
    methods: tuple[str, ...] = ("GET",)
    is_quiet: bool = False
    is_page: bool = False

    @property
    def all_answers(self) -> dict[int, str]:
        """The meaning of each status with which the route may answer."""
        return {**self.answers, **(_ERRORS if self.scope else {})}


_ENTRY = {
    200: "the entry, a tar; with zstd where Accept-Encoding allows it",
    304: "it is the one that If-None-Match names",
    404: "there is none",
    410: "it is revoked",
    503: "it must be signed again, and the signer does not answer",
}

_PAGES: tuple[tuple[str, str, Handler, str, dict[int, str]], ...] = (
    ("ui", "/ui", ui.overview, "Page: queue, compiles, hit rates, misses", {}),
    ("ui_entries", "/ui/entries", ui.entries, "Page: entries", {}),
    ("ui_entry", "/ui/entries/{key}", ui.entry, "Page: one entry", {404: "there is none"}),
    ("ui_revocations", "/ui/revocations", ui.revocations, "Page: trust and revocations", {}),
    ("ui_style", "/ui/style.css", ui.style, "The style of the pages", {}),
)

ROUTES: tuple[Route, ...] = (
    Route(
        name="entry",
        methods=("GET", "HEAD"),
        path="/v1/entries/{key}",
        scope="read",
        handler=entry_handlers.get,
        summary="An entry by its key",
        answers=_ENTRY,
        is_quiet=True,
    ),
    Route(
        name="upload",
        methods=("PUT",),
        path="/v1/entries/{key}",
        scope="write",
        handler=entry_handlers.put,
        summary="Give the service an entry that was built elsewhere",
        answers={
            200: "there was one already",
            201: "it is kept, or the service's own build; attested says whether they are equal",
            400: "it is no entry of this key",
            405: "the operator takes none",
            410: "it is revoked",
            413: "it is too large",
            429: "as many as may be are under way",
            507: "the disk is full",
        },
    ),
    Route(
        name="missing",
        methods=("POST",),
        path="/v1/entries:missing",
        scope="read",
        handler=entry_handlers.missing,
        summary="Which of some keys have no entry",
        answers={200: '{"missing": [key, ...]}', 400: "malformed", 413: "too large"},
        is_quiet=True,
    ),
    Route(
        name="bundle",
        methods=("GET", "HEAD"),
        path="/v1/bundles/{digest}",
        scope="read",
        handler=bundle_handlers.get,
        summary="A whole plan, by the digest of its file",
        answers={200: "the bundle, an OCI image layout as a tar", 404: "there is none"},
    ),
    Route(
        name="compile",
        methods=("POST",),
        path="/v1/compile",
        scope="compile",
        handler=job_handlers.compile_,
        summary="The entry of a config, compiled if need be",
        answers={
            200: "the entry, as by GET",
            202: "it is under way: Location says where to ask, Retry-After when",
            400: "malformed",
            409: "another toolchain, or another jitgen; with the difference",
            410: "it is revoked",
            413: "too large",
            422: "the target cannot run it: {code, reason, proposal}",
            424: "the compiler refused it, now or not long ago",
            429: "this token has too many under way",
            503: "the service has too many, ends, or is short of something",
        },
    ),
    Route(
        name="job",
        path="/v1/jobs/{key}",
        scope="compile",
        handler=job_handlers.job,
        summary="Where a compile or prewarm stands; events with Accept: text/event-stream",
        answers={200: "state and position, or a stream of events", 404: "there is none"},
    ),
    Route(
        name="prewarm",
        methods=("POST",),
        path="/v1/prewarm",
        scope="compile",
        handler=job_handlers.begin_prewarm,
        summary="Compile every kernel that a plan can ask for",
        answers={
            202: "it is under way: Location says where to ask",
            400: "malformed",
            409: "another toolchain",
            422: "no such plan, or nothing in it for this target",
            429: "too many are under way",
            503: "the toolchain does not answer",
        },
    ),
    Route(
        name="revoke",
        methods=("POST",),
        path="/v1/revocations",
        scope="admin",
        handler=status_handlers.revoke,
        summary="Hand out something no more",
        answers={
            200: '{"revoked": number of new ones}',
            400: "malformed",
            507: "the disk is full, or the list",
        },
    ),
    Route(
        name="unrevoke",
        methods=("POST",),
        path="/v1/revocations:remove",
        scope="admin",
        handler=status_handlers.unrevoke,
        summary="Hand out again what this service revoked",
        answers={
            200: '{"removed": number of those that were revoked here}',
            400: "malformed",
            409: "the trust document revokes one of them",
            507: "the disk is full",
        },
    ),
    Route(
        name="revocations",
        path="/v1/revocations",
        scope="read",
        handler=status_handlers.revocations,
        summary="What is revoked, and why",
        answers={200: "digests with their reasons"},
    ),
    Route(
        name="trust",
        path="/v1/trust",
        scope="read",
        handler=status_handlers.trust,
        summary="The trust document, signed by the root key",
        answers={200: "its bytes", 304: "it is the one that If-None-Match names", 404: "none"},
        is_quiet=True,
    ),
    Route(
        name="metrics",
        path="/metrics",
        scope="read",
        handler=status_handlers.metrics,
        summary="Counters for Prometheus",
        answers={200: "text"},
        is_quiet=True,
    ),
    Route(
        name="info",
        path="/v1/info",
        scope="read",
        handler=status_handlers.info,
        summary="Versions, toolchains, limits, and what is enforced",
        answers={200: "an object"},
        is_quiet=True,
    ),
    Route(
        name="openapi",
        path="/v1/openapi.json",
        scope="",
        handler=status_handlers.openapi,
        summary="This document",
        answers={200: "OpenAPI 3.1"},
        is_quiet=True,
    ),
    Route(
        name="livez",
        path="/livez",
        scope="",
        handler=status_handlers.livez,
        summary="Whether the process answers at all",
        answers={200: "it does"},
        is_quiet=True,
    ),
    Route(
        name="readyz",
        path="/readyz",
        scope="",
        handler=status_handlers.readyz,
        summary="Whether to send requests: disk writable, a toolchain proven, room in the queue",
        answers={200: "yes", 503: "no, and why"},
        is_quiet=True,
    ),
    *(
        Route(
            name=name,
            path=path,
            scope="read",
            handler=handler,
            summary=summary,
            answers={200: "HTML", **more},
            is_quiet=True,
            is_page=True,
        )
        for name, path, handler, summary, more in _PAGES
    ),
)
