# SPDX-License-Identifier: Apache-2.0
"""
Requests to compile: how they are checked, and the answers.

Checked in this order: malformed 400; no such toolchain 409; illegal config 422, with the nearest
legal one; a key that differs from the client's 409, with the difference; revoked 410; the entry
exists 200; a remembered failure 424; the queue is full 429 or 503; else a job 202.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jitgen.cache.entry import is_key
from jitgen.errors import ResourceError
from jitgen.server.jobs import Busy, Job, JobFailed, JobState, Order
from jitgen.server.pools import Pool, differences
from jitgen.server.questions import Question
from jitgen.server.request import HTTPError, Request
from jitgen.support.text import shown

if TYPE_CHECKING:
    from jitgen.server.service import Service

_MAX_NAMES = 64  # versions in a toolchain
_STATUS = {"E_COMPILE": 424, "E_GATE": 424, "E_REVOKED": 410}
"""Status of a failure by its code; any other failure may pass: 503."""


async def order_of(service: Service, request: Request, document: Mapping[str, Any]) -> Order:
    """
    Return the compile that `document`, ``{config, arch, key, toolchain}``, asks for.

    Raises:
        HTTPError: It is malformed or illegal, no pool has its toolchain, or the kernel has another
            key here.
    """
    config, arch, key = document["config"], document["arch"], document["key"]
    if not is_key(key) or not isinstance(config, dict) or not isinstance(arch, str):
        raise HTTPError(
            400, "E_FIELDS", "config is an object, arch a target, key 64 hexadecimal digits"
        )
    pool = pool_of(service, document["toolchain"])
    examined = await examine(pool, config, arch)
    if examined["key"] != key:
        # The toolchains are equal, so jitgen's version, and with it the templates, must differ.
        raise HTTPError(
            409,
            "E_KEY",
            f"the kernel has another key here ({examined['key'][:12]}): this service has jitgen "
            f"{pool.hello['jitgen']}",
            document=examined["document"],
            key=examined["key"],
        )
    return Order(
        key=key,
        name=examined["name"],
        arch=arch,
        config=examined["document"]["config"],
        pool=pool.name,
        token=request.token.name,
        trace=request.trace,
    )


def pool_of(service: Service, toolchain: object) -> Pool:
    """
    Return the pool whose toolchain equals `toolchain`.

    Raises:
        HTTPError: No pool has this toolchain; the error has the difference to the nearest one.
    """
    if (
        not isinstance(toolchain, dict)
        or len(toolchain) > _MAX_NAMES
        or not all(isinstance(text, str) for text in toolchain.values())
    ):
        raise HTTPError(400, "E_FIELDS", "toolchain is an object of versions by name")
    ready = [pool for pool in service.pools.values() if pool.hello]
    for pool in ready:
        if pool.toolchain == toolchain:
            return pool
    if not ready or any(pool.is_starting for pool in service.pools.values()):
        reason = "not every toolchain has started yet"  # one of those may be the right one
        raise HTTPError(503, "E_STARTING", reason, retry_s=2)
    nearest = min(ready, key=lambda pool: len(differences(toolchain, pool.toolchain)))
    found = differences(toolchain, nearest.toolchain)
    words = ", ".join(f"{d['field']} {d['client']} (here {d['service']})" for d in found[:4])
    raise HTTPError(
        409,
        "E_TOOLCHAIN",
        f"no such toolchain here; the nearest, {nearest.name}, differs in {words}",
        differs=found,
        toolchains={pool.name: dict(pool.toolchain) for pool in ready},
    )


async def ask(pool: Pool, question: Question, **details: object) -> dict[str, Any]:
    """Return the answer of `pool` to a question; raises HTTPError if there is none."""
    try:
        return await pool.ask(question, **details)
    except ResourceError as error:
        raise HTTPError(503, "E_POOL", str(error), retry_s=5) from error


async def examine(pool: Pool, config: dict[str, object], arch: str) -> dict[str, Any]:
    """
    Return name, key and key document of a config, by the rules of `pool`'s jitgen.

    Raises:
        HTTPError: It is malformed or illegal; the error has the rule, its reason and the nearest
            legal config.
    """
    answer = await ask(pool, Question.EXAMINE, config=config, arch=arch)
    if "error" in answer:
        raise HTTPError(422, f"E_{answer['error'].upper()}", answer["reason"], proposal=None)
    if "refused" in answer:
        refused = answer["refused"]
        raise HTTPError(422, refused["code"], refused["reason"], proposal=refused["proposal"])
    return answer


def submit(service: Service, order: Order) -> Job:
    """
    Return the job of `order`.

    Raises:
        HTTPError: A failure of it is remembered, or the queue is full.
    """
    found = service.queue.find(order.key)
    if found is None or found.is_over:
        failure = service.failures.reason(order.key)
        if failure:
            raise HTTPError(424, "E_COMPILE", failure, kernel=order.name)
    elif not found.is_over:
        service.metrics.joined.inc()
    try:
        return service.queue.submit(order)
    except Busy as busy:
        raise HTTPError(busy.status, "E_BUSY", busy.reason, retry_s=busy.retry_s) from busy


def refusal(failure: JobFailed, job: Job) -> HTTPError:
    """Return the HTTP error for a request whose job failed."""
    status = _STATUS.get(failure.code, 503)
    retry_s = 2 if status == 503 else None
    return HTTPError(status, failure.code, failure.reason, retry_s=retry_s, kernel=job.order.name)


def state_of(service: Service, job: Job) -> dict[str, object]:
    """Return a job's state as its JSON document."""
    document: dict[str, object] = {
        "key": job.order.key,
        "kernel": job.order.name,
        "arch": job.order.arch,
        "toolchain": job.order.pool,
        "state": str(job.state),
        "trace": job.order.trace,
    }
    if job.state is JobState.QUEUED:
        document["position"] = service.queue.position(job)
        document["guess_s"] = round(service.queue.guess_s(job), 1)
    if job.failure is not None:
        document |= {"code": job.failure.code, "reason": job.failure.reason}
    if job.state is JobState.DONE:
        document["compile_s"] = job.compile_s
    return document


def plan_of(value: object) -> str | dict[str, object]:
    """Return the plan of a request: a name, or a table; raises HTTPError for anything else."""
    if isinstance(value, str) and len(value) <= 100:
        return value
    if isinstance(value, dict):
        return value
    raise HTTPError(
        400,
        "E_PLAN",
        f"a plan is the name of a shipped one, or an object with problems (got {shown(value)})",
    )
