# SPDX-License-Identifier: Apache-2.0
"""
The store on disk: compiled kernels that any process of their owner can load, verified byte by byte.

::

    <root>/                            mode 0700, owned by its user
      CACHEDIR.TAG
      v1/                              the format; another format gets another folder
        entries/ab/<key>/              one immutable entry, published by renaming a finished folder
          kernel.py  kernel.so  meta.json
          signatures.json                signatures of meta.json, if there are any
        locks/<key>.lock               avoids duplicate work; correctness never depends on it
        tmp/                           drafts, on the same file system
        quarantine/                    damaged entries, until they are swept
        pins/<key>                     entries that pruning spares
        whiteouts/<key>                marks of hidden entries of read-only roots
        builders/                      which compiler and linker publish here
        size                           ledger of bytes, so that a publish need not scan
        journal                        events that the index has not taken over yet
        tuned/                         measurements, a JSON file for each problem
        prewarmed/                     which plans were prewarmed, and for which devices
        breakers/                      remote places that this host does not ask for a while
        trust.json                     the latest trust document that was seen here
        trust.looked                   when each remote place was asked for a later one
        index/                         hits, sizes and failures; losing it costs statistics only

There are four rules. A damaged entry is a miss. A cache that cannot be written gives a warning.
Only plain text is ever decoded. Exactly the bytes that were checked are used: bytes in memory, from
files that were checked when they were opened. Digests protect from damage, not from malice: a user
who can write to the root can run code as its owner. So a root to which others can write is refused,
unless only signed entries are loaded from it (`jitgen.signing`).

Reading imports neither diskcache nor filelock; other functions load them on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.cache.entry import Entry, Meta
from jitgen.cache.folder import Damaged, Untrusted
from jitgen.cache.store import Store
from jitgen.support.lazy import importing

if TYPE_CHECKING:
    from jitgen.cache.failures import Failure
    from jitgen.cache.index import Index, NullIndex
    from jitgen.cache.inventory import Difference, EntryInfo, Stats, Verification
    from jitgen.cache.prune import Pruned
    from jitgen.cache.quarantine import Damage

__all__ = [
    "Damage",
    "Damaged",
    "Difference",
    "Entry",
    "EntryInfo",
    "Failure",
    "Index",
    "Meta",
    "NullIndex",
    "Pruned",
    "Stats",
    "Store",
    "Untrusted",
    "Verification",
]

__getattr__ = importing(
    __name__,
    {
        "Damage": ".quarantine",
        "Difference": ".inventory",
        "EntryInfo": ".inventory",
        "Failure": ".failures",
        "Index": ".index",
        "NullIndex": ".index",
        "Pruned": ".prune",
        "Stats": ".inventory",
        "Verification": ".inventory",
    },
)
