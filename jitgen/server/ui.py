# SPDX-License-Identifier: Apache-2.0
"""
Pages for people at ``/ui``: the queue, recent compiles, misses and their reasons, entries.

They look like the pages of `jitgen inspect`, whose style sheet they have, and the overview draws
the last day (`jitgen.server.pictures`). The templates escape everything but these drawings. The
pages need no scripts, and their content security policy allows none. Browsers send a token as the
password of HTTP's basic scheme. The pages change nothing, so that another site cannot make a
browser change anything (CSRF).
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

from jitgen._version import __version__
from jitgen.cache import Entry
from jitgen.errors import SigningError
from jitgen.inspect.document import asset
from jitgen.server.compiles import state_of
from jitgen.server.pictures import SOURCES, of_day
from jitgen.server.request import HTTPError, Request
from jitgen.signing.dsse import decode
from jitgen.signing.statement import Statement

if TYPE_CHECKING:
    import jinja2

    from jitgen.server.service import Service

POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FOLDER = Path(__file__).resolve().parent / "pages"
_MOST = 200  # rows of a table
_HOUR_S = 3600.0


async def overview(service: Service, request: Request) -> Response:
    """Show the queue, recent compiles, hit rates and misses."""
    counts = {source: _count(service, source) for source in SOURCES}
    total = sum(counts.values())
    service.look(is_asked=True)
    recent = service.queue.recent(50)
    return _page(
        "overview.html",
        active=[(job, state_of(service, job)) for job in service.queue.active()[:_MOST]],
        recent=recent,
        pictures=of_day(service.history.spans(time.time()), recent),
        prewarms=[prewarm.to_json() for prewarm in service.prewarms.all()[:20]],
        rates=[(name, n, n / total if total else 0.0) for name, n in counts.items()],
        misses=service.miss_log.since(_HOUR_S)[:_MOST],
        pools=service.pools.values(),
        unready=await service.unready(),
        warnings=service.warnings(),
        lru=service.entry_store.lru,
        is_live=bool(request.query("live")),
    )


async def entries(service: Service, request: Request) -> Response:
    """List the entries whose name or key contains the search text."""
    wanted = request.query("q")

    def found() -> list[object]:
        rows = (
            i for i in service.entry_store.store.entries() if wanted in i.name or wanted in i.key
        )
        return list(islice(rows, _MOST + 1))

    rows = await asyncio.to_thread(found)
    return _page("entries.html", rows=rows[:_MOST], is_more=len(rows) > _MOST, wanted=wanted)


async def entry(service: Service, request: Request) -> Response:
    """Show one entry: its key document, its resources, its source, its signatures."""
    found = await asyncio.to_thread(service.entry_store.store.read, request.key)
    if found is None:
        raise HTTPError(404, "E_MISSING", f"there is no entry {request.key[:12]}")
    document = found.meta.key_document
    return _page(
        "entry.html",
        meta=found.meta,
        source=found.source,
        derived=document.get("derived") or {},
        document=json.dumps(document, indent=2, sort_keys=True),
        signatures=_signatures(found),
        revocation=service.entry_store.revocations.of_key(request.key),
    )


async def revocations(service: Service, request: Request) -> Response:
    """Show the revocations, and the trust document."""
    rows = sorted(service.entry_store.revocations.all().values(), key=lambda row: -row.at)
    trust = service.entry_store.revocations.trust
    return _page(
        "revocations.html",
        rows=rows[:_MOST],
        trust=None if trust is None else trust.trust,
        keyid=service.signer.keyid,
        standing=service.vouching.standing,
    )


async def style(service: Service, request: Request) -> Response:
    """Answer with the style sheet."""
    text = asset("page.css") + (_FOLDER / "style.css").read_text(encoding="utf-8")
    return Response(text, headers={**_HEADERS, "Content-Type": "text/css; charset=utf-8"})


def _count(service: Service, source: str) -> int:
    found = service.metrics.registry.get_sample_value(
        "jitgen_service_entries_total", {"source": source}
    )
    return int(found or 0)


def _signatures(entry: Entry) -> list[dict[str, str]]:
    """Return an entry's signatures as they are stated, without checking them."""
    try:
        return [
            {"keyid": each.keyid, "builder": said.builder, "at": _moment(said.signed_at)}
            for envelope in decode(entry.signatures)
            for said in [Statement.decode(envelope.payload)]
            for each in envelope.signatures
        ]
    except SigningError as error:
        return [{"keyid": "unreadable", "builder": str(error), "at": ""}]


def _page(name: str, **values: object) -> Response:
    html = _templates().get_template(name).render(version=__version__, now=time.time(), **values)
    return Response(html, headers={**_HEADERS, "Content-Type": "text/html; charset=utf-8"})


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    made.filters |= {"moment": _moment, "ago": _ago, "size": _size}
    return made


def _moment(at: float | datetime) -> str:
    """Return a time in UTC, to the second."""
    if not isinstance(at, float):
        return str(at.strftime("%Y-%m-%d %H:%M:%S"))
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _ago(at: float) -> str:
    seconds = max(0, round(time.time() - at))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1024:,.0f} KiB" if num_bytes < 2**20 else f"{num_bytes / 2**20:,.1f} MiB"
