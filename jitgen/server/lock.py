# SPDX-License-Identifier: Apache-2.0
"""
Compares a service's store with a lock before the service listens.

Clients choose kernels, so they compare the choices of a lock. A service compares the kernels: each
must be in its store under the locked key, with the locked bytes, and be one that it hands out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from jitgen.cache import Store
from jitgen.errors import LockError
from jitgen.runtime.lock import Lock, read
from jitgen.runtime.locked import other_files
from jitgen.server.entry_store import EntryStore


async def require_locked(path: Path, entry_store: EntryStore) -> Lock:
    """
    Return the lock in `path`, whose kernels this service hands out.

    Raises:
        LockError: It cannot be read, or a kernel is missing, refused or another one.
    """
    lock = await asyncio.to_thread(read, path)
    keys = [kernel.key for target in lock.targets for kernel in target.kernels]
    refused = await entry_store.missing(keys)
    await asyncio.to_thread(require_there, lock, path, entry_store.store, refused)
    return lock


def require_there(lock: Lock, path: Path, store: Store, refused: Collection[str]) -> None:
    """
    Raise LockError unless `store` has every kernel of a lock with the locked bytes.

    Args:
        lock: The lock.
        path: Its file.
        store: The store.
        refused: Keys that the service would not hand out, also where the store has them.
    """
    told = []
    for kernel in (each for target in lock.targets for each in target.kernels):
        entry = store.read(kernel.key)
        if entry is None:
            told.append(f"{kernel.name} is not in {store.root}")
        elif kernel.key in refused:
            told.append(
                f"{kernel.name} is not handed out: it is revoked, or not signed by a "
                "trusted key (jitgen cache sign)"
            )
        elif other := other_files(entry.meta, kernel.files):
            told.append(f"{kernel.name} {other}")
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        raise LockError(
            f"the store is not as {path} locks it: {told[0]}{more}; run: "
            f"JITGEN_CACHE_DIR={store.root} jitgen prewarm --locked {path}",
            tuple(told),
        )
