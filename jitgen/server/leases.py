# SPDX-License-Identifier: Apache-2.0
"""
Leases in a shared bucket or folder, so that one of several services compiles a kernel.

A lease is an object ``v1/leases/<key>/<n>.json`` with its owner and the time at which it ends. The
service that creates number 0 holds the lease; creation is exclusive on every store. Its owner
rewrites it each third of its lifetime. Once it has ended, the service that creates number n + 1
takes it over. The store needs no other feature, so a shared folder will do, too.

A lost lease, after a difference of clocks or a suspended service, costs a second compile and
nothing else: an entry is created once, too, and the second of two equal kernels is discarded. A
waiting service therefore ignores a lease that is not renewed, whatever end it states: the clock
that wrote it may be years ahead.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from jitgen.cache import Entry
from jitgen.server.bucket import MAX_BYTES, SharedBucket
from jitgen.server.log import Log
from jitgen.server.metrics import Metrics
from jitgen.server.settings import Replicas
from jitgen.support.documents import BadDocument, parse_json

T = TypeVar("T")

_LOOK_S = 0.5  # seconds after which a waiting service looks again
_MOST_TAKEOVERS = 100
_REST_S = 10.0
"""Seconds without a request to a store that failed, so that requests do not wait for it again."""

_THREADS = 4  # for the store only: if it hangs, threads that read the disk are not affected
_SILENCE = 2  # lifetimes without a renewal, of which there are three in each


class _Resting(Exception):
    """The store failed recently, and is not asked."""


class Leases:
    """
    The leases of one service; a service without a bucket holds all of them.

    Attributes:
        owner: Its name among the services.
    """

    def __init__(
        self, settings: Replicas, bucket: SharedBucket | None, metrics: Metrics, log: Log
    ) -> None:
        self.owner = settings.name or f"{platform.node()}-{os.getpid()}"
        self._bucket = bucket
        self._lease_s = settings.lease_s
        self._metrics = metrics
        self._log = log
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shared")
        self._rests_until = 0.0

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[Entry | None]:
        """
        Hold the lease of `key` for a with block.

        Yields the entry if another service made it while this one waited, else None. Without an
        answer of the bucket, which is logged, the block runs without a lease.
        """
        if self._bucket is None:
            yield None
            return
        try:
            entry, number = await self._acquired(self._bucket, key)
        except Exception as error:  # each store raises its own kinds of errors
            self._trouble(key, error)
            entry, number = None, None
        if number is None:
            yield entry
            return
        keeper = asyncio.create_task(self._renew(self._bucket, key, number))
        try:
            yield None
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            try:
                await self._ask(self._release, self._bucket, key, number)
            except Exception as error:  # the lease ends by itself
                self._trouble(key, error)

    async def share(self, entry: Entry) -> None:
        """Share an entry with the other services; an error is logged, and costs them a compile."""
        if self._bucket is not None:
            try:
                await self._ask(self._bucket.keep, entry)
            except Exception as error:
                self._trouble(entry.key, error)

    async def found(self, key: str) -> Entry | None:
        """
        Return entry `key` of the bucket; None if it has none, does not answer, or is not there.
        """
        if self._bucket is None:
            return None
        try:
            return await self._ask(self._bucket.entry, key)
        except Exception as error:
            self._trouble(key, error)
            return None

    async def _acquired(self, bucket: SharedBucket, key: str) -> tuple[Entry | None, int | None]:
        """
        Wait for the lease of `key`. Return the entry and None if another service made it meanwhile,
        else None and the lease's number; None twice after too many takeovers.
        """
        number = 0
        seen: tuple[str, bytes | None, float] = ("", None, 0.0)
        while True:
            entry = await self._ask(bucket.entry, key)
            if entry is not None:
                self._metrics.leases.labels("found").inc()
                return entry, None
            if number > _MOST_TAKEOVERS:
                return None, None
            name = _name(key, number)
            if await self._ask(bucket.create, name, self._text()):
                self._metrics.leases.labels("taken over" if number else "got").inc()
                return None, number
            data = await self._ask(bucket.read, name)
            if seen[:2] != (name, data):
                seen = (name, data, time.monotonic())
            if data is None:  # its owner has just released it, with an entry or without
                number = 0
            elif _is_over(data) or time.monotonic() - seen[2] > _SILENCE * self._lease_s:
                number += 1
                continue
            await asyncio.sleep(_LOOK_S)

    async def _renew(self, bucket: SharedBucket, key: str, number: int) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._ask(bucket.write, _name(key, number), self._text())
            except Exception as error:
                self._trouble(key, error)

    def _release(self, bucket: SharedBucket, key: str, number: int) -> None:
        # Descending: a waiting service counts from 0 and must find no gap below this lease.
        for each in range(number, -1, -1):
            bucket.remove(_name(key, each))

    def _text(self) -> bytes:
        ends = round(time.time() + self._lease_s, 3)
        return json.dumps({"owner": self.owner, "ends": ends}).encode("ascii")

    async def _ask(self, ask: Callable[..., T], *details: object) -> T:
        """Call `ask` on one of the store's threads; raises _Resting after a failure."""

        def asked() -> T:  # the check runs when a thread is free, after other calls may have failed
            if time.monotonic() < self._rests_until:
                raise _Resting
            try:
                return ask(*details)
            except ValueError:  # concerns one entry, not the store
                raise
            except Exception:
                self._rests_until = time.monotonic() + _REST_S
                raise

        return await asyncio.get_running_loop().run_in_executor(self._threads, asked)

    def _trouble(self, key: str, error: Exception) -> None:
        if isinstance(error, _Resting):
            return
        self._metrics.leases.labels("trouble").inc()
        self._log.event(
            "shared store", level="error", key=key, reason=f"{type(error).__name__}: {error}"
        )


def _name(key: str, number: int) -> str:
    return f"v1/leases/{key}/{number}.json"


def _is_over(data: bytes) -> bool:
    """Return whether a lease has ended by its own statement, or cannot be read."""
    try:
        found = parse_json(data, max_bytes=MAX_BYTES)
        return float(found["ends"]) <= time.time()
    except (BadDocument, TypeError, KeyError, ValueError):
        return True
