# SPDX-License-Identifier: Apache-2.0
"""Events reach listeners, are counted, and a broken listener stops nothing."""

from __future__ import annotations

import logging

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
