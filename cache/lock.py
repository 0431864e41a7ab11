# SPDX-License-Identifier: Apache-2.0
"""
One lock for each key, so that one kernel is compiled once.

The lock is the operating system's ``flock``: it ends with its process, whatever ends that. Where a
file system has none, or keeps it to one host, two processes compile the same kernel and both
results are good, for correctness rests on publishing by rename. Lock files stay behind on purpose:
removing one would let two processes hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitgen.events import warn_once
from jitgen.support import forks


@contextmanager
def key_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """
    Hold the lock file `path`; yields whether it is held.

    False after `timeout_s` seconds of waiting, and at once where `path` is a symbolic link, where
    locks do not work, and where this thread holds it already. Never raises for any of these.
    """
    # 10 ms to import, and only a compile needs it: never on the way to a kernel that is on disk.
    from filelock import Timeout, UnixFileLock

    forks.wait_before("filelock")
    lock = UnixFileLock(
        path, timeout=timeout_s, thread_local=False, mode=0o600, fallback_to_soft=False
    )
    try:
        with forks.idle():  # whoever forks meanwhile need not wait for another process, too
            lock.acquire()
    except Timeout:
        is_held = False
    except (OSError, RuntimeError) as error:
        warn_once("cache lock", "cannot lock %s (%s); compiling without the lock", path, error)
        is_held = False
    else:
        is_held = True
    try:
        yield is_held
    finally:
        if is_held:
            with suppress(OSError):  # a network file system that went away: the lock went with it
                lock.release()
