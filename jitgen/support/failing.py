# SPDX-License-Identifier: Apache-2.0
"""
The kinds of failures: which may be remembered, where, and for how long.

All code that remembers a failure treats it as one of three kinds:

* **certain**: the kernel or entry itself is wrong, and fails again on every machine. Examples: the
  compiler refuses a source in a process that did nothing else; an entry does not match its digest.
  All processes may remember it, for as long as a setting says.
* **passing**: this process or machine lacks a resource at this time: memory, stack, threads,
  processes, descriptors, disk, time. That says nothing about the kernel. It is never shared, and
  tried again after a delay that doubles each time. Failures of unknown kind count as passing.
* **said elsewhere**: a remote cache or service does not answer, does not have the kernel, or
  returns one that is not accepted. It is remembered as a miss of that cache or service, for a
  limited time, and never as a fault of the kernel.

`tests/unit/test_failure_memories.py` lists all code that remembers failures.
"""

from __future__ import annotations

import errno
import os
import threading
import time

from jitgen.errors import CompileError, RememberedFailure, ResourceError

_SCARCE = frozenset(
    {
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
        *(errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR),
        *(errno.ENOBUFS, errno.EADDRNOTAVAIL),
    }
)

_OF_THIS_PROCESS = frozenset(
    {
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS),
    }
)
"""Errors of which the disk or network is not the cause."""

_WORDS = ("can't start new thread", "out of memory", "bad_alloc", "Cannot allocate memory")
"""
Texts of errors from loaders, compilers and drivers, which have no errno, in addition to the
system's own texts.
"""

RETRY_FIRST_S = 1.0
RETRY_MOST_S = 60.0
RETRY_UNFORESEEN_MOST_S = 3600.0
"""
Longest wait after an unforeseen error, in seconds: it may well occur again each time, and a try
costs a compile.
"""


def is_certain(error: BaseException) -> bool:
    """Return whether `error` says that the compiler refuses the source in every process."""
    return isinstance(error, RememberedFailure) or (
        isinstance(error, CompileError) and error.is_certain
    )


def is_passing(error: BaseException) -> bool:
    """
    Return whether `error`, or its cause, says that this process or machine lacks a resource for
    now, so that the same work may succeed a moment later.
    """
    return any(_is_short(each, _SCARCE) for each in _chain(error))


def is_of_this_process(error: BaseException) -> bool:
    """
    Return whether `error` says that this process or host could not even send the request: the disk
    or network is not to blame.
    """
    return any(_is_short(each, _OF_THIS_PROCESS) for each in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the innermost last."""
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in found:
        found.append(each)
        each = each.__cause__ or each.__context__
    return found


def _is_short(error: BaseException, numbers: frozenset[int]) -> bool:
    if isinstance(error, (ResourceError, MemoryError, RecursionError)):
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch's, and torch is imported elsewhere
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in numbers
    if not isinstance(error, (ImportError, OSError, RuntimeError, SystemError)):
        return False
    return _says(str(error), numbers)


def says_passing(text: str) -> bool:
    """
    Return whether `text`, printed by a loader, a compiler or a process that ended, says that a
    resource is lacking for now.
    """
    return _says(text, _SCARCE)


def _says(text: str, numbers: frozenset[int]) -> bool:
    return any(words in text for words in (*map(os.strerror, sorted(numbers)), *_WORDS))


class Backoff:
    """Failures in this process that may pass, by key. Safe to use from any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._tries: dict[str, int] = {}
        self._until: dict[str, tuple[float, str]] = {}

    def failed(self, key: str, reason: str, *, is_foreseen: bool = True) -> float:
        """Record that `key` failed for `reason`; return the seconds until the next try."""
        most = RETRY_MOST_S if is_foreseen else RETRY_UNFORESEEN_MOST_S
        with self._guard:
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            seconds = min(most, RETRY_FIRST_S * float(1 << min(tries - 1, 20)))
            self._until[key] = (time.monotonic() + seconds, reason)
            return seconds

    def succeeded(self, key: str) -> None:
        """Forget that `key` ever failed."""
        with self._guard:
            self._tries.pop(key, None)
            self._until.pop(key, None)

    def waits(self, key: str) -> str:
        """Return why `key` failed if it is too early to try again; else an empty reason."""
        with self._guard:
            until, reason = self._until.get(key, (0.0, ""))
        return reason if time.monotonic() < until else ""
