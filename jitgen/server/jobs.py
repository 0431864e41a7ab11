# SPDX-License-Identifier: Apache-2.0
"""
The queue of compile jobs: one job for each key, however many requests want it.

A job is queued, then compiling, then done or failed. A follower receives each change, and first of
all the present state. The queue is bounded by kernels, by token and by target: a request beyond a
bound is refused at once, with an estimate of when to try again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import field
from enum import StrEnum

from jitgen.server.settings import Limits
from jitgen.support.frozen import frozen

_MAX_FINISHED = 2000
"""Finished jobs that are still known: some kilobytes each."""

_FIRST_GUESS_S = 2.0  # estimate for a compile, before the first one


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    COMPILING = "compiling"
    DONE = "done"
    FAILED = "failed"


@frozen
class Order:
    """
    One kernel to compile, and who asked for it.

    Attributes:
        key: The entry's key.
        name: The kernel's name.
        arch: Its target.
        config: Its config as JSON.
        pool: Name of the toolchain.
        token: Name of the token of the first request.
        trace: Trace id of that request.
    """

    key: str
    name: str
    arch: str
    config: dict[str, object] = field(repr=False)
    pool: str
    token: str
    trace: str


class JobFailed(Exception):
    """
    A job failed.

    Attributes:
        code: Stable machine-readable kind, such as ``E_COMPILE``.
        reason: Why the job failed, for people.
        is_certain: Whether another try would fail, too; such a failure is remembered.
    """

    def __init__(self, code: str, reason: str, *, is_certain: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_certain = is_certain


class Busy(Exception):
    """
    The queue takes no job now.

    Attributes:
        status: 429 for the bound of a token; 503 for another bound, or while the service shuts
            down.
        retry_s: Estimated seconds until a try may succeed.
    """

    def __init__(self, status: int, reason: str, retry_s: float) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_s = retry_s


class Job:
    """
    One kernel in the queue, or on its way through it.

    Attributes:
        order: The kernel to compile.
        state: Its state.
        failure: Why it failed; None if it did not.
        created, started, ended: When, in seconds since 1970; 0: not yet.
        asked: Number of requests for it.
        compile_s: Seconds that the compiler took; 0 if it was not compiled.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.state = JobState.QUEUED
        self.failure: JobFailed | None = None
        self.created = time.time()
        self.started = 0.0
        self.ended = 0.0
        self.asked = 1
        self.compile_s = 0.0
        self.changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether the job is done or failed."""
        return self.state in (JobState.DONE, JobState.FAILED)

    def move(self, state: JobState) -> None:
        """Change to `state`, and wake all followers."""
        self.state = state
        before, self.changed = self.changed, asyncio.Event()
        before.set()

    async def over(self, wait_s: float) -> bool:
        """Wait until the job is over, for `wait_s` at most; returns whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while not self.is_over:
                    await self.changed.wait()
        return self.is_over


