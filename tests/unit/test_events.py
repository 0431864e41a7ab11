# SPDX-License-Identifier: Apache-2.0
"""Events reach listeners, are counted, and a broken listener stops nothing."""

from __future__ import annotations

import logging
import threading

import pytest

import jitgen
from jitgen.events import Event, EventBus, EventKind, warn_once


def test_listeners_and_counts() -> None:
    """A listener hears events until it is taken off; counters keep counting."""
    bus, heard = EventBus(), []
    stop = bus.listen(heard.append)
    bus.emit(Event(kind=EventKind.HIT, kernel="k", tier="disk"))
    stop()
    bus.emit(Event(kind=EventKind.MISS, kernel="k"))

    assert [event.kind for event in heard] == ["hit"]
    assert bus.counts() == {"hit.disk": 1, "miss": 1}


def test_a_broken_listener_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a monitor neither reaches the caller nor comes twice."""
    bus, calls = EventBus(), []

    def broken(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("monitor")

    bus.listen(broken)
    with caplog.at_level(logging.WARNING):
        bus.emit(Event(kind=EventKind.MISS))
        bus.emit(Event(kind=EventKind.MISS))

    assert len(calls) == 1
    assert "was dropped" in caplog.text


def test_the_public_name_listens_to_the_process() -> None:
    """`jitgen.on_event` hears what the library emits."""
    from jitgen.events import events

    heard: list[Event] = []
    stop = jitgen.on_event(heard.append)
    events.emit(Event(kind=EventKind.RENDER, kernel="k"))
    stop()

    assert heard[0].kernel == "k"


def test_warnings_come_once(caplog: pytest.LogCaptureFixture) -> None:
    """The same topic warns once in a process."""
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warn_once("test topic", "only %s", "once")

    assert caplog.text.count("only once") == 1


def emitted(number: int) -> Event:
    return Event(kind=EventKind.HIT, kernel=str(number))


class TestHeld:
    """Listeners used to run under the locks of the emitting thread, and deadlocked."""

    def test_until_the_lock_holder_lets_go(self) -> None:
        bus, heard, lock = EventBus(), list[str](), threading.Lock()
        was_free: list[bool] = []

        def listen(event: Event) -> None:
            was_free.append(lock.acquire(blocking=False))
            lock.release()
            heard.append(event.kernel)

        bus.listen(listen)
        with bus.held(), lock:
            bus.emit(emitted(1))
            with bus.held():
                bus.emit(emitted(2))
            assert heard == []

        assert heard == ["1", "2"]
        assert was_free == [True, True]

    def test_an_error_delivers_them_too(self) -> None:
        """The event that tells of a failure used to be the one that got lost."""
        bus, heard = EventBus(), list[Event]()
        bus.listen(heard.append)

        def fail() -> None:
            with bus.held():
                bus.emit(emitted(1))
                raise ValueError("failed")

        with pytest.raises(ValueError, match="failed"):
            fail()

        assert heard == [emitted(1)]

    def test_a_listener_that_emits_is_not_reentered(self) -> None:
        """A listener that causes events used to be called within itself, in another order."""
        bus, story = EventBus(), list[str]()

        def listen(event: Event) -> None:
            story.append(f"begin {event.kernel}")
            number = int(event.kernel)
            if number < 3:
                bus.emit(emitted(number + 1))
            story.append(f"end {event.kernel}")

        bus.listen(listen)
        bus.listen(lambda event: story.append(f"other {event.kernel}"))
        bus.emit(emitted(1))

        assert story == [f"{what} {n}" for n in (1, 2, 3) for what in ("begin", "end", "other")]

    def test_a_listener_that_asks_again(self) -> None:
        """A monitor that asked for the very kernel of which it was told used to deadlock."""
        bus, lock, asked = EventBus(), threading.Lock(), list[str]()

        def ask(name: str) -> None:
            with bus.held():
                assert lock.acquire(timeout=5), "the lock is still held"
                try:
                    bus.emit(Event(kind=EventKind.HIT, kernel=name))
                finally:
                    lock.release()

        def listen(event: Event) -> None:
            asked.append(event.kernel)
            if len(asked) < 3:
                ask(f"{event.kernel}+")

        bus.listen(listen)
        ask("k")

        assert asked == ["k", "k+", "k++"]

    def test_threads_are_independent(self) -> None:
        """What one thread holds back must not hold up another one's."""
        bus, heard = EventBus(), list[tuple[str, int]]()
        bus.listen(lambda event: heard.append((event.kernel, threading.get_ident())))
        with bus.held():
            bus.emit(emitted(1))
            thread = threading.Thread(target=lambda: bus.emit(emitted(2)))
            thread.start()
            thread.join()
            assert heard == [("2", thread.ident)]

        assert heard[1:] == [("1", threading.get_ident())]

    def test_without_a_listener(self) -> None:
        """An event without a listener is counted, and not kept for later listeners."""
        bus, heard = EventBus(), list[Event]()
        with bus.held():
            bus.emit(emitted(1))
            bus.listen(heard.append)

        assert heard == []
        assert bus.counts() == {"hit": 1}


