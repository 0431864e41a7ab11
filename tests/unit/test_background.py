# SPDX-License-Identifier: Apache-2.0
"""Compiling in the background, with workers that only pretend."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jitgen
from jitgen.cache import Entry, Store
from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import ArtifactError, CacheError, CompileError, ToolchainError
from jitgen.events import Event, EventKind
from jitgen.runtime import background as module
from jitgen.runtime.background import Background
from jitgen.runtime.spec import key
from jitgen.runtime.tiers import Tiers
from jitgen.support import failing
from tests.chaos.kernels import CONFIGS, fill, prebuilt

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=8, n=32, k=128))
OTHER = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=16, n=32, k=128))
NO = {"kind": "refused", "error": "no"}


class Fake:
    """Stands in for `workers.run`: each task ends as `answers` says, when `gate` is open."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()

    def run(
        self, function: str, tasks: Sequence[Any], *, jobs: int, timeout_s: float, stop: Any
    ) -> Iterator[Outcome]:
        (task,) = tasks
        self.requests.append({**task, "jobs": jobs, "timeout_s": timeout_s})
        assert self.gate.wait(10)
        if stop.is_set:
            return
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        yield Outcome(task=task, index=0, kind=OutcomeKind.OK, result=answer)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(workers, "run", found.run)
    return found


@pytest.fixture
def subject(cache_root: Path) -> Background:
    def deliver(*_: object) -> None:
        pytest.fail("there is nothing to deliver")

    return Background(Tiers(Store.open(cache_root)), deliver)


def settle(subject: Background) -> None:
    thread = subject._thread
    if thread is not None:
        thread.join(10)
        assert not thread.is_alive()


def asked(fake: Fake) -> list[int]:
    """Heights of the tiles that workers were asked for."""
    return [GroupedGemmConfig.from_json(request["config"]).tile.m for request in fake.requests]


def test_one_kernel_after_another(fake: Fake, subject: Background) -> None:
    """In the order in which they were wanted, each once, by one process at a time."""
    fake.answers = [NO, NO]
    fake.gate.clear()
    for config in (CONFIG, OTHER, CONFIG, OTHER):
        subject.want(config, Arch.CPU)
    assert asked(fake) in ([], [8])
    fake.gate.set()
    settle(subject)

    assert asked(fake) == [8, 16]
    assert {request["jobs"] for request in fake.requests} == {1}


def test_settings_count_as_they_were(fake: Fake, subject: Background) -> None:
    fake.answers = [NO]
    with jitgen.settings.scope(compile_timeout=7):
        fake.gate.clear()
        subject.want(CONFIG, Arch.CPU)
    fake.gate.set()
    settle(subject)

    assert fake.requests[0]["timeout_s"] == 7


