# SPDX-License-Identifier: Apache-2.0
"""The edge of jitgen: whose errors leave it, how deep a caller may stand, when to try again."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from jitgen.errors import (
    CompileTimeout,
    InternalError,
    JitgenError,
    KernelMiss,
    ResourceError,
    UnsafeCacheRoot,
)
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.session import current
from jitgen.support import failing
from jitgen.support.boundary import boundary, on_fresh_stack
from jitgen.support.failing import Backoff
from jitgen.support.text import printable

T = TypeVar("T")

TESTS_LEAVE = 60  # frames that pytest and this module's own helpers take at most


class OutOfMemoryError(RuntimeError):
    """Stands for torch's, which is known by its name."""


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/some/file")


class TestBoundary:
    """``except JitgenError`` used to let through whatever a database or a compiler raises."""

    @pytest.mark.parametrize(
        "error",
        [
            PermissionError(errno.EACCES, "Permission denied", "/some/file"),
            FileNotFoundError(errno.ENOENT, "No such file"),
            os_error(errno.ELOOP),
            RuntimeError("two\nlines"),
            SystemError("bad argument to internal function"),
            KeyError("no such key"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            StopIteration(),
            ExceptionGroup("several", [ValueError("one")]),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_unforeseen_errors(self, error: Exception) -> None:
        with pytest.raises(InternalError) as caught, boundary("doing this"):
            raise error

        text = str(caught.value)
        assert text.startswith(f"doing this: {type(error).__name__}")
        assert len(text.splitlines()) == 1
        assert caught.value.__cause__ is error

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RecursionError("maximum recursion depth exceeded"),
            OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
            *(os_error(number) for number in (errno.EAGAIN, errno.EMFILE, errno.ENFILE)),
            *(os_error(number) for number in (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)),
            *(os_error(number) for number in (errno.EIO, errno.EROFS, errno.ESTALE)),
        ],
        ids=lambda error: f"{type(error).__name__} {getattr(error, 'errno', '')}",
    )
    def test_what_ran_out(self, error: Exception) -> None:
        """It may be there again a moment later, which is no mistake of anybody's."""
        with pytest.raises(ResourceError) as caught, boundary("doing this"):
            raise error

        assert str(caught.value).startswith("doing this: ")
        assert len(str(caught.value).splitlines()) == 1
        assert caught.value.__cause__ is error

    @pytest.mark.parametrize(
        "error",
        [
            JitgenError("plain"),
            KernelMiss("name", "not compiled"),
            CompileTimeout("a TimeoutError too"),
            UnsafeCacheRoot("a PermissionError too"),
            KeyboardInterrupt(),
            SystemExit(3),
            GeneratorExit(),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_what_passes(self, error: BaseException) -> None:
        """Errors of jitgen's, also those that are an OSError, and what is meant for the program."""
        with pytest.raises(type(error)) as caught, boundary("outer"), boundary("inner"):
            raise error

        assert caught.value is error
        assert caught.value.__cause__ is None

    def test_the_innermost_words_stay(self) -> None:
        """What is translated once is not translated again."""
        with (
            pytest.raises(InternalError, match=r"^inner: ValueError: x ") as caught,
            boundary("outer"),
            boundary("inner"),
        ):
            raise ValueError("x")

        assert "outer" not in str(caught.value)

    def test_it_names_the_place(self) -> None:
        """A message without a place sent people to the traceback, which logs cut off."""
        place = r"\(jitgen\.support\.text:\d+\)$"
        with pytest.raises(InternalError, match=place), boundary("printing"):
            printable(3)  # type: ignore[arg-type]

    def test_nothing_happens(self) -> None:
        with boundary("doing this"):
            result = 3

        assert result == 3


def depth_here() -> int:
    depth, frame = 0, sys._getframe().f_back
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def deep(work: Callable[[], T], left: int) -> T:
    """Call `work` from where only some `left` frames are left of the stack."""
    if depth_here() < sys.getrecursionlimit() - left:
        return deep(work, left)
    return work()


def needs(frames: int) -> int:
    """Take that many frames, as the compiler does when it walks a source."""
    return 0 if not frames else 1 + needs(frames - 1)


class TestWithRoom:
    """
    A caller deep in the stack made the compiler fail with RecursionError, which was remembered as a
    failure of the kernel's for 24 hours.
    """

    @pytest.mark.parametrize("left", [TESTS_LEAVE, 200, 450])
    def test_a_deep_caller(self, left: int) -> None:
        with pytest.raises(RecursionError):
            deep(lambda: needs(480), left)

        assert deep(lambda: on_fresh_stack(lambda: needs(480)), left) == 480

    def test_a_shallow_caller_stays_on_its_thread(self) -> None:
        """A thread for each call would cost what it does not have to."""
        assert on_fresh_stack(threading.get_ident) == threading.get_ident()
        assert deep(lambda: on_fresh_stack(threading.get_ident), 100) != threading.get_ident()

    @pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
    def test_errors_come_back(self, error: BaseException) -> None:
        """What is raised in the other thread used to be printed there, and the caller got None."""

        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            deep(lambda: on_fresh_stack(fail), 100)

        assert caught.value is error

    def test_no_thread_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ResourceError, match=r"stack is deep .* can't start new thread"):
            deep(lambda: on_fresh_stack(lambda: 1), 100)

    def test_the_registry_asks_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All that is behind a miss gets the room: looking on the disk, compiling, loading."""
        from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile

        def serve(*_: object) -> str:
            return f"served after {needs(480)}"

        monkeypatch.setattr(KernelLoader, "_load", serve)
        config = GroupedGemmConfig(layout="ragged", tile=Tile(m=8, n=64, k=128))
        _ = current.get().loader

        assert deep(lambda: current.get().get_kernel(config, "cpu"), 200) == "served after 480"


class TestBackoff:
    """What failed for lack of memory used to be tried again with every call, or for a day never."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """A clock that stands."""
        clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr(failing, "time", SimpleNamespace(monotonic=lambda: clock.now))
        return clock

    def test_it_doubles_up_to_a_limit(self, clock: SimpleNamespace) -> None:
        subject = Backoff()

        assert [subject.failed("k", "no memory") for _ in range(9)] == [
            1,
            2,
            4,
            8,
            16,
            32,
            60,
            60,
            60,
        ]

    def test_a_thousand_failures(self, clock: SimpleNamespace) -> None:
        """A power of two of that many tries is no float any more."""
        subject = Backoff()

        assert {subject.failed("k", "no memory") for _ in range(2000)} == {1, 2, 4, 8, 16, 32, 60}

    def test_it_waits_and_says_why(self, clock: SimpleNamespace) -> None:
        subject = Backoff()
        subject.failed("k", "no memory")
        clock.now += 0.9
        early = subject.waits("k")
        clock.now += 0.2

        assert (early, subject.waits("k")) == ("no memory", "")
        subject.failed("k", "no disk")
        clock.now += 1.9
        assert subject.waits("k") == "no disk"

    def test_keys_are_independent(self, clock: SimpleNamespace) -> None:
        subject = Backoff()
        subject.failed("k", "no memory")
        subject.failed("k", "no memory")

        assert subject.waits("other") == ""
        assert subject.failed("other", "no memory") == 1

    def test_success_forgets(self, clock: SimpleNamespace) -> None:
        """A kernel that failed an hour ago is no worse than others."""
        subject = Backoff()
        for _ in range(5):
            subject.failed("k", "no memory")
        subject.succeeded("k")
        subject.succeeded("never failed")

        assert subject.waits("k") == ""
        assert subject.failed("k", "no memory") == 1
