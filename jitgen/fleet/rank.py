# SPDX-License-Identifier: Apache-2.0
"""
The work of one rank in a warm-up: its share of the compiles, and those that others leave undone.

A rank claims the kernels of its shard that have no record yet, compiles them in processes of their
own, and stores each entry for the others as it is done. Then it goes through the rest. It takes
each kernel that another rank has done from their shared cache, or from the job's store, and
compiles each kernel that no living rank works on. It ends when every kernel is in its own cache;
there is no barrier at which it waits for other ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jitgen.cache.folder import Damaged
from jitgen.config import Config
from jitgen.errors import JitgenError
from jitgen.fleet.coordination import BEAT_S, CoordinationError, CoordinationStore, KernelRecord
from jitgen.fleet.report import WarmUpRow, WarmUpState
from jitgen.plans.task import PRELOAD, TASK, compile_task
from jitgen.remote import wire
from jitgen.runtime.spec import KernelSpec
from jitgen.runtime.tiers import Tiers, readable
from jitgen.settings import settings
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.compile.workers import Outcome

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 0.5
_RANKS_A_BEAT = 500
"""Up to so many ranks check heartbeats at each beat; more check less often, to spare the store."""

_MOST_TRIES = 2
"""Tries of a kernel whose compile process dies: the first time it may have been the machine."""

_REST_S = 2.0
"""Seconds for which a rank leaves a kernel that it could not compile to others: four polls."""

Progress = Callable[[WarmUpRow, int, int], None]
"""Called for each kernel that has arrived, with the number of those so far, and of all."""


@frozen
class RankInfo:
    """
    Number of a rank, and its part of the work.

    Attributes:
        rank: Its number.
        world: Number of ranks.
        jobs: Compile processes that it may run at a time.
        offers_all: Whether it also shares cached kernels of other shards: one rank a machine does.
    """

    rank: int
    world: int
    jobs: int
    offers_all: bool


class Rank:
    """
    One rank of a warm-up; `run` does its work.

    Args:
        specs: The kernels, without repeats.
        info: This rank's number and part.
        coordination: Records of the job.
        store: This rank's cache.
        on_progress: Called for each kernel that has arrived.
    """

    def __init__(
        self,
        specs: Iterable[KernelSpec],
        info: RankInfo,
        coordination: CoordinationStore,
        store: Store,
        on_progress: Progress | None = None,
    ) -> None:
        self._specs = {spec.key: spec for spec in specs}
        # By position and not by `Shard`: ranks have the same list, and few kernels should be spread
        # evenly. If their lists differ after all, claims still let each kernel be compiled once.
        shard = sorted(self._specs)[info.rank :: info.world]
        self._own = frozenset(shard)
        self._rank_info = info
        self._coordination = coordination
        self._store = store
        self._tiers = Tiers(store)
        self._on_progress = on_progress
        self._rows: dict[str, WarmUpRow] = {}
        self._known: dict[str, KernelRecord | None] = {}
        self._dead: set[str] = set()
        self._rests: dict[
            str, float
        ] = {}  # key -> time until which other ranks may compile it first
        self._watched = 0.0

    def run(self) -> tuple[WarmUpRow, ...]:
        """
        Bring every kernel into the store; returns a row for each.

        Raises:
            CoordinationError: The job's store has gone; kernels that are done stay.
        """
        with self._coordination.alive():
            self._offer()
            self._compile(self._claimed(sorted(self._own - self._rows.keys())))
            wait_s, news = _FIRST_WAIT_S, -1
            while self._open():
                before, news = news, self._coordination.news()
                is_moving = before != news and self._settle()
                if self._compile(self._claimed(self._left())) or is_moving:
                    wait_s = _FIRST_WAIT_S
                    continue
                time.sleep(wait_s)
                wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)
        return self.rows

    def records(self) -> dict[str, KernelRecord | None]:
        """Return the present record of each kernel."""
        return {key: self._coordination.read(key) for key in self._specs}

    @property
    def rows(self) -> tuple[WarmUpRow, ...]:
        """The rows of the kernels that have arrived or failed so far."""
        return tuple(self._rows[key] for key in self._specs if key in self._rows)

    def _open(self) -> list[str]:
        return [key for key in self._specs if key not in self._rows]

    def _offer(self) -> None:
        """Find cached kernels, and share those that other ranks may need."""
        for key, spec in self._specs.items():
            found = readable(self._tiers, spec, tells_miss=False)
            if found is None:
                continue
            record = None
            if key in self._own or self._rank_info.offers_all:
                record = self._coordination.read(key)
                if record is None and (mine := self._coordination.claim(key, None)) is not None:
                    self._coordination.done(key, mine, _packed(found[0]), seconds=0.0)
            self._add(key, WarmUpState.CACHED, record)

    def _settle(self) -> bool:
        """Take kernels that other ranks finished or failed at; returns whether there were any."""
        settled = False
        for key in self._open():
            record = self._known[key] = self._coordination.read(key)
            if record is not None and record.state in ("done", "failed"):
                settled = True
                if record.state == "failed":
                    self._add(key, WarmUpState.FAILED, record, record.error)
                else:
                    self._take(key, record)
        return settled

    def _take(self, key: str, record: KernelRecord) -> None:
        """Bring a kernel that another rank compiled into this rank's cache."""
        try:
            # Ranks of one machine may share the cache: one of them writes, the others find it.
            with self._store.lock(key, settings.lock_timeout):
                found = readable(self._tiers, self._specs[key], tells_miss=False)
                if found is not None:
                    self._add(key, WarmUpState.SHARED, record)
                    return
                packed = wire.unpack(self._coordination.entry(key, record, wire.MAX_BYTES), key)
                entry = self._store.publish(
                    packed.meta, packed.files, packed.signatures, is_fetched=True
                )
            if entry.why_private:
                raise CoordinationError(f"it was received, but is not kept: {entry.why_private}")
            if readable(self._tiers, self._specs[key], tells_miss=False) is None:
                raise CoordinationError("it was received, but this machine does not take it")
        except (JitgenError, Damaged) as error:
            self._add(key, WarmUpState.FAILED, record, str(error))
        else:
            self._add(key, WarmUpState.FETCHED, record)

    def _left(self) -> list[str]:
        """Return this rank's part of the kernels that no living rank works on."""
        self._watch()
        now = time.monotonic()
        open_ = [key for key in self._open() if self._rests.get(key, 0.0) <= now]
        left = [key for key in open_ if self._is_left(self._known.get(key))]
        return left[: max(self._rank_info.jobs, math.ceil(len(left) / self._rank_info.world))]

    def _is_left(self, record: KernelRecord | None) -> bool:
        if record is None or record.state == "free":
            return True
        return record.state == "claimed" and record.by in self._dead

    def _watch(self) -> None:
        """Check the heartbeats of ranks that hold claims; with more ranks less often."""
        now = time.monotonic()
        if now - self._watched < BEAT_S * (1 + self._rank_info.world / _RANKS_A_BEAT):
            return
        self._watched = now
        records = (self._known.get(key) for key in self._open())
        for record in {
            record.by: record for record in records if record and record.state == "claimed"
        }.values():
            if self._coordination.is_dead(record):
                self._dead.add(record.by)

    def _claimed(self, keys: Iterable[str]) -> dict[str, KernelRecord]:
        """Claim those of `keys` that no living rank works on; returns the claims."""
        found = {}
        for key in keys:
            record = self._coordination.read(key)
            if (
                self._is_left(record)
                and (mine := self._coordination.claim(key, record)) is not None
            ):
                found[key] = mine
        return found

    def _compile(self, claimed: dict[str, KernelRecord]) -> bool:
        """Compile the claimed kernels and share the results; returns whether there were any."""
        if not claimed:
            return False
        from jitgen.compile import workers

        keys = list(claimed)
        tasks = [self._task(self._specs[key]) for key in keys]
        outcomes = workers.run(
            TASK,
            tasks,
            jobs=self._rank_info.jobs,
            timeout_s=settings.compile_timeout,
            preload=(*workers.PRELOAD, *PRELOAD),
        )
        try:
            for outcome in outcomes:
                key = keys[outcome.index]
                self._finish(key, claimed.pop(key), outcome)
        except OSError as error:
            for key, mine in claimed.items():
                self._fail(key, mine, f"no process can be started: {error}", is_final=False)
        return True

    def _task(self, spec: KernelSpec) -> dict[str, object]:
        config: Config = spec.config
        return compile_task(self._store, config, spec.arch)

    def _finish(self, key: str, mine: KernelRecord, outcome: Outcome) -> None:
        """Record the result of a compile: a success counts only if the store has the entry."""
        answer = outcome.result or {}
        error = outcome.error or answer.get("error", "") or answer.get("why_private") or ""
        found = None if error else readable(self._tiers, self._specs[key], tells_miss=False)
        if found is None:
            # Not final: the process died over it, or this machine lacked memory, disk or the like.
            is_final = bool(answer.get("is_certain"))
            why = error or f"it was compiled, but {self._store.root} does not keep it"
            self._fail(key, mine, why, is_final=is_final)
        else:
            is_own = answer.get("tier") == "compiled"  # else a remote tier had it
            seconds = outcome.seconds if is_own else 0.0
            self._coordination.done(key, mine, _packed(found[0]), seconds=seconds)
            state = WarmUpState.COMPILED if is_own else WarmUpState.FETCHED
            self._add(key, state, mine, seconds=seconds)

    def _fail(self, key: str, mine: KernelRecord, error: str, *, is_final: bool) -> None:
        is_final = is_final or mine.tries + 1 >= _MOST_TRIES
        self._rests[key] = time.monotonic() + _REST_S
        self._coordination.failed(key, mine, error, is_final=is_final)
        if is_final:
            self._add(key, WarmUpState.FAILED, mine, error)

    def _add(
        self,
        key: str,
        state: WarmUpState,
        record: KernelRecord | None,
        error: str = "",
        *,
        seconds: float | None = None,
    ) -> None:
        compiled_s = 0.0 if record is None else record.seconds
        row = self._rows[key] = WarmUpRow(
            name=self._specs[key].name,
            key=key,
            state=state,
            rank=-1 if record is None else record.rank,
            host="" if record is None else record.host,
            seconds=compiled_s if seconds is None else seconds,
            error=error,
        )
        if self._on_progress is not None:
            self._on_progress(row, len(self._rows), len(self._specs))


def _packed(entry: Entry) -> bytes:
    return wire.pack(entry.meta.encode(), entry.files, entry.signatures)
