# SPDX-License-Identifier: Apache-2.0
"""
Coordination of ranks through the key-value store of torch.distributed.

::

    kernel/<key>       record of a kernel: which rank compiles it, or the result; JSON, changed by
                       compare-and-set
    blob/<key>/<n>     its entry, packed and compressed, in chunks; complete before it is "done"
    beat/<id>          a heartbeat: a number that grows while that rank lives
    news               number of changes of records, so that a waiting rank polls one key

There is one record for each kernel in the whole job, whichever ranks and plans want it, so ranks
need no agreement before they start. Compare-and-set lets one of several ranks win a claim; the
others see its record.

Clocks of different machines are not compared: a rank counts as dead when its heartbeat has not
changed for a while on the observer's clock. A rank that was dead by mistake costs a second compile,
of equal bytes.

Ranks of a job run the same code, and the store has no authentication. Entries are therefore checked
for damage, not for malice: a process that can write to the store is part of the job.
"""

from __future__ import annotations

import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Protocol

from jitgen.errors import JitgenError
from jitgen.support.codec import from_json, to_json
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.frozen import frozen

CHUNK_BYTES = 2**20
"""Bytes of an entry in one value of the store, which takes 8 MiB at most."""

BEAT_S = 1.0
"""Seconds between two heartbeats."""


class RankStore(Protocol):
    """The methods of `torch.distributed.Store` that are used; no call waits for a key."""

    def get(self, key: str, /) -> bytes:
        """Return the value of an existing key."""

    def set(self, key: str, value: str | bytes, /) -> None:
        """Set a value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, and return the sum."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """
        Set a value to `desired` if it is `expected`, empty for none; return the present value.
        """


class CoordinationError(JitgenError):
    """The job's store does not answer any more, or holds a value that no rank wrote."""


@frozen
class KernelRecord:
    """
    Record of one kernel.

    Attributes:
        state: ``claimed``: a rank compiles it; ``free``: its compile failed, and another try is
            allowed; ``done``; ``failed``.
        by: Id of the rank that changed it last.
        rank: Number of that rank.
        host: Name of its machine.
        tries: How many compiles of the kernel failed.
        chunks: Number of chunks of the entry in the store.
        seconds: Time of the compile; 0 if that rank had the entry already.
        error: Why its compile failed; empty if it did not.
        lost: Numbers of the ranks that died over the kernel.
    """

    state: str
    by: str
    rank: int
    host: str
    tries: int = 0
    chunks: int = 0
    seconds: float = 0.0
    error: str = ""
    lost: tuple[int, ...] = ()


class CoordinationStore:
    """
    One rank's access to the records of the job.

    Args:
        store: The job's store.
        rank: This rank's number.
        host: Name of this machine.
        patience_s: Seconds without a heartbeat after which a rank counts as dead.

    Raises:
        CoordinationError: Raised by every method if the store does not answer.
    """

    def __init__(self, store: RankStore, rank: int, host: str, patience_s: float) -> None:
        self.me = KernelRecord(state="claimed", by=uuid.uuid4().hex[:16], rank=rank, host=host)
        self._store = store
        self._patience_s = patience_s
        self._seen: dict[str, tuple[bytes, float]] = {}

    def read(self, key: str) -> KernelRecord | None:
        """Return the record of kernel `key`; None if there is none yet."""
        with _trouble():
            name = f"kernel/{key}"
            text = self._store.get(name) if self._store.check([name]) else b""
        return _decoded(text) if text else None

    def claim(self, key: str, before: KernelRecord | None) -> KernelRecord | None:
        """
        Claim kernel `key`, whose record was `before`; returns the claim, None if another rank was
        faster.

        The claim of a dead rank is taken over in the same way.
        """
        mine = self.me
        if before is not None:
            lost = (*before.lost, before.rank) if before.state == "claimed" else before.lost
            mine = replace(mine, tries=before.tries, lost=lost)
        return mine if self._change(key, before, mine) else None

    def done(self, key: str, mine: KernelRecord, entry: bytes, *, seconds: float) -> None:
        """Store the packed `entry` of a claimed kernel, then mark it as done."""
        data = zlib.compress(entry)
        parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        with _trouble():
            for number, part in enumerate(parts):
                self._store.set(f"blob/{key}/{number}", part)
        self._change(key, mine, replace(mine, state="done", chunks=len(parts), seconds=seconds))

    def failed(self, key: str, mine: KernelRecord, error: str, *, is_final: bool) -> None:
        """
        Record that a claimed kernel could not be compiled; unless `is_final`, others may try.
        """
        state = "failed" if is_final else "free"
        self._change(key, mine, replace(mine, state=state, tries=mine.tries + 1, error=error))

    def entry(self, key: str, record: KernelRecord, max_bytes: int) -> bytes:
        """
        Return the packed entry of a kernel that is done.

        Raises:
            CoordinationError: It is not in the store, is damaged, or is longer than `max_bytes`.
        """
        with _trouble():
            names = [f"blob/{key}/{number}" for number in range(record.chunks)]
            if not names or not self._store.check(names):
                raise CoordinationError("its bytes are not in the job's store")
            data = b"".join(self._store.get(name) for name in names)
        unpacker = zlib.decompressobj()
        try:
            entry = unpacker.decompress(data, max_bytes)
        except zlib.error as error:
            raise CoordinationError(f"its bytes are damaged: {error}") from None
        if not unpacker.eof:
            raise CoordinationError(f"it is cut off, or longer than {max_bytes} bytes")
        return entry

    def news(self) -> int:
        """Return a number that grows with each change of a record."""
        with _trouble():
            return self._store.add("news", 0)

    def is_dead(self, record: KernelRecord) -> bool:
        """Return whether the rank of `record` has sent no heartbeat for too long."""
        with _trouble():
            name = f"beat/{record.by}"
            beat = self._store.get(name) if self._store.check([name]) else b""
        now = time.monotonic()
        last, since = self._seen.get(record.by, (None, now))
        if beat != last:
            self._seen[record.by] = (beat, now)
            return False
        return now - since > self._patience_s

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Send heartbeats during a with block."""
        ends = Event()

        def beat() -> None:
            number = 0
            while not ends.wait(BEAT_S):
                number += 1
                try:
                    self._store.set(f"beat/{self.me.by}", str(number))
                except Exception:  # the working thread gets the same error, and reports it
                    return

        with _trouble():
            self._store.set(f"beat/{self.me.by}", "0")
        thread = Thread(target=beat, name="jitgen-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def _change(self, key: str, before: KernelRecord | None, after: KernelRecord) -> bool:
        """Replace the record of `key`; returns False if it is not `before` any more."""
        old = "" if before is None else _encoded(before)
        new = _encoded(after)
        with _trouble():
            if self._store.compare_set(f"kernel/{key}", old, new) != new.encode():
                return False
            self._store.add("news", 1)
        return True


@contextmanager
def _trouble() -> Iterator[None]:
    """Turn the errors of a store whose process has ended into CoordinationError."""
    try:
        yield
    except JitgenError:
        raise
    except Exception as error:  # torch raises many kinds of RuntimeError
        words = " ".join(str(error).split())[:200]
        raise CoordinationError(f"the store of the job does not answer: {words}") from error


def _encoded(record: KernelRecord) -> str:
    return canonical_json(to_json(record))


def _decoded(text: bytes) -> KernelRecord:
    try:
        return from_json(KernelRecord, parse_json(text))
    except BadDocument as error:
        raise CoordinationError(f"a record in the job's store is none of ours: {error}") from None
