# SPDX-License-Identifier: Apache-2.0
"""
The edge of jitgen: what leaves it is an error of its own, and what enters it finds room to work.

Underneath lie a compiler, a database and file systems, which raise whatever they like. A program
that catches `JitgenError` must have caught everything but its own interrupts.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from jitgen.errors import InternalError, JitgenError, ResourceError

T = TypeVar("T")

_SCARCE = frozenset(
    {
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT),
        *(errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR),
    }
)
_FRAMES = 500
"""Frames that compiling may take: the compiler walks sources recursively."""


@contextmanager
def boundary(what: str) -> Iterator[None]:
    """
    Let nothing but errors of jitgen's leave the with block, which does `what`.

    Raises:
        ResourceError: Memory, stack, descriptors or disk ran out.
        InternalError: Something that nobody foresaw.
    """
    try:
        yield
    except JitgenError:
        raise
    except (MemoryError, RecursionError) as error:
        raise ResourceError(f"{what}: {_words(error)}") from error
    except OSError as error:
        kind = ResourceError if error.errno in _SCARCE else InternalError
        raise kind(f"{what}: {_words(error)}") from error
    except Exception as error:  # whatever lies underneath: its own words, and where it was
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is imported elsewhere
            raise ResourceError(f"{what}: {_words(error)}") from error
        raise InternalError(f"{what}: {_words(error)} ({_place(error)})") from error


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception) -> str:
    """Return file and line of the innermost frame of ours."""
    place, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("jitgen.") or not place:
            place = f"{module}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def with_room(work: Callable[[], T]) -> T:
    """
    Return what `work` returns, called with an empty stack if this thread's is deep.

    Python limits the frames of a thread. A caller who has used most of them would see the compiler
    fail, and the cache take a good entry for one that cannot be parsed.
    """
    frames, frame = 0, sys._getframe().f_back
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    if frames < sys.getrecursionlimit() - _FRAMES:
        return work()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((work(), None))
        except BaseException as error:  # it is the caller's, on the caller's thread
            outcome.extend((None, error))

    thread = threading.Thread(target=run, name="jitgen-room")
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"the stack is deep and no thread can be started: {error}") from error
    thread.join()
    result, raised = outcome
    if raised is not None:
        raise raised
    return cast("T", result)
