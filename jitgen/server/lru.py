# SPDX-License-Identifier: Apache-2.0
"""Packed entries in memory, the least recently used of which go when there are too many bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from jitgen.cache.stamp import Stamp


@dataclass(frozen=True, slots=True)
class Body:
    """
    What a GET answers with.

    Attributes:
        data: The bytes, in one encoding.
        etag: SHA-256 of the entry's ``meta.json``, with quotes.
        headers: Those of the answer, encoded once.
        stamp: What the disk said of the entry before it was read; None where it is not there.
    """

    data: bytes
    etag: str
    headers: tuple[tuple[bytes, bytes], ...]
    stamp: Stamp | None = None


class LruCache:
    """
    Bodies by key and encoding, bounded by their bytes. Only one thread may use it.

    Args:
        limit: Bytes that they may take together; a larger one is not kept at all.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._bodies: OrderedDict[tuple[str, str], Body] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: str, encoding: str) -> Body | None:
        """Return the body of `key` in `encoding`."""
        found = self._bodies.get((key, encoding))
        if found is not None:
            self._bodies.move_to_end((key, encoding))
        return found

    def put(self, key: str, encoding: str, body: Body) -> None:
        """Keep a body, and let go of others until there is room."""
        self._drop((key, encoding))
        if len(body.data) > self.limit:
            return
        self._bodies[key, encoding] = body
        self.size += len(body.data)
        while self.size > self.limit:
            self._drop(next(iter(self._bodies)))

    def forget(self, key: str) -> None:
        """Let go of an entry, in every encoding."""
        for name in [name for name in self._bodies if name[0] == key]:
            self._drop(name)

    def forget_old(self, key: str, stamp: Stamp) -> None:
        """Let go of what was read of an entry when the disk said `stamp` of it."""
        old = [n for n, body in self._bodies.items() if n[0] == key and body.stamp == stamp]
        for name in old:
            self._drop(name)

    def keys(self) -> list[str]:
        """Return the keys of which there is a body."""
        return list({key for key, _ in self._bodies})

    def stamps(self) -> set[tuple[str, Stamp]]:
        """Return keys with what the disk said of them, for each body that the disk has."""
        return {(key, body.stamp) for (key, _), body in self._bodies.items() if body.stamp}

    def clear(self) -> None:
        """Let go of everything."""
        self._bodies.clear()
        self.size = 0

    def _drop(self, name: tuple[str, str]) -> None:
        body = self._bodies.pop(name, None)
        if body is not None:
            self.size -= len(body.data)
