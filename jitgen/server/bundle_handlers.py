# SPDX-License-Identifier: Apache-2.0
"""
Bundles over HTTP: files ``<sha256>.tar`` that the operator or an export put into a folder.

A file is served under a digest only after its content was checked against that digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import FileResponse, Response

from jitgen.cache.entry import is_key
from jitgen.server.request import HTTPError, Request

if TYPE_CHECKING:
    from jitgen.server.service import Service

MEDIA_TYPE = "application/x-tar"
_CHUNK = 2**20
_seen: dict[tuple[str, int, int, int], bool] = {}


async def get(service: Service, request: Request) -> Response:
    """Answer GET and HEAD of a bundle; byte ranges are supported."""
    digest, folder = (
        request.parameters["digest"].removeprefix("sha256:"),
        service.settings.store.bundles,
    )
    if not is_key(digest):
        raise HTTPError(400, "E_DIGEST", "a bundle's name is its SHA-256: 64 hexadecimal digits")
    path = None if folder is None else folder / f"{digest}.tar"
    if path is None or not await asyncio.to_thread(_has_digest, path, digest):
        raise HTTPError(404, "E_MISSING", f"there is no bundle {digest[:12]}")
    etag = f'"{digest}"'
    if etag in request.header(b"if-none-match"):
        return Response(status_code=304, headers={"ETag": etag})
    return FileResponse(path, media_type=MEDIA_TYPE, headers={"ETag": etag})


def _has_digest(path: Path, digest: str) -> bool:
    """Return whether the file `path` has this digest; a file is read again after a change."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        name = (str(path), found.st_ino, found.st_size, found.st_mtime_ns)
        if name not in _seen:
            whole = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                whole.update(chunk)
            _seen[name] = whole.hexdigest() == digest
        return _seen[name]