class Queue:
    """
    All jobs of a service. Only its event loop may use it.

    Args:
        limits: The bounds.
        slots: For each pool, how many jobs run at a time.
        work: Runs one job; raises JobFailed.
    """

    def __init__(
        self, limits: Limits, slots: dict[str, int], work: Callable[[Job], Awaitable[None]]
    ) -> None:
        self._limits = limits
        self._slots = slots
        self._work = work
        self._waiting: dict[str, OrderedDict[str, Job]] = {name: OrderedDict() for name in slots}
        self._running: dict[str, dict[str, asyncio.Task[None]]] = {name: {} for name in slots}
        self._jobs: dict[str, Job] = {}
        self._over: OrderedDict[str, Job] = OrderedDict()
        self._tokens: Counter[str] = Counter()
        self._archs: Counter[str] = Counter()
        self._took_s: deque[float] = deque(maxlen=50)
        self.is_closing = False

    def find(self, key: str) -> Job | None:
        """Return the job of `key`: unfinished, or finished recently; None if there is none."""
        return self._jobs.get(key) or self._over.get(key)

    def active(self) -> list[Job]:
        """Return the unfinished jobs: compiling ones first, then the queued ones in order."""
        return sorted(self._jobs.values(), key=lambda job: (job.state, job.created))

    def recent(self, most: int = 100) -> list[Job]:
        """Return finished jobs, the latest first."""
        return list(reversed(self._over.values()))[:most]

    def __len__(self) -> int:
        return len(self._jobs)

    def count(self, state: JobState) -> int:
        """Return how many unfinished jobs are in `state`."""
        return sum(job.state is state for job in self._jobs.values())

    def position(self, job: Job) -> int:
        """Return the place of `job` in its pool's queue, from 1; 0 once it has begun."""
        waiting = self._waiting[job.order.pool]
        if job.order.key not in waiting:
            return 0
        return list(waiting).index(job.order.key) + 1

    def guess_s(self, job: Job | None = None, pool: str = "") -> float:
        """Estimate the seconds until `job` is done, or until `pool` can take another one."""
        usual = sum(self._took_s) / len(self._took_s) if self._took_s else _FIRST_GUESS_S
        name = job.order.pool if job is not None else pool
        ahead = self.position(job) if job is not None else len(self._waiting.get(name, ()))
        return usual * (1 + ahead / max(1, self._slots.get(name, 1)))

    def submit(self, order: Order) -> Job:
        """
        Return the unfinished job of `order`, or a new one.

        Raises:
            Busy: A bound is reached, or the service is shutting down.
        """
        job = self._jobs.get(order.key)
        if job is not None:
            job.asked += 1
            return job
        self._admit(order)
        job = self._jobs[order.key] = Job(order)
        self._over.pop(order.key, None)
        self._tokens[order.token] += 1
        self._archs[order.arch] += 1
        self._waiting[order.pool][order.key] = job
        self._start(order.pool)
        return job

    def _admit(self, order: Order) -> None:
        retry_s = self.guess_s(pool=order.pool)
        limits = self._limits
        if self.is_closing:
            raise Busy(503, "the service is shutting down", 5.0)
        if self._tokens[order.token] >= limits.per_token:
            raise Busy(429, f"{limits.per_token} kernels of this token are under way", retry_s)
        if self._archs[order.arch] >= limits.per_arch:
            raise Busy(503, f"{limits.per_arch} kernels for {order.arch} are under way", retry_s)
        if len(self._jobs) >= limits.jobs:
            raise Busy(503, f"{limits.jobs} kernels are under way", retry_s)

    def _start(self, pool: str) -> None:
        waiting, running = self._waiting[pool], self._running[pool]
        while waiting and len(running) < self._slots[pool]:
            key, job = waiting.popitem(last=False)
            running[key] = asyncio.create_task(self._run(job), name=f"job {key[:12]}")

    async def _run(self, job: Job) -> None:
        job.started = time.time()
        job.move(JobState.COMPILING)
        state = JobState.FAILED
        try:
            await self._work(job)
            state = JobState.DONE
        except JobFailed as failure:
            job.failure = failure
        except asyncio.CancelledError:
            job.failure = JobFailed("E_ENDED", "the service was shut down")
        except Exception as error:  # a bug must not leave a job that never ends
            job.failure = JobFailed("E_INTERNAL", f"{type(error).__name__}: {error}")
        finally:
            self._running[job.order.pool].pop(job.order.key, None)
            self._end(job, state)
            self._start(job.order.pool)

    def _end(self, job: Job, state: JobState) -> None:
        order = job.order
        job.ended = time.time()
        if job.started:
            self._took_s.append(job.ended - job.started)
        del self._jobs[order.key]
        for counter, name in ((self._tokens, order.token), (self._archs, order.arch)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]
        self._over[order.key] = job
        while len(self._over) > _MAX_FINISHED:
            self._over.popitem(last=False)
        job.move(state)

    async def close(self, grace_s: float) -> None:
        """Refuse new jobs, fail queued ones, and cancel those still compiling after `grace_s`."""
        self.is_closing = True
        for waiting in self._waiting.values():
            while waiting:
                _, job = waiting.popitem()
                job.failure = JobFailed("E_ENDED", "the service is shutting down")
                self._end(job, JobState.FAILED)
        running = [task for tasks in self._running.values() for task in tasks.values()]
        if running:
            _, late = await asyncio.wait(running, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def follow(self, job: Job, beat_s: float) -> AsyncIterator[tuple[JobState, int] | None]:
        """
        Yield state and position of `job` at each change until it is over; None each `beat_s`
        seconds without a change.
        """
        last, silent_s = None, 0.0
        while True:
            now = (job.state, self.position(job))
            if now != last:
                yield now
                last, silent_s = now, 0.0
            if job.is_over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):  # a position changes without an event
                    await job.changed.wait()
            silent_s += 1.0
            if silent_s >= beat_s:
                yield None
                silent_s = 0.0
