# SPDX-License-Identifier: Apache-2.0
"""
Relaxed accesses to a memory that several CTAs share, distinguished by scope and CTA.

Two relaxed accesses may run at the same time if they are morally strong. So an access must be
ordered after all that are not morally strong with it: those of another CTA, if one of the two
accesses has the scope ``.cta``.

PTX ISA, sections "Morally strong operations" and "Data races" of the memory consistency model; of
"atom" and "red" that an operation is atomic only with those that are morally strong with it.
"""

from __future__ import annotations

from jitgen.emulator.machine.access import RELAXED_WRITE
from jitgen.emulator.machine.scopes import Scope, are_morally_strong


class StrongKinds:
    """
    The kinds of relaxed accesses that one memory saw.

    Attributes:
        spans_ctas: CTAs of a cluster share the memory; else all are of one CTA, and each kind
            keeps its name.
    """

    def __init__(self) -> None:
        self.spans_ctas = False
        self._known: dict[str, tuple[str, Scope, int]] = {}
        self._named: dict[frozenset[str], frozenset[str]] = {}
        self._unlike: dict[tuple[str, Scope, int], frozenset[str]] = {}

    def name(self, kind: str, scope: Scope, rank: int) -> str:
        """Return the name of a relaxed kind of accesses by threads of CTA `rank`."""
        if not self.spans_ctas:
            return kind
        name = f"{kind} at {scope} of rank {rank}"
        if name not in self._known:
            self._known[name] = (kind, scope, rank)
            self._named.clear()
            self._unlike.clear()
        return name

    def named(self, kinds: frozenset[str]) -> frozenset[str]:
        """
        Return some kinds, together with the names of those that are distinguished by scope and CTA.
        """
        if not self._known:
            return kinds
        found = self._named.get(kinds)
        if found is None:
            names = {name for name, (kind, *_) in self._known.items() if kind in kinds}
            found = self._named[kinds] = kinds | names
        return found

    def unlike(self, kind: str, scope: Scope, rank: int) -> frozenset[str]:
        """
        Return the names of the kinds of accesses that conflict with a relaxed access and are not
        morally strong with it.
        """
        if not self._known:
            return frozenset()
        found = self._unlike.get((kind, scope, rank))
        if found is None:
            found = self._unlike[kind, scope, rank] = frozenset(
                name
                for name, (other, its_scope, its_rank) in self._known.items()
                if RELAXED_WRITE in {kind, other}
                and not are_morally_strong(
                    scope, its_scope, same_cta=rank == its_rank, same_cluster=True
                )
            )
        return found
