# SPDX-License-Identifier: Apache-2.0
"""
What one rank does in a warm-up: its part of the compiles, and what others leave undone.

Each rank takes the kernels of its shard that nobody has yet, compiles them in processes of their
own, and puts each on the board as it is done. Then it goes round what is left: what another rank
has done it takes from the cache that they share, or from the board; what nobody works on, because a
rank has died or has not come yet, it compiles itself. It is through when every kernel is in its own
cache, and waits for nobody beyond that: there is no barrier.
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
from jitgen.plans.task import TASK, compile_task
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
"""So many ranks may look once a beat who lives: thousands would keep the store busy with it."""

_MOST_TRIES = 2
"""Of a kernel over which processes die: it may have been the machine, but not time and again."""

_REST_S = 2.0
"""How long a rank leaves a kernel to others that it could not compile: four of their looks."""

Progress = Callable[[WarmUpRow, int, int], None]
"""Called with a kernel that is here, how many are, and how many there are in all."""


@frozen
class RankInfo:
    """
    Where a rank stands.

    Attributes:
        rank: Its number.
        world: How many there are.
        jobs: Compile processes that it may run at a time.
        offers_all: Whether it offers others what it has of their shards, too: one of each machine.
    """

    rank: int
    world: int
    jobs: int
    offers_all: bool


class Rank:
    """
    One rank's work; `run` does it.

    Args:
        specs: The kernels, without repeats.
        place: Where this rank stands.
        board: What the ranks tell each other.
        store: Where entries go.
        on_progress: Told of each kernel that is here.
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
        # By position and not by `Shard`: ranks have one list, and a few kernels are to be shared
        # evenly. Where their lists differ after all, claims still let each be compiled once.
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
        self._rests: dict[str, float] = {}  # key -> until when it is left to others
        self._watched = 0.0

    def run(self) -> tuple[WarmUpRow, ...]:
        """
        Bring every kernel into the store; returns a row for each, by key.

        Raises:
            CoordinationError: The store of the job is gone; what was done until then stays.
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
        """Return what the board says of each kernel now."""
        return {key: self._coordination.read(key) for key in self._specs}

    @property
    def rows(self) -> tuple[WarmUpRow, ...]:
        """What is known so far."""
        return tuple(self._rows[key] for key in self._specs if key in self._rows)

    def _open(self) -> list[str]:
        return [key for key in self._specs if key not in self._rows]

    def _offer(self) -> None:
        """Find what the store holds, and put that on the board which others may look for there."""
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
        """Take what others have done, or failed at; returns whether there was any."""
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
        """Bring a kernel that another rank has done into this rank's store."""
        try:
            # Ranks of one machine want the same: one of them writes it, the others find it.
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
        """Return kernels that nobody works on, as many as are this rank's part of them."""
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
        """Look who has died of those that work on what is left; the more ranks, the rarer."""
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
        """Claim those of `keys` that nobody works on; returns what was claimed."""
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
        """Compile what was claimed, and tell the others; returns whether there was any."""
        if not claimed:
            return False
        from jitgen.compile import workers

        keys = list(claimed)
        tasks = [self._task(self._specs[key]) for key in keys]
        outcomes = workers.run(
            TASK, tasks, jobs=self._rank_info.jobs, timeout_s=settings.compile_timeout
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
        """Tell what became of a compile: what counts is what the store holds then."""
        answer = outcome.result or {}
        error = outcome.error or answer.get("error", "") or answer.get("why_private") or ""
        found = None if error else readable(self._tiers, self._specs[key], tells_miss=False)
        if found is None:
            # Else the process died over it, or this machine was short of something.
            is_final = bool(answer.get("is_certain"))
            why = error or f"it was compiled, but {self._store.root} does not keep it"
            self._fail(key, mine, why, is_final=is_final)
        else:
            is_own = answer.get("tier") == "compiled"  # else somebody elsewhere has compiled it
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
