# SPDX-License-Identifier: Apache-2.0
"""Several units that each read granules of their own, noted at once: the same as one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.machine.access import READ, RELAXED_WRITE, WRITE, Access
from jitgen.emulator.machine.clocks import Clocks
from jitgen.emulator.machine.history import History
from jitgen.emulator.machine.lazy_zeros import lazy_zeros

PARTS = [slice(0, 300), slice(300, 600)]


class Scene:
    """A warp that writes, two that read by a unit each, and a memory of 1024 granules."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.writer, *self.rows = (self.clocks.agent(f"warp {i}") for i in range(3))
        self.units = tuple(self.clocks.agent(f"unit {i}") for i in range(2))
        self.history = History(self.clocks, 1024, str)
        self.fragment: Any = None  # a warning fails

    def write(self, granules: slice = slice(0, 600), kind: str = WRITE) -> None:
        access = Access(kind, self.writer, self.clocks.now(self.writer), self.writer)
        self.history.access(self.fragment, 1, granules, access)

    def tell(self, *numbers: int) -> None:
        clock = self.clocks.release(np.array([self.writer]))
        for number in numbers:
            self.clocks.acquire(self.rows[number], clock)

    def read(self) -> bool:
        return self.history.read_apart(2, PARTS, self.units, (1, 1), np.array(self.rows))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_is_in_order_is_noted(scene: Scene) -> None:
    scene.write()
    scene.tell(0, 1)

    assert scene.read()

    readers = scene.history.readers
    assert [group.agent for group in readers.groups] == list(scene.units)
    for plane, part in enumerate(PARTS):
        read = np.flatnonzero(readers.stamps(plane, slice(0, 1024)))
        assert np.array_equal(read, np.arange(part.start, part.stop))
    assert readers.on(slice(0, 200)).keys() == {0}
    assert readers.on(slice(590, 600)).keys() == {1}


@pytest.mark.parametrize("known_to", [(), (0,), (1,)])
def test_a_write_that_one_does_not_know_is_left_to_access(
    scene: Scene, known_to: tuple[int, ...]
) -> None:
    scene.write()
    scene.tell(*known_to)

    assert not scene.read()
    assert not scene.history.readers.groups


def test_different_writes_are_left_to_access(scene: Scene) -> None:
    scene.write()
    scene.tell(0, 1)
    scene.write(slice(599, 600))

    assert not scene.read()


@pytest.mark.parametrize("is_fenced", [False, True])
def test_ordinary_writes_need_a_fence(scene: Scene, is_fenced: bool) -> None:
    scene.clocks.give_shadow(scene.writer)
    scene.write()
    if is_fenced:
        scene.clocks.fence_proxy(np.array([scene.writer]))
    scene.tell(0, 1)

    assert scene.read() == is_fenced


def test_relaxed_writes_are_left_to_access(scene: Scene) -> None:
    scene.write(slice(700, 701), RELAXED_WRITE)

    assert not scene.read()


def test_reads_do_not_count(scene: Scene) -> None:
    access = Access(READ, scene.writer, 1, scene.writer)
    scene.history.access(scene.fragment, 1, slice(0, 600), access)

    assert scene.read()


def test_room_holds_zeros_and_is_its_owners() -> None:
    first, second = (lazy_zeros((3, 5), np.int32) for _ in range(2))
    first += 1

    assert first.sum() == 15
    assert not second.any()
    assert lazy_zeros((0, 5), np.int32).shape == (0, 5)
