# SPDX-License-Identifier: Apache-2.0
"""
Time limits of requests to remote backends.

A kernel takes seconds to compile, so waiting long does not pay. A useful backend connects within
250 ms and answers within one second, and no request is tried twice. The time of requests without a
kernel is added up: after five seconds in a minute a process stops fetching for a while, whatever
the reasons. Time that brought a kernel does not count, since compiling it would have taken longer.
Neither does a quick answer that the kernel is not there: a prewarm may get hundreds of those.

A request runs on a thread of its own, which is abandoned at the time limit: resolving a name has no
time limit, and an answer can come one byte at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar, cast

from jitgen.remote.outcomes import LocalFailure, Unreachable

T = TypeVar("T")

CONNECT_S = 0.25
ANSWER_S = 1.0
FETCH_S = CONNECT_S + ANSWER_S
"""Time limit in seconds for fetching one entry, all its requests together."""

PUSH_S = 60.0
"""Time limit in seconds for one entry that a command uploads: the user waits for nothing else."""

QUICK_S = 0.1
"""Seconds below which an answer that a kernel is not there costs no allowance."""

SPENT_S = 5.0
WINDOW_S = 60.0


class Allowance:
    """Time that this process recently spent on fetches without a result."""

    def __init__(self) -> None:
        self._spent: deque[tuple[float, float]] = deque(maxlen=1000)

    def spend(self, seconds: float) -> None:
        """Add `seconds` that have just been spent."""
        self._spent.append((time.monotonic(), seconds))

    def is_spent(self) -> bool:
        """Return whether `SPENT_S` was spent within the last `WINDOW_S`."""
        since = time.monotonic() - WINDOW_S
        return sum(spent for at, spent in list(self._spent) if at > since) >= SPENT_S


allowance = Allowance()
"""The allowance of this process, for all backends together."""


def within(seconds: float, work: Callable[[], T], cancel: Callable[[], object]) -> T:
    """
    Call `work` and return its result, or raise its error, within `seconds`.

    Args:
        seconds: Time limit in seconds.
        work: Called on another thread, in a copy of this context.
        cancel: Called at the time limit, to end what `work` waits for.

    Raises:
        Unreachable: The time limit was reached.
        LocalFailure: No thread can be started.
    """
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # raised again on the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(
        target=copy_context().run, args=(run,), name="jitgen-fetch", daemon=True
    )
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise LocalFailure(f"no thread can be started: {error}") from None
    thread.join(seconds)
    if not outcome:
        cancel()
        raise Unreachable(f"no answer within {seconds:g} s")
    result, raised = outcome[0]
    if raised is not None:
        raise raised
    return cast("T", result)
