# SPDX-License-Identifier: Apache-2.0
"""
Who may be connected: so many connections, so many of one address, and room for those who look
whether the service lives.

A connection without a request under way is idle, whether it waits for the next one or has never
said anything. Idle ones shut no other out: where there is no place, the one that is idle for
longest makes room for the next, those first on which no token was shown. Where all are busy, a few
more are let in, on which the paths of health and metrics alone are served, once each.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

from jitgen.server.metrics import Metrics

EXTRA = 64
"""Connections beyond all others, for the paths in `VITAL`."""

VITAL = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths that are served though there is no place: an orchestrator ends what does not answer."""


class Place:
    """
    One connection's place, from its first byte to its last.

    Attributes:
        address: Whose it is.
        is_extra: Whether only what is vital is served on it.
        is_known: Whether a token was shown on it.
        end: Closes the connection at once.
    """

    __slots__ = ("_places", "address", "end", "is_extra", "is_known")

    def __init__(self, places: Places, address: str, *, is_extra: bool) -> None:
        self._places = places
        self.address = address
        self.is_extra = is_extra
        self.is_known = False
        self.end: Callable[[], object] = _nothing

    def busy(self) -> None:
        """Note that a request is under way."""
        self._places.busy(self)

    def idle(self) -> None:
        """Note that none is."""
        self._places.idle(self)

    def leave(self) -> None:
        """Give the place back."""
        self._places.leave(self)


class Places:
    """
    All places of a service. Only its event loop may use it.

    Args:
        most: How many there are, besides `EXTRA`.
        per_address: How many of them one address may have; 0: all of them.
        metrics: Where it is counted.
    """

    def __init__(self, most: int, per_address: int, metrics: Metrics) -> None:
        self._most = most
        self._per_address = per_address or most
        self._metrics = metrics
        self._of: Counter[str] = Counter()
        self._held: set[Place] = set()
        self._extras: set[Place] = set()
        self._strangers, self._known, self._idle_extras = _Idle(), _Idle(), _Idle()

    def __len__(self) -> int:
        return len(self._held) + len(self._extras)

    @property
    def num_idle(self) -> int:
        """How many have no request under way."""
        return len(self._strangers) + len(self._known) + len(self._idle_extras)

    def enter(self, address: str) -> Place | None:
        """
        Return a place for a connection of `address`, idle at first; None where there is none.

        See `address_of` for addresses.
        """
        is_extra = False
        if self._of[address] >= self._per_address:
            is_extra = not self._displace(address)
        elif len(self._held) >= self._most:
            is_extra = not self._displace()
        if is_extra and len(self._extras) >= EXTRA and not self._end(self._idle_extras.first()):
            self._metrics.ended.labels("refused").inc()
            return None
        place = Place(self, address, is_extra=is_extra)
        if is_extra:
            self._extras.add(place)
        else:
            self._held.add(place)
            self._of[address] += 1
        self.idle(place)
        return place

    def make_room(self) -> bool:
        """End the longest idle connection, for the system; returns whether there was one."""
        return self._displace() or self._end(self._idle_extras.first())

    def busy(self, place: Place) -> None:
        """Note that `place` has a request under way."""
        self._idle_of(place).remove(place)

    def idle(self, place: Place) -> None:
        """Note that `place` has none from now on."""
        if place in self._held or place in self._extras:
            self._idle_of(place).add(place)

    def leave(self, place: Place) -> None:
        """Note that the connection of `place` is over."""
        self._idle_of(place).remove(place)
        self._extras.discard(place)
        if place in self._held:
            self._held.discard(place)
            self._of[place.address] -= 1
            if not self._of[place.address]:
                del self._of[place.address]

    def _idle_of(self, place: Place) -> _Idle:
        if place.is_extra:
            return self._idle_extras
        return self._known if place.is_known else self._strangers

    def _displace(self, address: str = "") -> bool:
        return self._end(self._strangers.first(address) or self._known.first(address))

    def _end(self, place: Place | None) -> bool:
        if place is None:
            return False
        self.leave(place)
        self._metrics.ended.labels("displaced").inc()
        place.end()
        return True


def _nothing() -> None:
    """Close nothing: there is no connection yet."""


class _Idle:
    """Idle places, those first that are so for longest."""

    def __init__(self) -> None:
        self._all: OrderedDict[Place, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, place: Place) -> None:
        """Put `place` last."""
        self._all[place] = None
        self._of.setdefault(place.address, OrderedDict())[place] = None

    def remove(self, place: Place) -> None:
        """Take `place` out, if it is there."""
        if place in self._all:
            del self._all[place]
            own = self._of[place.address]
            del own[place]
            if not own:
                del self._of[place.address]

    def first(self, address: str = "") -> Place | None:
        """Return the first, of one address where one is named; None for none."""
        return next(iter(self._of.get(address, ()) if address else self._all), None)


def address_of(peer: Any) -> str:
    """
    Return whose a connection is, by the address that the system tells.

    Of IPv6 it is the network of 64 bits: so many addresses any host can take.
    """
    try:
        found = ip_address(str(peer[0]).partition("%")[0])
    except (ValueError, IndexError, TypeError):
        return str(peer)
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
