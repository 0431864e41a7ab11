# SPDX-License-Identifier: Apache-2.0
"""The queue: one job for a key, bounds, positions, and an end for everything."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.server.compiles import pool_of
from jitgen.server.jobs import Busy, Job, JobFailed, JobState, Order, Queue
from jitgen.server.request import HTTPError
from jitgen.server.settings import Limits


def order(number: int, owner: str = "a", arch: str = "cpu") -> Order:
    return Order(
        key=f"{number:064x}",
        name=f"kernel {number}",
        arch=arch,
        config={},
        pool="default",
        token=owner,
        trace="",
    )


class Bench:
    """Work that waits until it is told to go on."""

    def __init__(self, limits: Limits | None = None, slots: int = 1) -> None:
        self.go = asyncio.Event()
        self.done: list[str] = []
        self.queue = Queue(limits or Limits(), {"default": slots}, self.work)

    async def work(self, job: Job) -> None:
        await self.go.wait()
        self.done.append(job.order.name)
        if job.order.name.endswith("13"):
            raise JobFailed("E_COMPILE", "unlucky", is_certain=True)
        if job.order.name.endswith("14"):
            raise ValueError("a mistake")


def test_a_thousand_requests_are_one_job() -> None:
    """Who asks for what is under way joins it."""

    async def scene() -> None:
        bench = Bench()
        jobs = [bench.queue.submit(order(1)) for _ in range(1000)]
        bench.go.set()

        assert await jobs[0].over(5)
        assert len({id(job) for job in jobs}) == 1
        assert jobs[0].asked == 1000
        assert bench.done == ["kernel 1"]

    asyncio.run(scene())


def test_positions_and_order() -> None:
    """First come, first served; each request is told its position."""

    async def scene() -> None:
        bench = Bench()
        jobs = [bench.queue.submit(order(number)) for number in range(4)]
        await asyncio.sleep(0)

        assert [bench.queue.position(job) for job in jobs] == [0, 1, 2, 3]
        assert [job.state for job in jobs] == [JobState.COMPILING] + [JobState.QUEUED] * 3
        assert bench.queue.guess_s(jobs[3]) > bench.queue.guess_s(jobs[1])
        bench.go.set()
        assert await jobs[3].over(5)
        assert bench.done == [f"kernel {number}" for number in range(4)]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("limits", "last", "status"),
    [
        (Limits(per_token=2), order(3, owner="a"), 429),
        (Limits(per_arch=2), order(3, owner="b"), 503),
        (Limits(jobs=2), order(3, owner="b", arch="sm_90a"), 503),
    ],
)
def test_bounds(limits: Limits, last: Order, status: int) -> None:
    """What is one too many is refused with its reason, and has a place once others are done."""

    async def scene() -> None:
        bench = Bench(limits)
        first = [bench.queue.submit(order(number)) for number in (1, 2)]
        with pytest.raises(Busy) as busy:
            bench.queue.submit(last)

        assert busy.value.status == status
        assert busy.value.retry_s > 0
        assert bench.queue.submit(order(1)) is first[0]  # joining takes no place
        bench.go.set()
        assert await first[1].over(5)
        assert await bench.queue.submit(last).over(5)

    asyncio.run(scene())


def test_failures_end_their_own_job_only() -> None:
    """A refusal is reported, a bug, too, and the next job is done."""

    async def scene() -> None:
        bench = Bench()
        jobs = [bench.queue.submit(order(number)) for number in (1, 13, 14, 15)]
        bench.go.set()
        assert await jobs[-1].over(5)

        states = [job.state for job in jobs]
        assert states == [JobState.DONE, JobState.FAILED, JobState.FAILED, JobState.DONE]
        assert jobs[1].failure is not None
        assert jobs[1].failure.is_certain
        assert jobs[2].failure is not None
        assert jobs[2].failure.code == "E_INTERNAL"
        assert len(bench.queue) == 0

    asyncio.run(scene())


def test_followers_hear_every_state() -> None:
    """A stream begins with what is, and ends with the end."""

    async def scene() -> None:
        bench = Bench()
        blocker, job = bench.queue.submit(order(1)), bench.queue.submit(order(2))
        heard = []

        async def listen() -> None:
            heard.extend([change async for change in bench.queue.follow(job, 60)])

        follower = asyncio.create_task(listen())
        await asyncio.sleep(0)
        bench.go.set()
        await asyncio.wait_for(follower, 5)

        assert blocker.is_over
        assert heard[0] == (JobState.QUEUED, 1)
        assert heard[-1] == (JobState.DONE, 0)

    asyncio.run(scene())


def test_the_end_fails_what_waits_and_finishes_what_runs() -> None:
    """A shutdown ends all waiting."""

    async def scene() -> None:
        bench = Bench()
        running, waiting = bench.queue.submit(order(1)), bench.queue.submit(order(2))
        await asyncio.sleep(0)
        closing = asyncio.create_task(bench.queue.close(5))
        assert await waiting.over(1)
        assert waiting.failure is not None
        assert waiting.failure.code == "E_ENDED"
        with pytest.raises(Busy):
            bench.queue.submit(order(3))
        bench.go.set()
        await closing

        assert running.state is JobState.DONE

    asyncio.run(scene())


def test_a_toolchain_that_starts_may_be_the_right_one() -> None:
    """Its clients were told 409, no such toolchain here, and compiled for themselves."""

    def pool(name: str, version: str, *, is_starting: bool) -> Any:
        versions = {"dsl": version}
        hello = {} if is_starting else {"toolchain": versions}
        return SimpleNamespace(
            name=name, hello=hello, toolchain=hello and versions, is_starting=is_starting
        )

    pools = [pool("old", "1", is_starting=False), pool("new", "2", is_starting=True)]
    service: Any = SimpleNamespace(pools={each.name: each for each in pools})
    assert pool_of(service, {"dsl": "1"}).name == "old"
    with pytest.raises(HTTPError) as refused:
        pool_of(service, {"dsl": "2"})
    assert (refused.value.status, refused.value.code) == (503, "E_STARTING")
    pools[1].is_starting = False  # it ended
    with pytest.raises(HTTPError) as refused:
        pool_of(service, {"dsl": "2"})
    assert (refused.value.status, refused.value.code) == (409, "E_TOOLCHAIN")
