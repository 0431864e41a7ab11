# SPDX-License-Identifier: Apache-2.0
"""
How much of the service one token may have at a time: requests, and among them event streams.

A request may wait for minutes, and a stream for longer, so that without a bound one token's could
take every place that there is. Whoever comes without a token has the bounds of one token, together
with all others who do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from jitgen.server.request import HTTPError
from jitgen.server.settings import Limits
from jitgen.server.tokens import Token


class Quotas:
    """What is under way, by token. Only the event loop may use it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self.num_streams = 0

    def begin(self, token: Token) -> None:
        """
        Count a request of `token`, until `end`.

        Raises:
            Refused: It would be one too many.
        """
        if self._requests[token.name] >= self._limits.requests:
            reason = f"{self._limits.requests} requests of the token {token.name} are under way"
            raise HTTPError(429, "E_BUSY", reason, {"Retry-After": "2"})
        self._requests[token.name] += 1

    def end(self, token: Token) -> None:
        """Count one less."""
        _less(self._requests, token.name)

    def admit_stream(self, token: Token) -> None:
        """
        See that there is room for an event stream of `token`.

        Raises:
            Refused: There is none. Of all streams together there are half as many as connections.
        """
        limits = self._limits
        if self._streams[token.name] >= limits.streams:
            reason = f"{limits.streams} event streams of the token {token.name} are under way"
            raise HTTPError(429, "E_BUSY", reason, {"Retry-After": "10"})
        if 2 * self.num_streams >= limits.connections:
            reason = f"{self.num_streams} event streams are under way"
            raise HTTPError(503, "E_BUSY", reason, {"Retry-After": "10"})

    @contextmanager
    def stream(self, token: Token) -> Iterator[None]:
        """Count a stream of `token` for a with block."""
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
