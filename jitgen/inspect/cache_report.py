# SPDX-License-Identifier: Apache-2.0
"""
The report of a whole cache: every entry, whether calls still find it, and failures.

A cache has no list of its misses. But entries that calls do not find any more explain misses: calls
look for another key, and the two key documents show the difference.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from jitgen.cache import inventory
from jitgen.config import Config
from jitgen.errors import ConfigError, ToolchainError
from jitgen.runtime import spec
from jitgen.runtime.kernel import unsupported_levels
from jitgen.support.frozen import frozen
from jitgen.targets.legality import check

if TYPE_CHECKING:
    from jitgen.cache import EntryInfo, Meta, Store
    from jitgen.cache.failures import Failure
    from jitgen.cache.inventory import Stats
    from jitgen.cache.quarantine import Damage


class State(StrEnum):
    """Whether a call of this installation finds an entry."""

    FOUND = "found"
    """Calls find the entry."""

    OTHER = "other key"
    """Calls look for another key: templates, compiler or options have changed."""

    REFUSED = "refused"
    """No call looks for the entry, because the rules of its target now refuse the config."""

    CPU = "other CPU"
    """The processor of this machine cannot run the kernel's host part."""

    DAMAGED = "damaged"
    """The entry's record cannot be read."""

    UNKNOWN = "unknown"
    """
    Unknown: no compiler is installed, which the key of calls depends on, or this installation
    cannot read the entry's config.
    """


@frozen
class Row:
    """
    One entry of a cache, and whether calls find it.

    Attributes:
        info: Its line in a list of entries.
        state: Whether calls find it.
        reason: Why calls do not find it; empty if they do.
        created: Time at which it was compiled, ISO 8601; empty where its record cannot be read.
        compile_s: Seconds that compiling it took.
    """

    info: EntryInfo
    state: State
    reason: str = ""
    created: str = ""
    compile_s: float = 0.0


@frozen
class CacheReport:
    """
    The report of a cache.

    Attributes:
        root: Its folder.
        mode: ``rw``, ``ro`` or ``off``.
        bases: Roots that are only read.
        made: Time at which the report was made, seconds since 1970.
        stats: Totals of the own root.
        rows: Every entry, the last used first.
        failures: Remembered failures by key.
        damages: Entries in quarantine.
    """

    root: str
    mode: str
    bases: tuple[str, ...]
    made: float
    stats: Stats
    rows: tuple[Row, ...]
    failures: tuple[tuple[str, Failure], ...]
    damages: tuple[Damage, ...]

    @property
    def states(self) -> Counter[State]:
        """How many entries are in each state."""
        return Counter(row.state for row in self.rows)

    @property
    def reasons(self) -> Counter[str]:
        """Number of unreachable entries for each reason why calls do not find them."""
        return Counter(row.reason for row in self.rows if row.reason)


def report(store: Store) -> CacheReport:
    """Return the report of a cache, without loading its kernels."""
    metas = {meta.key: meta for meta in store.metas()}
    rows = [_row(info, metas.get(info.key)) for info in store.entries()]
    return CacheReport(
        root=str(store.root),
        mode=store.mode,
        bases=tuple(map(str, store.bases)),
        made=time.time(),
        stats=store.stats(),
        rows=tuple(sorted(rows, key=lambda row: (-row.info.last_use, row.info.key))),
        failures=tuple(store.index.failures().items()),
        damages=tuple(store.quarantined()),
    )


def _row(info: EntryInfo, meta: Meta | None) -> Row:
    if meta is None:
        return Row(info=info, state=State.DAMAGED, reason="its record cannot be read")
    state, reason = _state(meta)
    return Row(
        info=info, state=state, reason=reason, created=meta.created, compile_s=meta.compile_s
    )


def _state(meta: Meta) -> tuple[State, str]:
    """
    Return whether calls find an entry, and the reason why they do not, which is empty if they do.
    """
    try:
        config, arch = Config.parse(meta.name)
        verdict = check(config, arch)
        if not verdict:
            return State.REFUSED, f"{verdict.code}: the rules of {arch} refuse its config now"
        wanted = spec.document(config, arch)
    except ConfigError:
        return State.UNKNOWN, "nothing here reads its config: a plugin may be missing"
    except ToolchainError:
        return State.UNKNOWN, "no compiler is installed here, so that no key can be looked for"
    if spec.digest(wanted) != meta.key:
        return State.OTHER, f"calls look for {' and '.join(_fields(meta, wanted))}"
    missing = unsupported_levels(meta.host_isa)
    if missing:
        return State.CPU, f"its host part needs {', '.join(missing)}, which this CPU lacks"
    return State.FOUND, ""


def _fields(meta: Meta, wanted: dict[str, object]) -> Iterator[str]:
    """
    Yield short texts of the fields in which a key document differs from the one that calls look
    for.
    """
    seen = set()
    for each in inventory.compared(meta, wanted):
        head, _, rest = each.field.partition(".")
        text = f"other {head}"
        if head == "toolchain":
            text = f"{rest} {_word(each.wanted)} instead of {_word(each.found)}"
        if text not in seen:
            seen.add(text)
            yield text


def _word(value: object) -> str:
    return "none" if value == inventory.ABSENT else str(value)
