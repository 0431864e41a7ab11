# SPDX-License-Identifier: Apache-2.0
"""
What ranks tell each other, on the key-value store that torch.distributed gives them.

::

    kernel/<key>       who works on a kernel, or what came of it: JSON, changed by compare-and-set
    blob/<key>/<n>     its entry, packed and compressed, in chunks; all there before it is "done"
    beat/<id>          a number that grows while that rank lives
    news               how often any of it changed, so that who waits asks one question

A kernel is the same whoever wants it, in which plan, and however often: so there is one record of
it for the whole job, and nothing has to be agreed on first. Whoever changes a record names what it
was before; of several ranks that want the same, one is first and the others see it.

No clock is compared: a rank has died when its number has not grown for a while on the clock of
whoever looks. A rank that only seemed dead costs a second compile, of equal bytes.

Ranks of a job run each other's code as it is, and the store asks nobody who he is. So entries are
checked for damage, not for malice: who can write to the store of a job is in the job.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from threading import Event, Thread
from typing import Protocol

from jitgen.errors import JitgenError
from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.frozen import frozen

CHUNK_BYTES = 2**20
"""Of an entry in one value of the store, which takes 8 MiB at most."""

BEAT_S = 1.0
"""How often a rank says that it lives."""


class RankStore(Protocol):
    """What is used of `torch.distributed.Store`; nothing here ever waits for a key."""

    def get(self, key: str, /) -> bytes:
        """Return a value that is there."""

    def set(self, key: str, value: str | bytes, /) -> None:
        """Set a value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys are there."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, and return what it is now."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a value that is as expected, the empty one if there is none; return what it is."""


class CoordinationError(JitgenError):
    """The store of the job does not answer any more, or holds what no rank wrote."""


@frozen
class KernelRecord:
    """
    What is known of one kernel.

    Attributes:
        state: ``claimed``: a rank is at it; ``free``: whoever was gave it up; ``done``; ``failed``.
        by: Id of that rank.
        rank: Its number.
        host: Name of its machine.
        tries: How many processes died over it.
        chunks: How many parts of the entry are on the board.
        seconds: How long the compile took; 0 where that rank had it already.
        error: Why it failed.
        lost: Numbers of ranks that died over it.
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
    One rank's view of the board.

    Args:
        store: The job's store.
        rank: This rank's number.
        host: Name of this machine.
        patience_s: How long a rank may be silent before it counts as dead.

    Raises:
        CoordinationError: Every method does, where the store does not answer.
    """

    def __init__(self, store: RankStore, rank: int, host: str, patience_s: float) -> None:
        self.me = KernelRecord(state="claimed", by=uuid.uuid4().hex[:16], rank=rank, host=host)
        self._store = store
        self._patience_s = patience_s
        self._seen: dict[str, tuple[bytes, float]] = {}

    def read(self, key: str) -> KernelRecord | None:
        """Return what is known of kernel `key`; None where nobody has looked at it yet."""
        with _trouble():
            name = f"kernel/{key}"
            text = self._store.get(name) if self._store.check([name]) else b""
        return _decoded(text) if text else None

    def claim(self, key: str, before: KernelRecord | None) -> KernelRecord | None:
        """
        Take kernel `key`, of which `before` was known; None where another rank was faster.

        What a dead rank had claimed is taken over likewise.
        """
        mine = self.me
        if before is not None:
            lost = (*before.lost, before.rank) if before.state == "claimed" else before.lost
            mine = replace(mine, tries=before.tries, lost=lost)
        return mine if self._change(key, before, mine) else None

    def done(self, key: str, mine: KernelRecord, entry: bytes, *, seconds: float) -> None:
        """Put the packed `entry` of a kernel that was claimed on the board, then say so."""
        data = zlib.compress(entry)
        parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        with _trouble():
            for number, part in enumerate(parts):
                self._store.set(f"blob/{key}/{number}", part)
        self._change(key, mine, replace(mine, state="done", chunks=len(parts), seconds=seconds))

    def failed(self, key: str, mine: KernelRecord, error: str, *, is_final: bool) -> None:
        """
        Say that a claimed kernel could not be compiled; unless `is_final`, others may try.
        """
        state = "failed" if is_final else "free"
        self._change(key, mine, replace(mine, state=state, tries=mine.tries + 1, error=error))

    def entry(self, key: str, record: KernelRecord, max_bytes: int) -> bytes:
        """
        Return the packed entry of a kernel that is done.

        Raises:
            CoordinationError: It is not there, or is longer than `max_bytes`.
        """
        with _trouble():
            names = [f"blob/{key}/{number}" for number in range(record.chunks)]
            if not names or not self._store.check(names):
                raise CoordinationError("its bytes are not on the board")
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
        """Return a number that grows with every change of the board."""
        with _trouble():
            return self._store.add("news", 0)

    def is_dead(self, record: KernelRecord) -> bool:
        """Return whether the rank that `record` is of has been silent for too long."""
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
        """Say, for the length of a with block, that this rank lives."""
        ends = Event()

        def beat() -> None:
            number = 0
            while not ends.wait(BEAT_S):
                number += 1
                try:
                    self._store.set(f"beat/{self.me.by}", str(number))
                except Exception:  # the thread that works finds out by itself, and says so
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
        """Replace the record of `key`; False where it is not `before` any more."""
        old = "" if before is None else _encoded(before)
        new = _encoded(after)
        with _trouble():
            if self._store.compare_set(f"kernel/{key}", old, new) != new.encode():
                return False
            self._store.add("news", 1)
        return True


@contextmanager
def _trouble() -> Iterator[None]:
    """Turn what the store raises, where its process has gone, into an error of ours."""
    try:
        yield
    except JitgenError:
        raise
    except Exception as error:  # torch has many, all of them RuntimeErrors of some kind
        words = " ".join(str(error).split())[:200]
        raise CoordinationError(f"the store of the job does not answer: {words}") from error


def _encoded(record: KernelRecord) -> str:
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":"))


def _decoded(text: bytes) -> KernelRecord:
    try:
        fields = parse_json(text)
        return KernelRecord(**{**fields, "lost": tuple(fields["lost"])})
    except (BadDocument, TypeError, KeyError) as error:
        raise CoordinationError(f"a record on the board is none of ours: {error}") from None
