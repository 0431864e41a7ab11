# SPDX-License-Identifier: Apache-2.0
"""
Limits on connections: in all, and for each address, with some spare ones for health checks.

A connection without a request under way is idle, whether it waits for its next request or has never
sent anything. Idle connections do not keep others out: when no slot is free, the longest idle one
is closed, and those without a token first. When all are busy, `EXTRA` more are accepted, which
serve one request each and only the paths in `VITAL`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address, ip_network

from jitgen.server.metrics import Metrics

EXTRA = 64
"""Spare connections, for the paths in `VITAL` only."""

VITAL = frozenset({"/livez", "/readyz", "/metrics"})
"""Paths served even without a free slot: an orchestrator kills a service that does not answer."""


class Slot:
    """
    One connection's slot, from accepting to closing.

    Attributes:
        address: The client's address; see `address_of`.
        is_extra: Whether it is a spare one, on which only `VITAL` paths are served.
        is_known: Whether a request on it had a valid token.
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
        """Mark the connection as busy: a request is under way."""
        self._slots.busy(self)

    def idle(self) -> None:
        """Mark the connection as idle."""
        self._slots.idle(self)

    def leave(self) -> None:
        """Free the slot."""
        self._slots.leave(self)


class ConnectionSlots:
    """
    All slots of a service. Only its event loop may use it.

    Args:
        most: Number of slots, without the `EXTRA` ones.
        per_address: Slots that one address may have; 0: all of them.
        metrics: Counts connections that were refused or closed.
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
        """Number of connections without a request under way."""
        return len(self._strangers) + len(self._known) + len(self._idle_extras)

    def enter(self, address: str) -> Slot | None:
        """
        Return a slot for a connection of `address`, idle at first; None if no slot is free.

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
        """Close the longest idle connection to free a descriptor; returns whether there was one."""
        return self._displace() or self._end(self._idle_extras.first())

    def busy(self, slot: Slot) -> None:
        """Mark `slot` as busy."""
        self._idle_of(slot).remove(slot)

    def idle(self, slot: Slot) -> None:
        """Mark `slot` as idle from now on."""
        if slot in self._held or slot in self._extras:
            self._idle_of(slot).add(slot)

    def leave(self, slot: Slot) -> None:
        """Free `slot`: its connection is closed."""
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
    """Do nothing: there is no connection to close yet."""


class _Idle:
    """Idle slots, the longest idle first."""

    def __init__(self) -> None:
        self._all: OrderedDict[Slot, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, slot: Slot) -> None:
        """Add `slot` at the end."""
        self._all[slot] = None
        self._of.setdefault(slot.address, OrderedDict())[slot] = None

    def remove(self, slot: Slot) -> None:
        """Remove `slot`, if it is in."""
        if slot in self._all:
            del self._all[slot]
            own = self._of[slot.address]
            del own[slot]
            if not own:
                del self._of[slot.address]

    def first(self, address: str = "") -> Slot | None:
        """Return the longest idle slot, of `address` if given; None if there is none."""
        return next(iter(self._of.get(address, ()) if address else self._all), None)


def address_of(peer: object) -> str:
    """
    Return the address by which a client's connections are counted.

    For IPv6 it is the /64 network, since any host can use all addresses of its network.
    """
    try:
        host = peer[0] if isinstance(peer, Sequence) else None
        found = ip_address(str(host).partition("%")[0])
    except (ValueError, IndexError):
        return str(peer)
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
