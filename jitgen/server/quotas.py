# SPDX-License-Identifier: Apache-2.0
"""
Limits on the requests and event streams that one token has open at a time.

A request may wait for minutes, and a stream lasts longer. Without a bound, one token's requests
could occupy every connection. All requests without a token share the bounds of one token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from jitgen.server.request import HTTPError
from jitgen.server.settings import Limits
from jitgen.server.tokens import Token


class Quotas:
    """Counts requests and streams by token. Only the event loop may use it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self.num_streams = 0

    def begin(self, token: Token) -> None:
        """
        Count a request of `token`, until `end`.

        Raises:
            HTTPError: The bound is reached.
        """
        if self._requests[token.name] >= self._limits.requests:
            reason = f"{self._limits.requests} requests of the token {token.name} are under way"
            raise HTTPError(429, "E_BUSY", reason, retry_s=2)
        self._requests[token.name] += 1

    def end(self, token: Token) -> None:
        """End the count of a request of `token`."""
        _less(self._requests, token.name)

    def admit_stream(self, token: Token) -> None:
        """
        Check that `token` may open an event stream.

        Raises:
            HTTPError: A bound is reached: that of the token, or that of all streams together, which
                is half of the connections.
        """
        limits = self._limits
        if self._streams[token.name] >= limits.streams:
            reason = f"{limits.streams} event streams of the token {token.name} are under way"
            raise HTTPError(429, "E_BUSY", reason, retry_s=10)
        if 2 * self.num_streams >= limits.connections:
            reason = f"{self.num_streams} event streams are under way"
            raise HTTPError(503, "E_BUSY", reason, retry_s=10)

    @contextmanager
    def stream(self, token: Token) -> Iterator[None]:
        """Count a stream of `token` during a with block."""
        self._streams[token.name] += 1
        self.num_streams += 1
        try:
            yield
        finally:
            self.num_streams -= 1
            _less(self._streams, token.name)


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
