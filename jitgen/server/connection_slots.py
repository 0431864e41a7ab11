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


class Slot:
    """
    One connection's place, from its first byte to its last.

    Attributes:
        address: Whose it is.
        is_extra: Whether only what is vital is served on it.
        is_known: Whether a token was shown on it.
        end: Closes the connection at once.
    """

    __slots__ = ("_slots", "address", "end", "is_extra", "is_known")

    def __init__(self, slots: ConnectionSlots, address: str, *, is_extra: bool) -> None:
        self._slots = slots
        self.address = address
        self.is_extra = is_extra
        self.is_known = False
        self.end: Callable[[], object] = _nothing

    def busy(self) -> None:
        """Note that a request is under way."""
        self._slots.busy(self)

    def idle(self) -> None:
        """Note that none is."""
        self._slots.idle(self)

    def leave(self) -> None:
        """Give the place back."""
        self._slots.leave(self)


class ConnectionSlots:
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
        self._held: set[Slot] = set()
        self._extras: set[Slot] = set()
        self._strangers, self._known, self._idle_extras = _Idle(), _Idle(), _Idle()

    def __len__(self) -> int:
        return len(self._held) + len(self._extras)

    @property
    def num_idle(self) -> int:
        """How many have no request under way."""
        return len(self._strangers) + len(self._known) + len(self._idle_extras)

    def enter(self, address: str) -> Slot | None:
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
        slot = Slot(self, address, is_extra=is_extra)
        if is_extra:
            self._extras.add(slot)
        else:
            self._held.add(slot)
            self._of[address] += 1
        self.idle(slot)
        return slot

    def make_room(self) -> bool:
        """End the longest idle connection, for the system; returns whether there was one."""
        return self._displace() or self._end(self._idle_extras.first())

    def busy(self, slot: Slot) -> None:
        """Note that `slot` has a request under way."""
        self._idle_of(slot).remove(slot)

    def idle(self, slot: Slot) -> None:
        """Note that `slot` has none from now on."""
        if slot in self._held or slot in self._extras:
            self._idle_of(slot).add(slot)

    def leave(self, slot: Slot) -> None:
        """Note that the connection of `slot` is over."""
        self._idle_of(slot).remove(slot)
        self._extras.discard(slot)
        if slot in self._held:
            self._held.discard(slot)
            self._of[slot.address] -= 1
            if not self._of[slot.address]:
                del self._of[slot.address]

    def _idle_of(self, slot: Slot) -> _Idle:
        if slot.is_extra:
            return self._idle_extras
        return self._known if slot.is_known else self._strangers

    def _displace(self, address: str = "") -> bool:
        return self._end(self._strangers.first(address) or self._known.first(address))

    def _end(self, slot: Slot | None) -> bool:
        if slot is None:
            return False
        self.leave(slot)
        self._metrics.ended.labels("displaced").inc()
        slot.end()
        return True


def _nothing() -> None:
    """Close nothing: there is no connection yet."""


class _Idle:
    """Idle places, those first that are so for longest."""

    def __init__(self) -> None:
        self._all: OrderedDict[Slot, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, slot: Slot) -> None:
        """Put `slot` last."""
        self._all[slot] = None
        self._of.setdefault(slot.address, OrderedDict())[slot] = None

    def remove(self, slot: Slot) -> None:
        """Take `slot` out, if it is there."""
        if slot in self._all:
            del self._all[slot]
            own = self._of[slot.address]
            del own[slot]
            if not own:
                del self._of[slot.address]

    def first(self, address: str = "") -> Slot | None:
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
