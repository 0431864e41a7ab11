# SPDX-License-Identifier: Apache-2.0
"""
How much time places elsewhere may cost.

A kernel takes seconds to compile, so there is little to win by patience. 250 ms to connect and one
second to answer are enough for a place that is of any use, and nothing is tried twice. What brought
nothing is added up: after five seconds in a minute a process goes on without, whatever the reason.
What brought a kernel costs nothing, for compiling it would have taken longer, and neither does a
quick answer that it is not there: a prewarm may have to hear hundreds of them.

Everything that waits for a place does so on a thread of its own, which is left behind when the time
is over: resolving a name has no limit of its own, and an answer can come one byte at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar, cast

from jitgen.remote.outcomes import LocalFailure, Unreachable

T = TypeVar("T")

CONNECT_S = 0.25
ANSWER_S = 1.0
FETCH_S = CONNECT_S + ANSWER_S
"""For one entry, in however many requests."""

PUSH_S = 60.0
"""For one entry that a command puts somewhere: there somebody waits for just that."""

QUICK_S = 0.1
"""What an answer that a kernel is not there may take without counting."""

SPENT_S = 5.0
WINDOW_S = 60.0


class Allowance:
    """What this process has spent lately on fetches that brought nothing."""

    def __init__(self) -> None:
        self._spent: deque[tuple[float, float]] = deque(maxlen=1000)

    def spend(self, seconds: float) -> None:
        """Add `seconds`, from now."""
        self._spent.append((time.monotonic(), seconds))

    def is_spent(self) -> bool:
        """Return whether there is nothing left."""
        since = time.monotonic() - WINDOW_S
        return sum(spent for at, spent in list(self._spent) if at > since) >= SPENT_S


allowance = Allowance()
"""That of this process, over all places."""


def within(seconds: float, work: Callable[[], T], cancel: Callable[[], object]) -> T:
    """
    Return what `work` returns, or raise what it raises, if it takes at most `seconds`.

    Args:
        seconds: How long to wait for it.
        work: Called on another thread, in a copy of this context.
        cancel: Called when the time is over, to end what `work` waits for.

    Raises:
        Unreachable: The time is over.
        LocalFailure: No thread can be started.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((work(), None))
        except BaseException as error:  # it is the caller's, on the caller's thread
            outcome.extend((None, error))

    thread = threading.Thread(
        target=copy_context().run, args=(run,), name="jitgen-fetch", daemon=True
    )
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise LocalFailure(f"no thread can be started: {error}") from None
    thread.join(seconds)
    if len(outcome) != 2:
        cancel()
        raise Unreachable(f"no answer within {seconds:g} s")
    result, raised = outcome
    if raised is not None:
        raise raised
    return cast("T", result)