def test_a_failure_is_told_once_and_left_alone(
    fake: Fake, subject: Background, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []
    stop = jitgen.on_event(heard.append)
    fake.answers = [{"kind": "refused", "error": "the compiler said no"}]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            subject.want(CONFIG, Arch.CPU)
            settle(subject)
    stop()

    assert asked(fake) == [8]
    assert caplog.text.count("the compiler said no") == 1
    assert [(e.kind, e.key, e.detail) for e in heard] == [
        (EventKind.ERROR, key(CONFIG, Arch.CPU), "the compiler said no")
    ]


def test_a_failure_expires(fake: Fake, subject: Background) -> None:
    fake.answers = [NO, NO]
    with jitgen.settings.scope(failure_ttl=0):
        for _ in range(2):
            subject.want(CONFIG, Arch.CPU)
            settle(subject)

    assert asked(fake) == [8, 8]


def test_no_process_can_be_started(
    fake: Fake,
    subject: Background,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What is lacking now may be there in some seconds: it is tried again, after the others. EAGAIN
    used to mean a day without that kernel.
    """
    monkeypatch.setattr(failing, "RETRY_FIRST_S", 0.2)
    fake.answers = [BlockingIOError(11, "Resource temporarily unavailable"), NO, NO]
    fake.gate.clear()
    subject.want(CONFIG, Arch.CPU)
    subject.want(OTHER, Arch.CPU)
    fake.gate.set()
    settle(subject)

    assert "Resource temporarily unavailable" in caplog.text
    assert asked(fake) == [8, 16, 8], "the next one is tried"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files", "/some/file"),
        OSError(errno.ENFILE, "Too many open files in system"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libMLIR.so: cannot open shared object file: Too many open files"),
        ToolchainError("the compiler cannot be imported"),
        CacheError("the disk does not answer"),
        ArtifactError("it cannot be loaded"),
        CompileError("name", "it is not certain"),
        ZeroDivisionError("by zero"),
    ],
    ids=lambda error: f"{type(error).__name__} {str(error)[:12]}",
)
def test_what_is_not_certain_is_tried_again(
    fake: Fake,
    subject: Background,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """
    Only the compiler's refusal lasts. Whatever else was raised, no descriptors or no memory among
    it, used to leave the kernel alone for a day.
    """
    monkeypatch.setattr(failing, "RETRY_FIRST_S", 0.05)
    fake.answers = [error, error, NO]
    subject.want(CONFIG, Arch.CPU)
    settle(subject)

    assert asked(fake) == [8, 8, 8]
    assert "trying again in 0.05 s" in caplog.text
    assert not subject._pending


def test_what_cannot_be_delivered_is_tried_again(
    cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptors were left to load what had been compiled: it used to wait for a day, too."""
    monkeypatch.setattr(failing, "RETRY_FIRST_S", 0.05)
    prebuilt()
    store = fill(cache_root, 1)
    tries: list[str] = []

    def deliver(_: object, __: object, entry: Entry, tier: str) -> None:
        tries.append(tier)
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")

    subject = Background(Tiers(store), deliver)
    subject.want(CONFIGS[0], Arch.CPU)
    settle(subject)

    assert tries == ["disk"] * 3


def test_a_refusal_lasts_as_long_as_the_store_remembers_it(
    fake: Fake, subject: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """`jitgen cache rm` used to have no effect on a process that had heard of the refusal."""
    index = subject._tiers.store.index
    index.remember_failure(key(CONFIG, Arch.CPU), "it", "the compiler said no", 60)
    fake.answers = [NO]
    for _ in range(2):
        subject.want(CONFIG, Arch.CPU)
        settle(subject)
    assert asked(fake) == []
    assert caplog.text.count("the compiler said no") == 1
    index.forget_failure(key(CONFIG, Arch.CPU))
    subject.want(CONFIG, Arch.CPU)
    settle(subject)

    assert asked(fake) == [8]


class NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_no_thread_can_be_started(
    fake: Fake,
    subject: Background,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    What is wanted stays wanted, and the next call tries again, some seconds later: it used to be
    dropped, and launches that awaited it served with the neighbour for good.
    """
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(failing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module.threading, "Thread", NoThread)
    subject.want(CONFIG, Arch.CPU)
    assert subject.is_stalled
    monkeypatch.undo()
    monkeypatch.setattr(failing, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(workers, "run", fake.run)
    fake.answers = [NO, NO]
    subject.want(CONFIG, Arch.CPU)
    assert subject._thread is None, "it is too early"
    clock.now += 2
    subject.want(OTHER, Arch.CPU)
    settle(subject)

    assert "can't start new thread" in caplog.text
    assert asked(fake) == [8, 16]
    assert not subject.is_stalled
    assert not subject._pending


def test_a_surprise_does_not_end_it(
    fake: Fake,
    subject: Background,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unforeseen error is reported, and what is queued is compiled all the same."""
    monkeypatch.setattr(failing, "RETRY_FIRST_S", 0.2)
    fake.answers = [ZeroDivisionError("by zero"), NO, NO]
    fake.gate.clear()
    subject.want(CONFIG, Arch.CPU)
    subject.want(OTHER, Arch.CPU)
    fake.gate.set()
    settle(subject)

    assert asked(fake) == [8, 16, 8]
    assert "ZeroDivisionError: by zero" in caplog.text
    assert not subject._pending


def test_closing_ends_what_is_under_way(
    fake: Fake, subject: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """Silently: no call waits for it any more."""
    fake.gate.clear()
    subject.want(CONFIG, Arch.CPU)
    subject.want(OTHER, Arch.CPU)
    threading.Timer(0.1, fake.gate.set).start()
    subject.close()
    subject.want(OTHER, Arch.CPU)

    assert asked(fake) in ([], [8])
    assert not subject._pending
    assert not caplog.text
