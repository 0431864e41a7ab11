# SPDX-License-Identifier: Apache-2.0
"""mbarriers: when they open, what is learnt, and what reports say of barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.isa import mbarrier, mbarrier_wait, named_barriers
from jitgen.emulator.isa.mbarrier import Arrival
from jitgen.emulator.isa.mbarrier_wait import Form
from jitgen.emulator.machine import deadlock
from jitgen.emulator.machine.barriers import MBarrier, together
from jitgen.emulator.machine.fragment import Fragment, Wait
from jitgen.emulator.machine.registers import Step
from jitgen.errors import Deadlock, MachineFault
from tests.emulator.program import fragment, machine

AT = 0
BARRIER = np.uint32(1024)
PARITY, STATE = Form(is_parity=True), Form(is_parity=False)


def part(f: Fragment, first: int, last: int) -> Fragment:
    """Return threads first..last - 1."""
    return f.part((f.lanes >= first) & (f.lanes < last))


def initialise(f: Fragment, count: int, address: int = 1024) -> MBarrier:
    """Let thread 0 initialise a barrier, and a barrier of the CTA tell everyone."""
    one = part(f, 0, 1)
    mbarrier.initialise(one, AT, None, np.uint32(f.cta.base | address), np.uint32(count))
    named_barriers.arrive_and_wait(f, AT, None, np.uint32(0), None, True, 1)
    return f.cta.barriers[address]


def arrive(f: Fragment, extra: int = 1, mask: Any = None, **how: Any) -> None:
    mbarrier.arrive_at(f, AT, mask, BARRIER, np.uint32(extra), Arrival(**how))


def complete(f: Fragment, barrier: MBarrier, number: int) -> None:
    barrier.complete(f, AT, number, barrier.phases.signaller(f.agents))


def wait(f: Fragment, parity: int) -> Any:
    return mbarrier_wait.try_wait(f, AT, None, BARRIER, np.uint32(parity), PARITY)


def knows(f: Fragment, other: Fragment, epoch: int) -> bool:
    """Return whether the first warp of `f` knows the epoch of the first warp of `other`."""
    return bool(f.cluster.clocks.vector[f.agents[0], other.agents[0]] >= epoch)


def findings(f: Fragment) -> list[str]:
    return [finding.kind for finding in f.machine.findings.values()]


# --- clocks ---


def test_join_of_clocks_of_different_age() -> None:
    joined = together(np.array([1, 5]), np.array([3, 2, 7]))
    assert joined is not None
    assert joined.tolist() == [3, 5, 7]
    assert together(None, None) is None


# --- mbarrier ---


def test_a_phase_needs_all_arrivals() -> None:
    f = fragment(64)
    barrier = initialise(f, 64)
    arrive(part(f, 0, 63))
    assert (barrier.phase, barrier.pending) == (0, 1)
    arrive(part(f, 63, 64))
    assert (barrier.phase, barrier.pending) == (1, 64)
    assert barrier.has_completed(0)
    assert not barrier.has_completed(1)


def test_a_phase_needs_all_bytes() -> None:
    f = fragment(32)
    barrier = initialise(f, 1)
    one = part(f, 0, 1)
    arrive(one, 512, has_bytes=True)
    assert (barrier.pending, barrier.transactions, barrier.phase) == (0, 512, 0)
    complete(one, barrier, 256)
    assert barrier.phase == 0
    complete(one, barrier, 256)
    assert (barrier.phase, barrier.transfer_phase) == (1, 1)


def test_bytes_may_come_before_they_are_expected() -> None:
    f = fragment(32)
    barrier, one = initialise(f, 1), part(f, 0, 1)
    complete(one, barrier, 256)
    assert barrier.transactions == -256
    arrive(one, 256, has_bytes=True)
    assert barrier.phase == 1


def test_who_waits_learns_what_arrived() -> None:
    f = fragment(64)
    initialise(f, 32)
    first, second = part(f, 0, 32), part(f, 32, 64)
    epoch = f.cluster.clocks.now(int(first.agents[0]))
    assert not wait(second, 0)[1].any()
    arrive(first)
    assert not knows(second, first, epoch)
    outcome, done = wait(second, 0)
    assert outcome is None
    assert done.all()
    assert knows(second, first, epoch)
    assert not knows(second, first, epoch + 1)


def test_a_waiter_learns_the_copies_of_the_phase() -> None:
    f = fragment(32)
    barrier, one = initialise(f, 1), part(f, 0, 1)
    arrive(one, 16, has_bytes=True)
    complete(one, barrier, 16)
    assert f.cluster.clocks.vector[f.agents[0], barrier.agent] == 0
    wait(f, 0)
    assert f.cluster.clocks.vector[f.agents[0], barrier.agent] == 1


def test_a_relaxed_arrival_releases_what_a_fence_came_after() -> None:
    f = fragment(64)
    initialise(f, 32)
    first, second = part(f, 0, 32), part(f, 32, 64)
    before = f.cluster.clocks.now(int(first.agents[0]))
    f.cluster.clocks.fence(first.agents)
    after = f.cluster.clocks.now(int(first.agents[0]))
    assert after > before
    arrive(first, is_relaxed=True)
    wait(second, 0)
    assert knows(second, first, before)
    assert not knows(second, first, after)


def test_the_second_failure_of_a_wait_stops_the_threads() -> None:
    f = fragment(32)
    initialise(f, 1)
    assert wait(f, 0)[0] is None
    stopped, _ = wait(f, 0)
    assert isinstance(stopped, Wait)
    assert stopped.retry
    assert "0 of 1 arrived" in stopped.describe()
    assert not stopped.is_over()
    arrive(part(f, 0, 1))
    assert stopped.is_over()


def test_only_the_threads_that_fail_stop() -> None:
    f = fragment(64)
    initialise(f, 1, 1024)
    initialise(f, 1, 1032)
    arrive(part(f, 0, 1))
    addresses = np.where(f.lanes < 32, 1024, 1032).astype(np.uint32)
    for _ in range(2):
        outcome, done = mbarrier_wait.try_wait(f, AT, None, addresses, np.uint32(0), PARITY)
    assert (done == (f.lanes < 32)).all()
    (goes_on, block), (stops, stopped) = outcome
    assert (goes_on == done).all()
    assert (stops == ~done).all()
    assert block == f.block
    assert isinstance(stopped, Wait)


def test_states_can_be_waited_for() -> None:
    f = fragment(32)
    initialise(f, 2)
    one = part(f, 0, 1)
    how = Arrival()
    (state,) = mbarrier.arrive_at(one, AT, None, BARRIER, np.uint32(1), how)
    assert state & np.uint64(0xFFFFF) == 2
    assert not mbarrier_wait.try_wait(one, AT, None, BARRIER, state, STATE)[1].any()
    arrive(one)
    assert mbarrier_wait.try_wait(one, AT, None, BARRIER, state, STATE)[1].all()


def test_a_dropped_arrival_is_not_expected_again() -> None:
    f = fragment(32)
    barrier = initialise(f, 2)
    arrive(part(f, 0, 1), is_dropped=True)
    arrive(part(f, 1, 2))
    assert (barrier.phase, barrier.pending) == (1, 1)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (arrive, "32 arrivals, of 1 only 1 lack"),
        (lambda f: arrive(f, 1, f.lanes == 0, may_complete=False), "noComplete completes"),
        (lambda f: arrive(f, 2**20, f.lanes == 0, has_bytes=True), "beyond its range"),
        (lambda f: mbarrier.invalidate(f, AT, f.lanes == 0, np.uint32(2048)), "no mbarrier"),
        (lambda f: initialise(f, 0, 2048), "an mbarrier of 0 arrivals"),
        (lambda f: initialise(f, 1, 2052), "not a multiple of 8"),
    ],
)
def test_faults_of_mbarriers(action: Any, message: str) -> None:
    f = fragment(32)
    initialise(f, 1)
    with pytest.raises(MachineFault, match=message):
        action(f)


def test_another_ctas_barrier_can_be_signalled_but_not_waited_for() -> None:
    f = fragment(32, cluster=2)
    other = next(p for p in f.cluster.schedule.ready.values() if p.cta.rank == 1)
    barrier = initialise(other, 1)
    f.cluster.clocks.learn(f.agents, *barrier.initialised_by)
    address = np.uint32(1 << 24 | 1024)
    mbarrier.arrive_at(part(f, 0, 1), AT, None, address, np.uint32(1), Arrival())
    assert barrier.phase == 1
    assert not findings(f)
    with pytest.raises(MachineFault, match="another CTA"):
        mbarrier_wait.try_wait(f, AT, None, address, np.uint32(0), PARITY)
    with pytest.raises(MachineFault, match="CTA 2 of 2"):
        mbarrier.invalidate(f, AT, None, np.uint32(2 << 24 | 1024))


def test_an_initialisation_must_be_known() -> None:
    f = fragment(64)
    mbarrier.initialise(part(f, 0, 1), AT, None, BARRIER, np.uint32(64))
    arrive(part(f, 0, 32))
    assert findings(f) == []
    arrive(part(f, 32, 64))
    assert findings(f) == ["race"]


# --- reports ---


def test_adjacent_barriers_of_one_block_are_a_ring() -> None:
    f = fragment(32)
    for slot in range(3):
        initialise(f, 1, 1024 + 8 * slot)
    initialise(f, 4, 1048)
    assert [len(ring) for ring in deadlock.rings(f.cta)] == [3, 1]


def test_a_deadlock_shows_the_state_of_barriers() -> None:
    def start(f: Fragment) -> int:
        mbarrier.initialise(part(f, 0, 1), 0, None, BARRIER, np.uint32(2))
        mbarrier.arrive_at(part(f, 0, 1), 0, None, BARRIER, np.uint32(64), Arrival(has_bytes=True))
        return 1

    def spin(f: Fragment) -> Any:
        outcome, _ = mbarrier_wait.try_wait(f, 1, None, BARRIER, np.uint32(0), PARITY)
        return 1 if outcome is None else outcome

    with pytest.raises(Deadlock) as caught:
        machine(start, spin, threads=32).run()
    text = str(caught.value)
    assert "parity 0 of mbarrier 0x400" in text
    assert "0 phases complete, 1 of 2 arrived, 64 bytes pending" in text
    assert "threads 0..31" in text


def test_loose_ends_at_the_exit() -> None:
    def block(f: Fragment) -> int:
        mbarrier.initialise(part(f, 0, 1), 0, None, BARRIER, np.uint32(2))
        arrive(part(f, 0, 1))
        named_barriers.arrive_only(f, 0, None, np.uint32(3), np.uint32(160), True)
        f.cta.registers.steps[0].append(Step(24, f.cta.agent0, 1))
        return -1

    made = machine(block, threads=128, time_limit_s=10)
    made.run()
    messages = sorted(finding.message for finding in made.findings.values())
    assert len(messages) == 3
    assert any("middle of a phase" in message for message in messages)
    assert any("setmaxnreg" in message for message in messages)


def test_a_cta_waits_for_those_who_signal_it() -> None:
    """CTA 1 arrives at a barrier of CTA 0 and nothing makes CTA 0 wait for that."""

    def block(f: Fragment) -> Any:
        if f.cta.rank == 0:
            mbarrier.initialise(part(f, 0, 1), 0, None, BARRIER, np.uint32(1))
        named_barriers.arrive_at_cluster(f, 0, None, False)
        return 1

    def meet(f: Fragment) -> Any:
        waiting = named_barriers.wait_for_cluster(f, 1, None)
        return 2 if waiting is None else waiting

    def signal(f: Fragment) -> Any:
        if f.cta.rank == 1:
            mbarrier.arrive_at(part(f, 0, 1), 2, None, BARRIER, np.uint32(1), Arrival())
        return -1

    made = machine(block, meet, signal, threads=32, cluster=2)
    made.run()
    (finding,) = made.findings.values()
    assert "may exit before" in finding.message or "has exited" in finding.message
