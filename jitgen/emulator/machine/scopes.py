# SPDX-License-Identifier: Apache-2.0
"""
Scopes: which threads a synchronising access or a fence applies to.

Two such accesses of different threads are morally strong, and so may meet, if the scope of each
includes the other thread. Else they are a data race like ordinary ones, unless something orders
them. `.gpu` includes the threads of one device, `.sys` those of all.

PTX ISA, sections "Scope", "Morally strong operations" and "Data races" of the memory consistency
model.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Scope(IntEnum):
    """A scope; a larger one includes all threads of a smaller one."""

    CTA = 1
    CLUSTER = 2
    GPU = 3
    SYS = 4

    def __str__(self) -> str:
        """Return the scope as opcodes spell it, for example ``.cta``."""
        return f".{self.name.lower()}"


SCOPE_PARTS = {scope.name.lower(): scope for scope in Scope} | {"gl": Scope.GPU}
"""Parts of an opcode, and the scope each names; ``membar.gl`` has a name of its own."""


def scope_in(parts: Iterable[str], default: Scope = Scope.SYS) -> Scope:
    """Return the scope that an opcode names."""
    return next((SCOPE_PARTS[part] for part in parts if part in SCOPE_PARTS), default)


def are_morally_strong(
    one: Scope, other: Scope, *, same_cta: bool, same_cluster: bool, same_device: bool = True
) -> bool:
    """Return whether two synchronising accesses include each other's thread in their scopes."""
    if same_cta:
        return True
    least = Scope.CLUSTER if same_cluster else Scope.GPU if same_device else Scope.SYS
    return min(one, other) >= least
