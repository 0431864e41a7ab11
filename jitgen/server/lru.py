# SPDX-License-Identifier: Apache-2.0
"""A memory cache of packed entries: above its limit the least recently used ones are dropped."""

from __future__ import annotations

from collections import OrderedDict

from jitgen.cache.stamp import Stamp
from jitgen.support.frozen import frozen


@frozen
class Body:
    """
    The body of a response with an entry.

    Attributes:
        data: The bytes, in one encoding.
        etag: SHA-256 of the entry's ``meta.json``, in quotes.
        headers: The headers of the response, encoded once.
        stamp: The stamp of the entry's folder from before it was read; None if it is not on the
            disk.
    """

    data: bytes
    etag: str
    headers: tuple[tuple[bytes, bytes], ...]
    stamp: Stamp | None = None


class LruCache:
    """
    Bodies by key and encoding, bounded by their bytes. Only one thread may use it.

    Args:
        limit: Most bytes of all bodies together; a single larger one is not cached.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._bodies: OrderedDict[tuple[str, str], Body] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bodies)

    def get(self, key: str, encoding: str) -> Body | None:
        """Return the body of `key` in `encoding`; None if it is not cached."""
        found = self._bodies.get((key, encoding))
        if found is not None:
            self._bodies.move_to_end((key, encoding))
        return found

    def put(self, key: str, encoding: str, body: Body) -> None:
        """
        Cache a body, and drop the least recently used ones until all fit. A body above the limit is
        not cached, and the one before under the same name is dropped, too.
        """
        self._drop((key, encoding))
        if len(body.data) > self.limit:
            return
        self._bodies[key, encoding] = body
        self.size += len(body.data)
        while self.size > self.limit:
            self._drop(next(iter(self._bodies)))

    def forget(self, key: str) -> None:
        """Drop an entry, in every encoding."""
        for name in [name for name in self._bodies if name[0] == key]:
            self._drop(name)

    def forget_old(self, key: str, stamp: Stamp) -> None:
        """Drop the bodies of an entry that were read when its folder had `stamp`."""
        old = [n for n, body in self._bodies.items() if n[0] == key and body.stamp == stamp]
        for name in old:
            self._drop(name)

    def keys(self) -> list[str]:
        """Return the keys of the cached bodies."""
        return list({key for key, _ in self._bodies})

    def stamps(self) -> set[tuple[str, Stamp]]:
        """Return key and stamp of each body whose entry is on the disk."""
        return {(key, body.stamp) for (key, _), body in self._bodies.items() if body.stamp}

    def clear(self) -> None:
        """Drop everything."""
        self._bodies.clear()
        self.size = 0

    def _drop(self, name: tuple[str, str]) -> None:
        body = self._bodies.pop(name, None)
        if body is not None:
            self.size -= len(body.data)
