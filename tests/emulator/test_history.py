# SPDX-License-Identifier: Apache-2.0
"""
Vector clocks and the history of a memory: races between warps are found, ordered accesses are not.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitgen.emulator.machine.access import READ, RELAXED_READ, RELAXED_WRITE, WRITE, Access
from jitgen.emulator.machine.clocks import AsyncUnit, Clocks
from jitgen.emulator.machine.history import History

ALL = slice(0, 64)


class Scene:
    """Four warps, a memory of 1024 granules and the findings."""

    def __init__(self) -> None:
        self.clocks = Clocks()
        self.warps = [self.clocks.agent(f"warp {i}") for i in range(4)]
        self.history = History(self.clocks, 1024, lambda granule: f"granule {granule}")
        self.findings: list[tuple[str, str]] = []
        program = SimpleNamespace(place=lambda at: f"line {at}")
        self.fragment: Any = SimpleNamespace(
            machine=SimpleNamespace(program=program),
            warn=lambda at, kind, message: self.findings.append((kind, message)),
        )

    def access(self, warp: int, kind: str, granules: Any = ALL, at: int = 7) -> None:
        """Let one warp access granules."""
        agent = self.warps[warp]
        access = Access(kind, agent, self.clocks.now(agent), agent)
        self.history.access(self.fragment, at, granules, access)

    def hand_over(self, giver: int, taker: int) -> None:
        """Let one warp release and another acquire."""
        clock = self.clocks.release(np.array([self.warps[giver]]))
        self.clocks.acquire(self.warps[taker], clock)

    def is_silent(self) -> bool:
        return not self.findings


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(("first", "second"), [(WRITE, WRITE), (WRITE, READ), (READ, WRITE)])
@pytest.mark.parametrize("granules", [ALL, np.array([5, 3, 700])])
class TestTwoWarps:
    def test_unordered_accesses_are_a_race(
        self, scene: Scene, first: str, second: str, granules: Any
    ) -> None:
        scene.access(0, first, granules, at=11)
        scene.access(1, second, granules, at=12)
        ((kind, message),) = scene.findings
        assert kind == "race"
        place = "granule 0" if isinstance(granules, slice) else "granule 5"
        assert message.startswith(f"{second} of {place} by warp 1 is not ordered after the {first}")
        assert message.endswith("by warp 0\n  at line 11")

    def test_release_and_acquire_order_them(
        self, scene: Scene, first: str, second: str, granules: Any
    ) -> None:
        scene.access(0, first, granules)
        scene.hand_over(0, 1)
        scene.access(1, second, granules)
        assert scene.is_silent()

    def test_a_release_before_the_access_is_too_early(
        self, scene: Scene, first: str, second: str, granules: Any
    ) -> None:
        scene.hand_over(0, 1)
        scene.access(0, first, granules)
        scene.access(1, second, granules)
        assert len(scene.findings) == 1

    def test_order_is_transitive(
        self, scene: Scene, first: str, second: str, granules: Any
    ) -> None:
        scene.access(0, first, granules)
        for giver, taker in ((0, 2), (2, 3), (3, 1)):
            scene.hand_over(giver, taker)
        scene.access(1, second, granules)
        assert scene.is_silent()

    def test_one_warp_is_ordered_with_itself(
        self, scene: Scene, first: str, second: str, granules: Any
    ) -> None:
        scene.access(0, first, granules)
        scene.access(0, second, granules)
        assert scene.is_silent()


def test_readers_do_not_race(scene: Scene) -> None:
    for warp in range(4):
        scene.access(warp, READ)
    assert scene.is_silent()


def test_a_write_must_know_every_reader(scene: Scene) -> None:
    scene.access(0, READ, at=20)
    scene.access(1, READ, at=21)
    scene.hand_over(1, 2)
    scene.access(2, WRITE)
    ((_, message),) = scene.findings
    assert "the read by warp 0\n  at line 20" in message


def test_other_granules_of_the_same_page_do_not_race(scene: Scene) -> None:
    scene.access(0, READ, slice(0, 8))
    scene.access(0, WRITE, np.array([8, 9]))
    scene.access(1, WRITE, slice(10, 16))
    scene.access(1, WRITE, np.array([17, 30]))
    assert scene.is_silent()


def test_what_is_ordered_after_a_write_is_ordered_after_what_the_write_knew(
    scene: Scene,
) -> None:
    """A copy tells its waiters that it is over, but not what its issuer knew."""
    copies = scene.clocks.agent("copies")
    scene.access(0, READ)
    scene.hand_over(0, 1)
    scene.history.write(scene.fragment, 3, ALL, copies, 1, scene.warps[1])
    scene.clocks.learn(scene.warps[2], copies, 1)
    scene.access(2, WRITE)
    assert scene.is_silent()


def test_threads_of_several_warps_in_one_instruction(scene: Scene) -> None:
    agents = np.repeat(np.array(scene.warps), 32)
    epochs = scene.clocks.vector[agents, agents]
    own = np.arange(128)
    scene.history.write(scene.fragment, 1, own, agents, epochs, agents)
    scene.history.read(scene.fragment, 2, own, agents, epochs, agents)
    assert scene.is_silent()
    scene.history.read(scene.fragment, 3, own[::-1], agents, epochs, agents)
    assert len(scene.findings) == 1
    scene.clocks.acquire(np.array(scene.warps), scene.clocks.release(np.array(scene.warps)))
    scene.history.write(scene.fragment, 4, own // 64, agents, epochs + 1, agents)
    ((_, message),) = scene.findings[1:]
    assert message.startswith("write of granule 0 by warp 0 is not ordered after the write by warp")


def test_each_thread_must_know_the_readers_of_its_own_granule(scene: Scene) -> None:
    agents = np.repeat(np.array(scene.warps), 8)
    epochs = scene.clocks.vector[agents, agents]
    own = np.arange(32)
    scene.history.read(scene.fragment, 1, own, agents, epochs, agents)
    scene.history.write(scene.fragment, 2, own, agents, epochs, agents)
    assert scene.is_silent()
    scene.history.read(scene.fragment, 3, own, agents, epochs, agents)
    scene.history.write(scene.fragment, 4, np.roll(own, 1), agents, epochs, agents)
    assert len(scene.findings) == 1


class TestAsyncUnits:
    def test_reads_of_a_unit_end_when_its_warp_waited(self, scene: Scene) -> None:
        unit = AsyncUnit(scene.clocks.agent("unit"))
        warp = scene.warps[0]
        scene.history.read(scene.fragment, 1, ALL, unit.agent, unit.epoch(), warp)
        unit.commit()
        scene.history.read(scene.fragment, 2, slice(64, 128), unit.agent, unit.epoch(), warp)
        unit.commit()
        unit.complete(scene.clocks, warp, keep=1)
        scene.access(0, WRITE, ALL)
        assert scene.is_silent()
        scene.access(0, WRITE, slice(64, 128))
        assert len(scene.findings) == 1

    def test_the_wait_of_one_warp_is_handed_on(self, scene: Scene) -> None:
        unit = AsyncUnit(scene.clocks.agent("unit"))
        scene.history.read(scene.fragment, 1, ALL, unit.agent, unit.epoch(), scene.warps[0])
        unit.commit()
        unit.complete(scene.clocks, scene.warps[0], keep=0)
        scene.hand_over(0, 1)
        scene.access(1, WRITE)
        assert scene.is_silent()

    def test_a_unit_must_be_ordered_after_its_data(self, scene: Scene) -> None:
        copies = scene.clocks.agent("copies")
        scene.history.write(scene.fragment, 1, ALL, copies, 1, scene.warps[0])
        unit = AsyncUnit(scene.clocks.agent("unit"))
        scene.history.read(scene.fragment, 2, ALL, unit.agent, unit.epoch(), scene.warps[1])
        assert len(scene.findings) == 1

    def test_units_that_read_together(self, scene: Scene) -> None:
        units = np.array([scene.clocks.agent(f"unit {i}") for i in range(4)])
        warps = np.array(scene.warps)
        joint = Access(READ, units, np.ones(4, np.int64), warps, is_joint=True)
        scene.history.access(scene.fragment, 1, np.arange(0, 64, 2), joint)
        for i in range(4):
            scene.clocks.learn(scene.warps[0], int(units[i]), int(i != 2))
        scene.access(0, WRITE, slice(1, 2))
        assert scene.is_silent()
        scene.access(0, WRITE, slice(0, 64))
        ((_, message),) = scene.findings
        assert "write of granule 0 by warp 0" in message
        assert "the read by unit 2" in message

    def test_one_of_several_that_read_together_may_not_know_the_data(self, scene: Scene) -> None:
        scene.access(0, WRITE)
        scene.hand_over(0, 1)
        units = np.array([scene.clocks.agent(f"unit {i}") for i in range(3)])
        joint = Access(READ, units, np.ones(3, np.int64), np.array(scene.warps[:3]), is_joint=True)
        scene.history.access(scene.fragment, 1, ALL, joint)
        ((_, message),) = scene.findings
        assert "by unit 2 is not ordered" in message

    def test_deferred_work_is_done_when_it_is_waited_for(self) -> None:
        clocks = Clocks()
        warp, unit = clocks.agent("warp"), AsyncUnit(clocks.agent("unit"))
        done: list[int] = []
        for i in range(3):
            unit.defer(partial(done.append, i))
            unit.commit()
        unit.complete(clocks, warp, keep=2)
        assert done == [0]
        assert clocks.vector[warp, unit.agent] == 1
        unit.drain()
        assert done == [0, 1, 2]
        assert clocks.vector[warp, unit.agent] == 1


class TestRelaxedAccesses:
    def test_they_do_not_exclude_each_other(self, scene: Scene) -> None:
        for kind in (RELAXED_WRITE, RELAXED_READ, RELAXED_WRITE):
            for warp in range(4):
                scene.access(warp, kind)
        assert scene.is_silent()

    @pytest.mark.parametrize("relaxed", [RELAXED_READ, RELAXED_WRITE])
    @pytest.mark.parametrize("ordinary", [READ, WRITE])
    @pytest.mark.parametrize("is_relaxed_first", [False, True])
    def test_they_exclude_ordinary_ones(
        self, scene: Scene, relaxed: str, ordinary: str, is_relaxed_first: bool
    ) -> None:
        kinds = (relaxed, ordinary) if is_relaxed_first else (ordinary, relaxed)
        scene.access(0, kinds[0])
        scene.access(1, kinds[1])
        is_race = kinds not in {(RELAXED_READ, READ), (READ, RELAXED_READ)}
        assert bool(scene.findings) is is_race

    def test_an_initial_write_stays_known(self, scene: Scene) -> None:
        """The initialising warp also adds; the other still does not know of the initial write."""
        scene.access(0, WRITE)
        scene.access(0, RELAXED_WRITE)
        scene.access(1, RELAXED_WRITE)
        assert len(scene.findings) == 1


class TestFences:
    def test_a_relaxed_release_hands_on_what_was_known_at_the_fence(self, scene: Scene) -> None:
        giver = np.array([scene.warps[0]])
        scene.access(0, WRITE, slice(0, 8))
        scene.clocks.fence(giver)
        scene.access(0, WRITE, slice(8, 16))
        scene.clocks.acquire(scene.warps[1], scene.clocks.released_by_fence(giver))
        scene.access(1, READ, slice(0, 8))
        assert scene.is_silent()
        scene.access(1, READ, slice(8, 16))
        assert len(scene.findings) == 1

    def test_a_relaxed_load_acquires_at_the_next_fence(self, scene: Scene) -> None:
        scene.access(0, WRITE)
        clock = scene.clocks.release(np.array([scene.warps[0]]))
        for warp in (1, 2):
            scene.clocks.observe(scene.warps[warp], clock)
        scene.clocks.fence(np.array([scene.warps[1]]))
        scene.access(1, READ)
        assert scene.is_silent()
        scene.access(2, READ)
        assert len(scene.findings) == 1


class TestProxyFences:
    def read(self, scene: Scene, warp: int) -> list[str]:
        """Let a unit of a warp read all; return the kinds of the findings."""
        agent = scene.clocks.agent("unit")
        access = Access(READ, agent, 1, scene.warps[warp], is_async=True)
        scene.history.access(scene.fragment, 9, ALL, access)
        return [kind for kind, _ in scene.findings]

    def test_no_fence_is_found(self, scene: Scene) -> None:
        scene.clocks.give_shadow(scene.warps[0])
        scene.access(0, WRITE)
        scene.hand_over(0, 1)
        assert self.read(scene, 1) == ["proxy"]

    def test_a_fence_of_the_writer(self, scene: Scene) -> None:
        scene.clocks.give_shadow(scene.warps[0])
        scene.access(0, WRITE)
        scene.clocks.fence_proxy(np.array([scene.warps[0]]))
        scene.hand_over(0, 1)
        assert self.read(scene, 1) == []

    def test_a_fence_of_the_reader(self, scene: Scene) -> None:
        scene.clocks.give_shadow(scene.warps[0])
        scene.access(0, WRITE)
        scene.hand_over(0, 1)
        scene.clocks.fence_proxy(np.array([scene.warps[1]]))
        assert self.read(scene, 1) == []

    def test_a_fence_before_the_write_is_too_early(self, scene: Scene) -> None:
        scene.clocks.give_shadow(scene.warps[0])
        scene.clocks.fence_proxy(np.array([scene.warps[0]]))
        scene.access(0, WRITE)
        scene.hand_over(0, 1)
        assert self.read(scene, 1) == ["proxy"]

    def test_what_is_not_ordered_is_a_race_and_nothing_else(self, scene: Scene) -> None:
        scene.clocks.give_shadow(scene.warps[0])
        scene.access(0, WRITE)
        assert self.read(scene, 1) == ["race"]

    def test_writes_of_copies_need_no_fence(self, scene: Scene) -> None:
        copies = scene.clocks.agent("copies")
        scene.history.write(scene.fragment, 1, ALL, copies, 1, scene.warps[0])
        scene.clocks.learn(scene.warps[1], copies, 1)
        assert self.read(scene, 1) == []


def test_many_agents_and_groups(scene: Scene) -> None:
    """More than there is room for at first."""
    late = [scene.clocks.agent(f"late {i}") for i in range(100)]
    for agent in late:
        scene.history.read(scene.fragment, 1, ALL, agent, 1, agent)
    scene.clocks.acquire(scene.warps[0], scene.clocks.release(np.array(late[:-1])))
    scene.access(0, WRITE)
    ((_, message),) = scene.findings
    assert "the read by late 99" in message


def test_nothing_is_noted_when_switched_off(scene: Scene) -> None:
    scene.history.is_checked = False
    scene.access(0, WRITE)
    scene.access(1, WRITE)
    assert scene.is_silent()
