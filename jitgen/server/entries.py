# SPDX-License-Identifier: Apache-2.0
"""Entries over HTTP: fetch one, ask which are missing, give one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from jitgen.cache import Damaged, Entry
from jitgen.cache.entry import is_key
from jitgen.errors import ResourceError, SigningError
from jitgen.remote import wire
from jitgen.server.call import MAX_BODY, Call, Json, Refused
from jitgen.server.hot import Body
from jitgen.server.jobs import JobFailed, Order
from jitgen.server.shelf import ZSTD, Revoked

if TYPE_CHECKING:
    from jitgen.server.service import Service

MOST_KEYS = MAX_BODY // 68  # 64 digits, two quotes, a comma and a blank


async def get(service: Service, call: Call) -> Response:
    """Answer GET and HEAD of an entry."""
    key = call.key
    body = await body_of(service, call, key)
    if body is None and call.query("unattested") == "1":
        body = await _unattested(service, call, key)
    if body is None:
        reason = "it was never compiled here, or is no more"
        failure = service.failures.reason(key)
        service.misses.add(key, call.token.name, failure or reason)
        service.metrics.entries.labels("missing").inc()
        raise Refused(404, "E_MISSING", f"there is no entry {key[:12]}: {failure or reason}")
    return entry_answer(call, body)


async def body_of(service: Service, call: Call, key: str) -> Body | None:
    """
    Return the body of entry `key`, from memory, the disk or another service; None for none.

    Only what this service vouches for is returned, never what a client gave.

    Raises:
        Refused: It is revoked, or must be signed again and cannot be.
    """
    encoding = call.encoding
    try:
        body = service.shelf.at_hand(key, encoding)
        if body is not None:
            service.metrics.entries.labels("memory").inc()
            return body
        body = await service.shelf.body(key, encoding)
        if body is not None:
            service.metrics.entries.labels("disk").inc()
            return body
        entry = await service.leases.found(key)
        if entry is None:
            return None
        service.metrics.entries.labels("shared").inc()
        found = await service.shelf.publish(entry.meta, entry.files, entry.signatures)
        return await service.shelf.take(found, encoding)
    except (SigningError, ResourceError) as error:
        raise Refused(503, "E_SIGNER", str(error), {"Retry-After": "5"}) from error
    except Revoked as revoked:
        service.misses.add(key, call.token.name, f"revoked: {revoked.row.reason}")
        raise gone(revoked) from revoked


async def _unattested(service: Service, call: Call, key: str) -> Body | None:
    """Return the body of an entry that a client gave; None where nobody did."""
    if service.settings.uploads.accept == "off":
        return None
    entry = await service.unattested.read(key)
    if entry is None:
        return None
    try:
        body = await service.shelf.packed(entry, call.encoding)
    except Revoked as revoked:
        raise gone(revoked) from revoked
    service.metrics.entries.labels("unattested").inc()
    return body


def gone(revoked: Revoked) -> Refused:
    """Return the answer to who asks for what is revoked."""
    reason = revoked.row.reason or "no reason given"
    return Refused(410, "E_REVOKED", f"it is revoked: {reason}", digest=revoked.row.digest)


def entry_answer(call: Call, body: Body) -> Response:
    """Return the answer with an entry, or that the client has it already."""
    wanted = call.header(b"if-none-match")
    if wanted and (wanted == "*" or body.etag in wanted):
        return Response(status_code=304, headers={"ETag": body.etag, "Vary": "accept-encoding"})
    return EntryResponse(body, is_head=call.scope["method"] == "HEAD")


class EntryResponse(Response):
    """A packed entry with its headers as they were encoded once."""

    def __init__(self, body: Body, *, is_head: bool = False) -> None:
        self.status_code = 200
        self.background = None
        self.body = b"" if is_head else body.data
        self.raw_headers = list(body.headers)


async def missing(service: Service, call: Call) -> Response:
    """Answer which of some keys have no entry."""
    keys = (await call.document("keys"))["keys"]
    if not isinstance(keys, list) or not all(map(is_key, keys)) or len(keys) > MOST_KEYS:
        raise Refused(400, "E_FIELDS", f"keys is a list of at most {MOST_KEYS} keys")
    absent = await service.shelf.missing(list(dict.fromkeys(keys)))
    return Json({"missing": absent})


async def put(service: Service, call: Call) -> Response:
    """Take an entry that somebody else built; it is signed only if it can be rebuilt here."""
    key = call.key
    if service.settings.uploads.accept == "off":
        raise Refused(405, "E_UPLOADS", "this service takes no uploads", {"Allow": "GET, HEAD"})
    if service.uploads.locked():  # before a body is read: each may have 16 MiB
        reason = "as many uploads as may be are under way"
        raise Refused(429, "E_BUSY", reason, {"Retry-After": "10", "Connection": "close"})
    async with service.uploads:
        return await _taken(service, call, key)


async def _taken(service: Service, call: Call, key: str) -> Response:
    data = await call.body(wire.MAX_BYTES)
    try:
        found = wire.unpack(data, key)
    except Damaged as error:
        raise Refused(400, "E_ENTRY", f"it is no entry of this key: {error}") from error
    try:
        service.shelf.check(found.record, found.meta)
    except Revoked as revoked:
        raise gone(revoked) from revoked
    if not await service.shelf.missing([key]):
        return Json({"key": key, "state": "kept before"})
    entry = Entry(key=key, meta=found.meta, files=found.files)
    reason, is_own = "the operator does not have uploads rebuilt", False
    if service.settings.uploads.accept == "rebuild":
        reason, is_own = await _rebuilt(service, call, entry)
    if not is_own:
        # Whatever signatures it came with are the uploader's word, not this service's.
        is_new, why_not = await service.unattested.keep(entry)
        if why_not:
            raise Refused(507, "E_DISK", why_not)
        if not is_new:
            return Json({"key": key, "state": "kept before", "attested": False, "reason": reason})
    call.note |= {"key": key, "attested": not reason}
    document: dict[str, Any] = {"key": key, "state": "kept", "attested": not reason}
    return Json(document | ({"reason": reason} if reason else {}), status_code=201)


async def _rebuilt(service: Service, call: Call, entry: Entry) -> tuple[str, bool]:
    """
    Build an upload's kernel here, which is then the one to hand out, whatever the upload is.

    Returns why the upload is not attested, empty where it is; and whether there is a build.
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
        token=call.token.name,
        trace=call.trace,
    )
    try:
        own = await service.work.built(order)
        kept = await service.work.kept(own, order)
        await service.shelf.take(kept, ZSTD)  # it may be in memory alone
    except JobFailed as failure:
        return f"it cannot be rebuilt: {failure.reason}", False
    except (ResourceError, SigningError) as error:
        return f"it cannot be signed: {error}", False
    except Revoked as revoked:
        raise gone(revoked) from revoked
    if dict(own.files) != dict(entry.files):
        return "it was rebuilt to other bytes, and those are handed out", True
    return "", True
