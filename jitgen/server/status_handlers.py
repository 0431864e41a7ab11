# SPDX-License-Identifier: Apache-2.0
"""Health, versions, metrics, revocations and trust over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from jitgen._version import __version__
from jitgen.server.metrics import CONTENT_TYPE
from jitgen.server.request import MAX_BODY, HTTPError, JSONResponse, Request
from jitgen.server.revocations import TooMany, parse_revocations
from jitgen.signing import times
from jitgen.support.documents import BadDocument, parse_json

if TYPE_CHECKING:
    from jitgen.server.service import Service


async def livez(service: Service, request: Request) -> Response:
    """Answer that the process is alive."""
    return JSONResponse({"live": True})


async def readyz(service: Service, request: Request) -> Response:
    """Answer whether this service should get requests, and why not."""
    reason = await service.unready()
    document: dict[str, object] = {"ready": not reason} | ({"reason": reason} if reason else {})
    if not reason and (warnings := service.warnings()):
        document["warnings"] = warnings
    return JSONResponse(document, status_code=503 if reason else 200)


async def info(service: Service, request: Request) -> Response:
    """Answer with versions, toolchains, limits, and the protections in force."""
    limits = service.settings.limits
    return JSONResponse(
        {
            "jitgen": __version__,
            "uptime_s": round(time.time() - service.started, 1),
            "unready": await service.unready(),
            "toolchains": {
                name: {
                    "ready": pool.is_ready,
                    "trouble": pool.trouble,
                    "jobs": pool.jobs,
                    "jitgen": pool.hello.get("jitgen"),
                    "targets": pool.hello.get("targets", []),
                    "toolchain": dict(pool.toolchain),
                }
                for name, pool in service.pools.items()
            },
            "queue": {"jobs": len(service.queue), "limit": limits.jobs},
            "limits": {
                "per_token": limits.per_token,
                "per_arch": limits.per_arch,
                "wait_s": limits.wait_s,
                "body_bytes": MAX_BODY,
            },
            "signing": {
                "keyid": service.signer.keyid,
                "standing": _standing(service),
                "gate": service.settings.signing.gate,
                "uploads": service.settings.uploads.accept,
            },
            "confined": {
                "network": not service.unconfined,
                "secrets": not service.unconfined,
                "why_not": service.unconfined,
            },
        }
    )


def _standing(service: Service) -> dict[str, object] | None:
    """Return the standing of the signing key; None if it is not known."""
    found = service.vouching.standing
    if found is None:
        return None
    ends = None if found.ends is None else times.text_of(found.ends)
    return {"state": str(found.state), "reason": found.reason, "ends": ends}


async def metrics(service: Service, request: Request) -> Response:
    """Answer with the metrics."""
    service.count()
    return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


async def openapi(service: Service, request: Request) -> Response:
    """Answer with the OpenAPI document."""
    from jitgen.server.openapi import document

    return JSONResponse(document())


async def trust(service: Service, request: Request) -> Response:
    """Answer with the trust document in use."""
    found = service.entry_store.revocations.trust
    if found is None:
        raise HTTPError(404, "E_TRUST", "this service hands out no trust document")
    etag = f'"{found.digest}"'
    if etag in request.header(b"if-none-match"):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(found.data, headers={"Content-Type": "application/json", "ETag": etag})


async def revoke(service: Service, request: Request) -> Response:
    """Add digests to the service's own revocations."""
    digests = await _digests(request)
    try:
        async with service.revoking:
            add = service.entry_store.revocations.add
            number = await asyncio.to_thread(add, digests, request.token.name)
    except TooMany as error:
        raise HTTPError(507, "E_FULL", str(error)) from error
    except OSError as error:
        raise HTTPError(507, "E_DISK", f"it cannot be written down: {error.strerror}") from error
    service.entry_store.invalidate()
    service.log.event(
        "revoked", digests=sorted(digests), token=request.token.name, trace=request.trace
    )
    return JSONResponse({"revoked": number})


async def unrevoke(service: Service, request: Request) -> Response:
    """Take digests back from the service's own revocations."""
    digests = await _digests(request)
    own = service.entry_store.revocations
    if signed := own.signed(digests):
        raise HTTPError(
            409,
            "E_TRUST",
            f"the trust document revokes {signed[0]}: take that back with jitgen trust unrevoke, "
            "and install the document here",
        )
    try:
        async with service.revoking:
            gone = await asyncio.to_thread(own.remove, digests)
    except OSError as error:
        raise HTTPError(507, "E_DISK", f"it cannot be written down: {error.strerror}") from error
    service.entry_store.invalidate()
    service.log.event(
        "revocations taken back",
        digests={
            digest: {"was": row.reason, "why": digests[digest]} for digest, row in gone.items()
        },
        token=request.token.name,
        trace=request.trace,
    )
    return JSONResponse({"removed": len(gone)})


async def _digests(request: Request) -> dict[str, str]:
    """Return the reasons by digest in a request's body."""
    try:
        return parse_revocations(parse_json(await request.body(), max_bytes=MAX_BODY))
    except (BadDocument, ValueError, RecursionError) as error:
        raise HTTPError(400, "E_FIELDS", f"the body is {error}") from None


async def revocations(service: Service, request: Request) -> Response:
    """Answer with all revocations."""
    rows = service.entry_store.revocations.all()
    return JSONResponse(
        {
            "revoked": {
                digest: {"reason": row.reason, "by": row.by, "at": row.at}
                for digest, row in rows.items()
            }
        }
    )
