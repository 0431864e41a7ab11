# SPDX-License-Identifier: Apache-2.0
"""Compiles and prewarms over HTTP: start one, and follow it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from jitgen.server.compiles import order_of, plan_of, pool_of, refusal, state_of, submit
from jitgen.server.entry_handlers import body_of, entry_answer
from jitgen.server.request import HTTPError, JSONResponse, Request

if TYPE_CHECKING:
    from jitgen.server.jobs import Job
    from jitgen.server.prewarms import Prewarm
    from jitgen.server.service import Service

_BEAT_S = 15.0
"""Seconds between signs of life on an event stream: proxies cut one that is silent for a minute."""


async def compile_(service: Service, request: Request) -> Response:
    """Answer with the entry of a config, or with the state of its job."""
    document = await request.document("config", "arch", "key", "toolchain")
    order = await order_of(service, request, document)
    request.note |= {"key": order.key, "kernel": order.name}
    body = await body_of(service, request, order.key)
    if body is not None:
        return entry_answer(request, body)
    job = submit(service, order)
    service.miss_log.add(order.key, request.token.name, "not compiled yet", order.name)
    wait_s = min(request.wait_s, service.settings.limits.wait_s)
    if not await _is_over(job, wait_s, request):
        guess_s = max(1, round(service.queue.guess_s(job)))
        headers = {"Location": f"/v1/jobs/{order.key}", "Retry-After": str(guess_s)}
        return JSONResponse(state_of(service, job), status_code=202, headers=headers)
    if job.failure is not None:
        raise refusal(job.failure, job)
    body = await body_of(service, request, order.key)
    if body is None:  # it was pruned, or the disk is full and the memory cache too small
        raise HTTPError(503, "E_LOST", "it was compiled and could not be stored", retry_s=5)
    return entry_answer(request, body)


async def _is_over(job: Job, wait_s: float, request: Request) -> bool:
    """
    Wait until `job` is over, `wait_s` at most and only while the client is connected; returns
    whether it is over.
    """
    if job.is_over or not wait_s:
        return job.is_over
    over = asyncio.create_task(job.over(wait_s))
    gone = asyncio.create_task(request.gone())
    try:
        await asyncio.wait((over, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
        gone.cancel()
    return job.is_over


async def begin_prewarm(service: Service, request: Request) -> Response:
    """Start compiling every kernel that a plan can ask for."""
    document = await request.document("plan", "arch", "toolchain")
    plan = plan_of(document["plan"])
    if not isinstance(document["arch"], str):
        raise HTTPError(400, "E_FIELDS", "arch is a target's name")
    pool = pool_of(service, document["toolchain"])
    begun = await service.prewarms.begin(request, plan, document["arch"], pool)
    headers = {"Location": f"/v1/jobs/{begun.number}", "Retry-After": "5"}
    return JSONResponse(begun.to_json(), status_code=202, headers=headers)


async def job(service: Service, request: Request) -> Response:
    """Answer with the state of a compile or a prewarm, or with a stream of its events."""
    key = request.key
    wants_events = "text/event-stream" in request.header(b"accept")
    if (found := service.queue.find(key)) is not None:
        if wants_events:
            return _Stream(service, request, _job_events(service, found))
        return JSONResponse(state_of(service, found))
    if (prewarm := service.prewarms.find(key)) is not None:
        if wants_events:
            return _Stream(service, request, _prewarm_events(prewarm))
        return JSONResponse(prewarm.to_json())
    raise HTTPError(404, "E_JOB", f"there is no job {key[:12]}, or it is long over")


class _Stream(StreamingResponse):
    """
    Events of a job, for ``limits.stream_s`` at most; a client that wants more asks again.

    Raises:
        HTTPError: The token, or all tokens together, have their maximum of streams already.
    """

    def __init__(self, service: Service, request: Request, lines: AsyncGenerator[bytes]) -> None:
        service.quotas.admit_stream(request.token)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        seconds = service.settings.limits.stream_s
        super().__init__(_within(lines, seconds), media_type="text/event-stream", headers=headers)
        self._counted = service.quotas.stream(request.token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        with self._counted:
            await super().__call__(scope, receive, send)


async def _within(lines: AsyncGenerator[bytes], seconds: float) -> AsyncGenerator[bytes]:
    """Yield `lines` for `seconds`; at least one comes every `_BEAT_S`."""
    end = time.monotonic() + seconds
    async with aclosing(lines):
        async for line in lines:
            yield line
            if time.monotonic() >= end:
                return


async def _job_events(service: Service, job: Job) -> AsyncGenerator[bytes]:
    async for change in service.queue.follow(job, _BEAT_S):
        yield _event(str(job.state), state_of(service, job)) if change is not None else _BEAT


async def _prewarm_events(prewarm: Prewarm) -> AsyncGenerator[bytes]:
    async for row in prewarm.follow(_BEAT_S):
        yield _event("kernel", row) if row is not None else _BEAT
    summary = {name: value for name, value in prewarm.to_json().items() if name != "kernels"}
    yield _event(str(summary["state"]), summary)


_BEAT = b": still here\n\n"


def _event(name: str, document: dict[str, object]) -> bytes:
    # A line break would end the field; JSON in ASCII has none.
    return f"event: {name}\ndata: {json.dumps(document)}\n\n".encode("ascii")
