# SPDX-License-Identifier: Apache-2.0
"""Fragments, their order, clusters, deadlocks and limits, with blocks written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitgen.emulator.machine.fragment import Fragment, Wait
from jitgen.emulator.modes import Mode
from jitgen.errors import Deadlock, MachineFault
from tests.emulator.program import BY_WARP, DEFERRED, EAGER, machine

Block = Callable[[Fragment], Any]


def recorder(outcome: Any) -> tuple[list[list[int]], Block]:
    """Return a list and a block that appends its threads to it."""
    seen: list[list[int]] = []

    def block(f: Fragment) -> Any:
        seen.append(f.lanes.tolist())
        return outcome(f) if callable(outcome) else outcome

    return seen, block


def test_all_warps_run_as_one() -> None:
    seen, block = recorder(-1)
    machine(block, threads=96).run()
    assert seen == [list(range(96))]


def test_one_warp_at_a_time() -> None:
    seen, block = recorder(-1)
    machine(block, threads=96, mode=BY_WARP).run()
    assert sorted(seen) == [list(range(w, w + 32)) for w in (0, 32, 64)]


def test_divergent_threads_meet_again() -> None:
    _, then = recorder(2)
    seen, end = recorder(-1)
    machine(lambda f: (f.lanes % 2 == 0, 1, 2), then, end).run()
    assert seen == [list(range(64))]


def test_whole_warps_do_not_wait_for_divided_ones() -> None:
    """Warp 0 is whole at block 2 while half of warp 1 is in block 1, which waits for warp 0."""
    passed: list[int] = []

    def enter(f: Fragment) -> Any:
        return f.lanes >= 48, 1, 2

    def wait(f: Fragment) -> Any:
        if passed:
            return 2
        return Wait(1, lambda: bool(passed), lambda: "warp 0")

    def together(f: Fragment) -> Any:
        assert f.is_whole()
        passed.append(f.n)
        f.cluster.events += 1
        return -1

    machine(enter, wait, together, whole_warp=[2]).run()
    assert passed == [32, 32]


def test_exited_lanes_are_not_waited_for() -> None:
    seen, together = recorder(-1)
    machine(lambda f: (f.lanes < 40, -1, 1), together, whole_warp=[1]).run()
    assert seen == [list(range(40, 64))]


def test_registers_are_written_through_the_fragment() -> None:
    values = []

    def write(f: Fragment) -> Any:
        f.cta.r[0, f.s] = f.lanes
        return f.lanes % 3 == 0, 1, 2

    def add(f: Fragment) -> int:
        f.cta.r[0, f.s] += 100
        return 2

    def read(f: Fragment) -> int:
        values.append(f.cta.r[0].copy())
        return -1

    machine(write, add, read, threads=32).run()
    lanes = np.arange(32)
    assert (values[-1] == lanes + 100 * (lanes % 3 == 0)).all()


def test_block_counts_are_of_warps() -> None:
    made = machine(lambda f: (f.lanes < 32, 1, 2), lambda _: 2, lambda _: -1, threads=96)
    made.run()
    assert made.block_counts.tolist() == [3, 1, 3]


def test_clusters_run_in_order_of_the_grid() -> None:
    seen: list[tuple[int, int]] = []

    def block(f: Fragment) -> int:
        seen.append((f.cta.index[0], f.cta.rank))
        return -1

    machine(block, clusters=2, cluster=2).run()
    assert seen == [(0, 0), (1, 1), (2, 0), (3, 1)]


def test_a_cluster_that_waits_for_another_lets_it_start() -> None:
    made = machine(_hand_over, clusters=3)
    made.run()
    assert made.timeline.events == 3


def _hand_over(f: Fragment) -> Any:
    """The cluster of CTA i waits until i + 1 later ones have written."""
    turn = 2 - f.cta.index[0]
    made = f.machine
    if made.timeline.events < turn:
        return Wait(0, lambda: made.timeline.events >= turn, lambda: "a later cluster")
    made.timeline.events += 1
    return -1


def test_no_more_clusters_than_are_resident() -> None:
    with pytest.raises(Deadlock, match="a later cluster"):
        machine(_hand_over, clusters=3, num_sms=2).run()


def test_deferred_work_is_done_when_no_thread_can_go_on() -> None:
    arrived: list[int] = []

    def issue(f: Fragment) -> int:
        f.cluster.queues.issue("load", lambda: _arrive(f, arrived))
        assert not arrived
        return 1

    def wait(f: Fragment) -> Any:
        return 2 if arrived else Wait(1, lambda: bool(arrived), lambda: "the load")

    machine(issue, wait, lambda _: -1, mode=DEFERRED).run()
    assert arrived == [64]


def _arrive(f: Fragment, arrived: list[int]) -> None:
    arrived.append(f.n)
    f.cluster.events += 1


def test_a_deadlock_names_everyone() -> None:
    def stuck(f: Fragment) -> Any:
        return Wait(1, lambda: False, lambda: "godot", retry=False)

    with pytest.raises(Deadlock) as caught:
        machine(lambda f: (f.lanes < 32, 1, 2), stuck, lambda _: 1, threads=96, cluster=2).run()
    text = str(caught.value)
    assert text.count("godot") >= 2
    assert "rank 1" in text
    assert "instruction 1" in text


def test_lanes_that_never_come_are_a_deadlock() -> None:
    def stuck(f: Fragment) -> Any:
        return Wait(1, lambda: False, lambda: "godot")

    with pytest.raises(Deadlock, match="other lanes"):
        machine(lambda f: (f.lanes == 3, 1, 2), stuck, lambda _: -1, whole_warp=[2]).run()


def test_a_loop_that_counts_is_no_deadlock() -> None:
    """It finds the same ten times, and goes on then."""

    def loop(f: Fragment) -> Any:
        if f.is_spinning(0, f.cluster.events):
            return Wait(0, lambda: False, lambda: "nothing")
        f.cta.r[0, f.s] += 1
        return 0 if f.cta.r[0, 0] < 10 else -1

    machine(loop).run()


def test_the_time_limit_ends_an_endless_loop() -> None:
    with pytest.raises(MachineFault, match=r"time limit of 0\.05 s"):
        machine(lambda _: 0, time_limit_s=0.05).run()


def test_an_idle_loop_does_not_starve_others() -> None:
    """Block 1 polls what block 2 writes, and the machine does not know that it waits."""
    done: list[int] = []

    def write(f: Fragment) -> int:
        done.append(f.n)
        return 3

    machine(lambda f: (f.lanes < 32, 1, 2), lambda _: 3 if done else 1, write, lambda _: -1).run()
    assert done == [32]


def test_the_same_seed_gives_the_same_run() -> None:
    def order(seed: int) -> list[list[int]]:
        seen, block = recorder(lambda f: -1)
        mode = Mode(name="r", deferred=frozenset(), by_warp=True, seed=seed, clusters=3)
        machine(block, threads=256, clusters=4, mode=mode).run()
        return seen

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_a_fault_says_where() -> None:
    def block(f: Fragment) -> int:
        f.part(f.lanes < 5).fault(0, "it broke")

    with pytest.raises(MachineFault) as caught:
        machine(block, cluster=2).run()
    assert str(caught.value).split("\n") == [
        "it broke",
        "  at instruction 0",
        "  by CTA (0, 0, 0) rank 0, threads 0..4",
    ]


def test_findings_are_counted() -> None:
    def block(f: Fragment) -> int:
        for _ in range(3):
            f.warn(0, "race", "two writes")
        return -1

    made = machine(block, clusters=2)
    made.run()
    (finding,) = made.findings.values()
    assert (finding.kind, finding.count, finding.place) == ("race", 6, "instruction 0")


@pytest.mark.parametrize("mode", [EAGER, DEFERRED])
def test_the_queue_keeps_what_the_mode_defers(mode: Mode) -> None:
    done: list[str] = []

    def block(f: Fragment) -> int:
        f.cluster.queues.issue("store", lambda: done.append("store"))
        assert bool(done) is not mode.defers("store")
        return -1

    machine(block, mode=mode).run()
    assert done == ["store"]
