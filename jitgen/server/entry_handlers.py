# SPDX-License-Identifier: Apache-2.0
"""Entries over HTTP: fetch one, ask which are missing, upload one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from jitgen.cache import Damaged, Entry
from jitgen.cache.entry import is_key
from jitgen.errors import ResourceError, SigningError
from jitgen.remote import wire
from jitgen.server.entry_store import ZSTD, Revoked
from jitgen.server.jobs import JobFailed, Order
from jitgen.server.lru import Body
from jitgen.server.request import MAX_BODY, HTTPError, JSONResponse, Request

if TYPE_CHECKING:
    from jitgen.server.service import Service

MOST_KEYS = MAX_BODY // 68  # 64 digits, two quotes, a comma and a space


async def get(service: Service, request: Request) -> Response:
    """Answer GET and HEAD of an entry."""
    key = request.key
    body = await body_of(service, request, key)
    if body is None and request.query("unattested") == "1":
        body = await _unattested(service, request, key)
    if body is None:
        reason = "it was never compiled here, or is no more"
        failure = service.failures.reason(key)
        service.miss_log.add(key, request.token.name, failure or reason)
        service.metrics.entries.labels("missing").inc()
        raise HTTPError(404, "E_MISSING", f"there is no entry {key[:12]}: {failure or reason}")
    return entry_answer(request, body)


async def body_of(service: Service, request: Request, key: str) -> Body | None:
    """
    Return the body of entry `key`, from memory, the disk or the shared bucket; None if absent.

    Only entries that this service vouches for are returned, never an upload.

    Raises:
        HTTPError: It is revoked, or it needs a new signature and the signer does not answer.
    """
    encoding = request.encoding
    try:
        body = service.entry_store.from_memory(key, encoding)
        if body is not None:
            service.metrics.entries.labels("memory").inc()
            return body
        body = await service.entry_store.body(key, encoding)
        if body is not None:
            service.metrics.entries.labels("disk").inc()
            return body
        entry = await service.leases.found(key)
        if entry is None:
            return None
        service.metrics.entries.labels("shared").inc()
        found = await service.entry_store.publish(entry.meta, entry.files, entry.signatures)
        return await service.entry_store.cache_body(found, encoding)
    except (SigningError, ResourceError) as error:
        raise HTTPError(503, "E_SIGNER", str(error), retry_s=5) from error
    except Revoked as revoked:
        service.miss_log.add(key, request.token.name, f"revoked: {revoked.row.reason}")
        raise gone(revoked) from revoked


async def _unattested(service: Service, request: Request, key: str) -> Body | None:
    """Return the body of the unattested upload `key`; None if there is none."""
    if service.settings.uploads.accept == "off":
        return None
    entry = await service.unattested.read(key)
    if entry is None:
        return None
    try:
        body = await service.entry_store.packed(entry, request.encoding)
    except Revoked as revoked:
        raise gone(revoked) from revoked
    service.metrics.entries.labels("unattested").inc()
    return body


def gone(revoked: Revoked) -> HTTPError:
    """Return the error for a request of a revoked entry."""
    reason = revoked.row.reason or "no reason given"
    return HTTPError(410, "E_REVOKED", f"it is revoked: {reason}", digest=revoked.row.digest)


def entry_answer(request: Request, body: Body) -> Response:
    """Return the response with an entry, or 304 if the client has it already."""
    wanted = request.header(b"if-none-match")
    if wanted and (wanted == "*" or body.etag in wanted):
        return Response(status_code=304, headers={"ETag": body.etag, "Vary": "accept-encoding"})
    return EntryResponse(body, is_head=request.scope["method"] == "HEAD")


class EntryResponse(Response):
    """A packed entry; its headers were encoded when it was packed."""

    def __init__(self, body: Body, *, is_head: bool = False) -> None:
        self.status_code = 200
        self.background = None
        self.body = b"" if is_head else body.data
        self.raw_headers = list(body.headers)


async def missing(service: Service, request: Request) -> Response:
    """Answer which of some keys have no entry."""
    keys = (await request.document("keys"))["keys"]
    if not isinstance(keys, list) or not all(map(is_key, keys)) or len(keys) > MOST_KEYS:
        raise HTTPError(400, "E_FIELDS", f"keys is a list of at most {MOST_KEYS} keys")
    absent = await service.entry_store.missing(list(dict.fromkeys(keys)))
    return JSONResponse({"missing": absent})


async def put(service: Service, request: Request) -> Response:
    """Accept an upload; it is signed only if this service can rebuild it."""
    key = request.key
    if service.settings.uploads.accept == "off":
        raise HTTPError(405, "E_UPLOADS", "this service takes no uploads", {"Allow": "GET, HEAD"})
    if service.uploads.locked():  # before the body is read: each may have 16 MiB
        reason = "as many uploads as may be are under way"
        raise HTTPError(429, "E_BUSY", reason, {"Retry-After": "10", "Connection": "close"})
    async with service.uploads:
        return await _taken(service, request, key)


async def _taken(service: Service, request: Request, key: str) -> Response:
    data = await request.body(wire.MAX_BYTES)
    try:
        found = wire.unpack(data, key)
    except Damaged as error:
        raise HTTPError(400, "E_ENTRY", f"it is no entry of this key: {error}") from error
    try:
        service.entry_store.check(found.record, found.meta)
    except Revoked as revoked:
        raise gone(revoked) from revoked
    if not await service.entry_store.missing([key]):
        return JSONResponse({"key": key, "state": "kept before"})
    entry = Entry(key=key, meta=found.meta, files=found.files)
    reason, is_own = "the operator does not have uploads rebuilt", False
    if service.settings.uploads.accept == "rebuild":
        reason, is_own = await _rebuilt(service, request, entry)
    if not is_own:
        # Its signatures are the uploader's claim, which this service does not vouch for.
        is_new, why_not = await service.unattested.keep(entry)
        if why_not:
            raise HTTPError(507, "E_DISK", why_not)
        if not is_new:
            return JSONResponse(
                {"key": key, "state": "kept before", "attested": False, "reason": reason}
            )
    request.note |= {"key": key, "attested": not reason}
    document: dict[str, object] = {"key": key, "state": "kept", "attested": not reason}
    return JSONResponse(document | ({"reason": reason} if reason else {}), status_code=201)


async def _rebuilt(service: Service, request: Request, entry: Entry) -> tuple[str, bool]:
    """
    Build an upload's kernel here; that build is handed out, whatever the upload holds.

    Returns why the upload is not attested, empty if it is; and whether the build succeeded.
    """
    meta = entry.meta
    toolchain = meta.key_document.get("toolchain")
    pool = next((p for p in service.pools.values() if p.toolchain == toolchain), None)
    if pool is None:
        return "no toolchain here compiles it", False
    order = Order(
        key=meta.key,
        name=meta.name,
        arch=meta.arch,
        config=meta.config,
        pool=pool.name,
        token=request.token.name,
        trace=request.trace,
    )
    try:
        own = await service.work.build(order)
        found = await service.work.sign_and_publish(own, order)
        await service.entry_store.cache_body(found, ZSTD)  # it may be in memory only
    except JobFailed as failure:
        return f"it cannot be rebuilt: {failure.reason}", False
    except (ResourceError, SigningError) as error:
        return f"it cannot be signed: {error}", False
    except Revoked as revoked:
        raise gone(revoked) from revoked
    if dict(own.files) != dict(entry.files):
        return "it was rebuilt to other bytes, and those are handed out", True
    return "", True
