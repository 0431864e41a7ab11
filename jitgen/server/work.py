# SPDX-License-Identifier: Apache-2.0
"""
Runs a job from beginning to end: compile, check the answer, validate, sign, publish.

A compile process is not trusted. Its answer must be an entry with the key, config, target and name
that were asked for, and every digest must be right; only then is the entry signed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jitgen.cache import Damaged, Entry
from jitgen.errors import ResourceError, SigningError
from jitgen.remote import wire
from jitgen.server import compile_task
from jitgen.server.entry_store import ZSTD, Found, Revoked
from jitgen.server.jobs import Job, JobFailed, Order

if TYPE_CHECKING:
    from jitgen.server.entry_store import EntryStore
    from jitgen.server.failures import Failures
    from jitgen.server.leases import Leases
    from jitgen.server.log import Log
    from jitgen.server.metrics import Metrics
    from jitgen.server.pools import Pool
    from jitgen.server.signer_client import SignerClient
    from jitgen.server.validator import Validator

_CODES = {
    compile_task.REFUSED: "E_COMPILE",
    compile_task.BROKEN: "E_TOOLCHAIN",
    compile_task.SHORT: "E_RESOURCE",
    compile_task.DOUBTFUL: "E_TOOLCHAIN",
}


_OUSTED = "another build was in its place, with no signature that counts"


class Worker:
    """Runs jobs; raises JobFailed for any failure of one."""

    def __init__(
        self,
        *,
        pools: Mapping[str, Pool],
        entry_store: EntryStore,
        signer: SignerClient,
        validator: Validator,
        leases: Leases,
        metrics: Metrics,
        log: Log,
        failures: Failures,
    ) -> None:
        self._pools = pools
        self._entry_store = entry_store
        self._signer = signer
        self._validator = validator
        self._leases = leases
        self._metrics = metrics
        self._log = log
        self._failures = failures

    async def __call__(self, job: Job) -> None:
        """Bring the entry of `job` into the entry store."""
        order = job.order
        self._metrics.queue_s.observe(job.started - job.created)
        outcome = "failed"
        try:
            self._entry_store.from_memory(order.key, ZSTD)  # raises Revoked: no compile then
            async with self._leases.held(order.key) as theirs:
                found = await self._there(order.key, theirs)
                outcome = "found"
                if found is None:
                    found = await self._compile(job)
                    outcome = "compiled"
            await self._entry_store.cache_body(found, ZSTD)
        except JobFailed as failure:
            outcome = failure.code
            if failure.is_certain:
                await self._failures.add(order.key, order.name, failure.reason)
            raise
        except Revoked as revoked:
            outcome = "E_REVOKED"
            raise JobFailed(outcome, f"it is revoked: {revoked}") from revoked
        except (ResourceError, SigningError, Damaged) as error:
            outcome = "E_RESOURCE"
            raise JobFailed(outcome, str(error)) from error
        finally:
            self._metrics.compiles.labels(order.arch, order.pool, outcome).inc()
            self._log.event(
                "job over",
                level="info" if outcome in ("compiled", "found") else "error",
                key=order.key,
                kernel=order.name,
                outcome=outcome,
                asked=job.asked,
                compile_s=job.compile_s,
                trace=order.trace,
            )

    async def _there(self, key: str, theirs: Entry | None) -> Found | None:
        """
        Return an entry that exists already: that of another service, `theirs`, which is published
        here, or one in the root; None if there is none.
        """
        if theirs is None:
            return await self._entry_store.find(key)
        return await self._entry_store.publish(theirs.meta, theirs.files, theirs.signatures)

    async def build(self, order: Order) -> Entry:
        """Compile `order`; the entry is checked, but neither signed nor published."""
        answer = await self._pools[order.pool].compile(order.config, order.arch, order.trace)
        kind, result = answer["kind"], answer.get("result") or {}
        if kind != "ok":
            code = "E_TIMEOUT" if kind == "timeout" else "E_RESOURCE"
            raise JobFailed(code, f"the compile process failed: {answer.get('error')}")
        if "kind" in result:
            is_certain = result["kind"] == compile_task.REFUSED
            raise JobFailed(_CODES[result["kind"]], str(result["error"]), is_certain=is_certain)
        return _checked(order, result)

    async def _compile(self, job: Job) -> Found:
        order = job.order
        self._log.event(
            "compile",
            key=order.key,
            kernel=order.name,
            toolchain=order.pool,
            token=order.token,
            trace=order.trace,
        )
        entry = await self.build(order)
        job.compile_s = entry.meta.compile_s
        self._metrics.compile_s.labels(order.arch).observe(entry.meta.compile_s)
        return await self.sign_and_publish(entry, order)

    async def sign_and_publish(self, entry: Entry, order: Order) -> Found:
        """
        Sign and publish an entry that was built here; returns the one to hand out.

        Raises:
            Revoked: A digest of it is revoked.
            JobFailed: It does not pass the gate.
            SigningError, ResourceError: It cannot be signed.
        """
        record = entry.meta.encode()
        self._entry_store.check(record, entry.meta)
        if reason := await self._validator.refusal(entry, self._pools[order.pool].python):
            raise JobFailed("E_GATE", f"it does not pass the gate: {reason}", is_certain=True)
        signatures = await self._signer.of(record)
        await self._entry_store.record_built(record)
        found = await self._entry_store.publish(entry.meta, entry.files, signatures)
        if found.entry.why_private:
            # It is served from memory; after a restart it is compiled again.
            reason = found.entry.why_private
            self._log.event("not kept", level="error", key=entry.key, reason=reason)
            return found
        if found.is_ousted:
            self._log.event("set aside", level="error", key=entry.key, reason=_OUSTED)
        await self._leases.share(found.entry)
        return found


def _checked(order: Order, result: Mapping[str, Any]) -> Entry:
    """Return the entry in a compile process's answer; raises JobFailed if it is not right."""
    try:
        record = result["meta"].encode("ascii")
        files = {
            name: base64.b64decode(data, validate=True) for name, data in result["files"].items()
        }
        found = wire.checked(record, files, order.key)
    except (KeyError, AttributeError, ValueError, binascii.Error, Damaged) as error:
        raise JobFailed("E_RESOURCE", f"the compile process answered nonsense: {error}") from error
    meta = found.meta
    if (meta.config, meta.arch, meta.name) != (order.config, order.arch, order.name):
        raise JobFailed("E_RESOURCE", "the compile process answered with another kernel")
    return Entry(key=order.key, meta=meta, files=found.files)
