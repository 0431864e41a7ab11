# SPDX-License-Identifier: Apache-2.0
"""
Prewarming over HTTP: compiles every kernel of a plan, with an event for each as it is done.

A prewarm is a job with a number of its own. It puts its kernels into the queue of all requests, a
few at a time, so that a plan of hundreds does not delay a request for a single kernel.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from jitgen.server.compiles import ask, examine, submit
from jitgen.server.jobs import Order
from jitgen.server.pools import Pool
from jitgen.server.questions import Question
from jitgen.server.request import HTTPError, Request

if TYPE_CHECKING:
    from jitgen.server.service import Service

_AHEAD = 8  # kernels of one plan in the queue at a time
_MAX_FINISHED = 100  # finished prewarms that are still known
_MOST = 20  # prewarms at a time
_MOST_OF_TOKEN = 10  # prewarms of one token, so that others have their turn
_PATIENCE = 60  # tries, one a second, while the queue is full


class Prewarm:
    """
    The prewarm of one plan.

    Attributes:
        number: Its name in paths: 64 hexadecimal digits, like a key.
        plan, arch, toolchain, token: Names of the plan, target and toolchain that were asked for,
            and of the token that asked.
        total: Number of the plan's kernels.
        rows: The results, in the order in which they came.
        error: Why it ended early; empty if it did not.
    """

    def __init__(self, plan: str, arch: str, toolchain: str, token: str, total: int) -> None:
        self.number = secrets.token_hex(32)
        self.plan, self.arch, self.toolchain, self.token = plan, arch, toolchain, token
        self.total = total
        self.rows: list[dict[str, object]] = []
        self.error = ""
        self.created = time.time()
        self.is_over = False
        self.changed = asyncio.Event()

    def tell(self) -> None:
        """Wake all followers."""
        before, self.changed = self.changed, asyncio.Event()
        before.set()

    def to_json(self) -> dict[str, object]:
        """Return the prewarm's state as a JSON document."""
        failed = sum(row["state"] == "failed" for row in self.rows)
        state = "compiling" if not self.is_over else "failed" if failed or self.error else "done"
        document = {
            "key": self.number,
            "plan": self.plan,
            "arch": self.arch,
            "toolchain": self.toolchain,
            "state": state,
            "total": self.total,
            "done": len(self.rows),
            "failed": failed,
            "kernels": self.rows,
        }
        return document | ({"reason": self.error} if self.error else {})

    async def follow(self, beat_s: float) -> AsyncIterator[dict[str, object] | None]:
        """Yield each row as it comes, until the end; None each `beat_s` seconds without one."""
        sent = 0
        while True:
            while sent < len(self.rows):
                yield self.rows[sent]
                sent += 1
            if self.is_over:
                return
            changed = self.changed
            try:
                async with asyncio.timeout(beat_s):
                    await changed.wait()
            except TimeoutError:
                yield None


class Prewarms:
    """All prewarms of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: OrderedDict[str, Prewarm] = OrderedDict()
        # One at a time, so that a request for a single kernel waits for one plan at most.
        self._expanding = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, number: str) -> Prewarm | None:
        """Return the prewarm with this number; None if there is none."""
        return self._known.get(number)

    def all(self) -> list[Prewarm]:
        """Return the known prewarms, the latest first."""
        return list(reversed(self._known.values()))

    async def begin(
        self, request: Request, plan: str | dict[str, object], arch: str, pool: Pool
    ) -> Prewarm:
        """
        Start a prewarm.

        Raises:
            HTTPError: There is no such plan, the target has no kernel for it, another plan is just
                being read, or too many prewarms are under way, of this token or of all.
        """
        if self._expanding.locked():
            raise HTTPError(429, "E_BUSY", "another plan is just being read", retry_s=2)
        tokens = [each.token for each in self._known.values() if not each.is_over]
        if len(tokens) >= _MOST:
            raise HTTPError(429, "E_BUSY", f"{_MOST} prewarms are under way", retry_s=30)
        if tokens.count(request.token.name) >= _MOST_OF_TOKEN:
            reason = f"{_MOST_OF_TOKEN} prewarms of this token are under way"
            raise HTTPError(429, "E_BUSY", reason, retry_s=30)
        async with self._expanding:
            answer = await ask(pool, Question.EXPAND, plan=plan, arch=arch)
        if "error" in answer:
            raise HTTPError(422, "E_PLAN", answer["reason"])
        configs = answer["configs"]
        prewarm = Prewarm(answer["plan"], arch, pool.name, request.token.name, len(configs))
        self._known[prewarm.number] = prewarm
        finished = [each.number for each in self._known.values() if each.is_over]
        for number in finished[: max(0, len(finished) - _MAX_FINISHED)]:
            del self._known[number]
        task = asyncio.create_task(self._run(prewarm, request, configs, pool))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return prewarm

    async def _run(
        self, prewarm: Prewarm, request: Request, configs: list[dict[str, object]], pool: Pool
    ) -> None:
        slots = asyncio.Semaphore(_AHEAD)
        try:
            async with asyncio.TaskGroup() as group:  # an exception cancels the others
                for config in configs:
                    group.create_task(self._one(prewarm, request, config, pool, slots))
        except asyncio.CancelledError:
            prewarm.error = "the service was shut down"
            raise
        except ExceptionGroup as errors:  # a bug must not look like a finished plan
            error = errors.exceptions[0]
            prewarm.error = f"{type(error).__name__}: {error}"
        finally:
            prewarm.is_over = True
            prewarm.tell()

    async def _one(
        self,
        prewarm: Prewarm,
        request: Request,
        config: dict[str, object],
        pool: Pool,
        slots: asyncio.Semaphore,
    ) -> None:
        row: dict[str, object] = {"state": "failed"}
        async with slots:
            try:
                examined = await examine(pool, config, prewarm.arch)
                row |= {"key": examined["key"], "kernel": examined["name"]}
                order = Order(
                    key=examined["key"],
                    name=examined["name"],
                    arch=prewarm.arch,
                    config=examined["document"]["config"],
                    pool=pool.name,
                    token=request.token.name,
                    trace=request.trace,
                )
                row |= await self._brought(order)
            except HTTPError as refused:
                row |= {"code": refused.code, "reason": refused.reason}
        prewarm.rows.append(row)
        prewarm.tell()

    async def _brought(self, order: Order) -> dict[str, object]:
        """
        Compile one kernel unless the service has it; return the result: ``cached``, ``compiled`` or
        ``failed``.
        """
        if not await self._service.entry_store.missing([order.key]):
            return {"state": "cached"}
        for is_last in (*(False,) * _PATIENCE, True):
            try:
                job = submit(self._service, order)
            except HTTPError as refused:
                if is_last or refused.code != "E_BUSY" or self._service.queue.is_closing:
                    raise
                await asyncio.sleep(1.0)  # other jobs fill the queue; some will end
                continue
            while not job.is_over:
                await job.changed.wait()
            if job.failure is not None:
                return {"state": "failed", "code": job.failure.code, "reason": job.failure.reason}
            return {"state": "compiled", "compile_s": job.compile_s}
        raise AssertionError("the last round returned or raised")

    async def close(self) -> None:
        """Cancel all prewarms."""
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
