# SPDX-License-Identifier: Apache-2.0
"""
The boundary of jitgen's calls: it converts all errors to errors of jitgen, and provides enough
stack.

The compiler, the database and the file systems underneath raise exceptions of many types. A program
that catches `JitgenError` must catch all of these; only the program's own interrupts pass
unchanged.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from jitgen.errors import InternalError, JitgenError, ResourceError
from jitgen.support.failing import is_passing
from jitgen.support.text import printable

T = TypeVar("T")

_FRAMES = 500
"""Frames that compiling may take: the compiler walks sources recursively."""


@contextmanager
def boundary(what: str) -> Iterator[None]:
    """
    Convert any exception of the with block, which does `what`, to an error of jitgen.

    An exception that a signal handler of the program raised passes unchanged, because the program
    expects it.

    Raises:
        ResourceError: Memory, stack, descriptors or disk ran out.
        InternalError: Any other exception: a bug of jitgen or of what it calls.
    """
    try:
        yield
    except JitgenError:
        raise
    except Exception as error:
        if is_from_handler(error):
            raise
        raise _translated(what, error) from error


def _translated(what: str, error: Exception) -> JitgenError:
    """Return the error of jitgen's for `error`."""
    if is_passing(error):
        return ResourceError(f"{what}: {describe(error)}")
    place = "" if isinstance(error, OSError) else f" ({_place(error)})"  # it names a file itself
    return InternalError(f"{what}: {describe(error)}{place}")


def is_from_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised `error`, as an alarm that limits the time does."""
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers if callable(handler)}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def describe(error: Exception) -> str:
    """Return the type and message of `error` in one line."""
    try:
        text = printable(" ".join(str(error).split()))
    except Exception:  # its own __str__ fails
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception) -> str:
    """Return module and line of the innermost frame of jitgen's."""
    place, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("jitgen.") or not place:
            place = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def on_fresh_stack(work: Callable[[], T]) -> T:
    """
    Call `work` and return its result; in a new thread if this thread's stack is nearly full.

    Python limits the frames of a thread, and the compiler recurses. Near the limit it would fail,
    and the cache would take a good entry for one that cannot be parsed.
    """
    frames, frame = 0, sys._getframe().f_back
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    if frames < sys.getrecursionlimit() - _FRAMES:
        return work()
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # raised again below, in the caller's thread
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="jitgen-stack")
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"the stack is deep and no thread can be started: {error}") from error
    thread.join()
    result, raised = outcome[0]
    if raised is not None:
        raise raised
    return cast("T", result)