class TestBrokenListeners:
    @pytest.mark.parametrize("error", [SystemExit(3), ValueError("x"), OSError()])
    def test_it_is_dropped_with_one_warning(
        self, caplog: pytest.LogCaptureFixture, error: BaseException
    ) -> None:
        """``sys.exit()`` in a monitor used to end the server that it watched."""
        bus, heard, calls = EventBus(), list[str](), list[Event]()

        def broken(event: Event) -> None:
            calls.append(event)
            raise error

        bus.listen(broken)
        bus.listen(lambda event: heard.append(event.kernel))
        with caplog.at_level(logging.WARNING), bus.held():
            bus.emit(emitted(1))
            bus.emit(emitted(2))
        bus.emit(emitted(3))

        assert len(calls) == 1
        assert heard == ["1", "2", "3"], "the others hear everything, in order"
        assert caplog.text.count("was dropped") == 1

    def test_an_interrupt_is_the_users(self) -> None:
        """Ctrl-C while a listener runs is not the listener's failure, and breaks nothing."""
        bus, heard = EventBus(), list[str]()
        interrupts = [KeyboardInterrupt()]

        def listen(event: Event) -> None:
            if interrupts:
                raise interrupts.pop()
            heard.append(event.kernel)

        bus.listen(listen)
        with pytest.raises(KeyboardInterrupt):
            bus.emit(emitted(1))
        bus.emit(emitted(2))

        assert heard == ["2"]


class TestWarnings:
    def test_escapes_are_harmless(self, caplog: pytest.LogCaptureFixture) -> None:
        """A name from an untrusted file used to reach the terminal with its escapes."""
        with caplog.at_level(logging.WARNING):
            warn_once("escapes", "entry %s: %s", "\x1b]0;title\x07", "a\u202eb\rc\x00")

        assert caplog.messages == ["entry \\x1b]0;title\\x07: a\\u202eb\\rc\\x00"]

    def test_percent_signs_are_no_format(self, caplog: pytest.LogCaptureFixture) -> None:
        """A path with a percent sign in it used to raise where the warning was logged."""
        with caplog.at_level(logging.WARNING):
            warn_once("percent", "100% of %d %s")
            warn_once("percent, in an argument", "%s", "%d%n")

        assert caplog.messages == ["100% of %d %s", "%d%n"]

    def test_many_threads_warn_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """The check and the note of it are one step."""
        barrier = threading.Barrier(8)

        def warn() -> None:
            barrier.wait()
            warn_once("threads", "once")

        threads = [threading.Thread(target=warn) for _ in range(8)]
        with caplog.at_level(logging.WARNING):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert caplog.messages == ["once"]
