# SPDX-License-Identifier: Apache-2.0
"""Named barriers and the barrier of the cluster: when they open, and what is learnt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.findings import Severity, severity_of
from jitgen.emulator.isa import named_barriers
from jitgen.emulator.machine.fragment import Fragment, Wait
from jitgen.emulator.modes import Mode
from jitgen.errors import MachineFault
from tests.emulator.program import EVERY_MODE, found_by, fragment

AT = 0


def part(f: Fragment, first: int, last: int) -> Fragment:
    """Return threads first..last - 1."""
    return f.part((f.lanes >= first) & (f.lanes < last))


def knows(f: Fragment, other: Fragment, epoch: int) -> bool:
    """Return whether the first warp of `f` knows the epoch of the first warp of `other`."""
    return bool(f.cluster.clocks.vector[f.agents[0], other.agents[0]] >= epoch)


def sync(f: Fragment, number: int = 1, count: int | None = None) -> Any:
    threads = None if count is None else np.uint32(count)
    return named_barriers.arrive_and_wait(f, AT, None, np.uint32(number), threads, True, 7)


def test_a_named_barrier_opens_for_all() -> None:
    f = fragment(96)
    first, second = part(f, 0, 32), part(f, 32, 96)
    epoch = f.cluster.clocks.now(int(second.agents[0]))
    waiting = sync(first)
    assert isinstance(waiting, Wait)
    assert not waiting.is_over()
    assert sync(second) == 7
    assert waiting.is_over()
    assert waiting.then == 7
    assert knows(first, second, epoch)


def test_a_named_barrier_of_some_warps() -> None:
    f = fragment(128)
    waiting = sync(part(f, 0, 32), count=64)
    named_barriers.arrive_only(part(f, 64, 96), AT, None, np.uint32(1), np.uint32(64), True)
    assert waiting.is_over()
    assert not knows(part(f, 64, 96), part(f, 0, 32), 1)


def test_warps_that_run_together_use_different_barriers() -> None:
    f = fragment(64)
    numbers = np.where(f.lanes < 32, 1, 2).astype(np.uint32)
    parts = named_barriers.arrive_and_wait(f, AT, None, numbers, np.uint32(64), True, 7)
    assert isinstance(parts, list)
    assert [int(mask.sum()) for mask, _ in parts] == [32, 32]
    assert sorted(f.cta.named) == [1, 2]


def test_threads_that_exit_are_not_expected() -> None:
    f = fragment(64)
    waiting = sync(part(f, 0, 32))
    assert not waiting.is_over()
    f.cta.leave(part(f, 32, 64))
    assert waiting.is_over()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda f: sync(f, count=48), "multiple of 32"),
        (lambda f: sync(f, number=16), "has 16"),
        (lambda f: sync(f, count=32), "64 threads arrive of 32"),
        (lambda f: [sync(part(f, 0, 32), count=64), sync(part(f, 32, 64))], "but before by"),
    ],
)
def test_faults_of_named_barriers(action: Any, message: str) -> None:
    with pytest.raises(MachineFault, match=message):
        action(fragment(64))


def test_a_barrier_that_reduces() -> None:
    """``bar.red``: both parts get the values of all, in whatever order they are run again."""
    f = fragment(64)
    first, second = part(f, 0, 32), part(f, 32, 64)
    arguments = (AT, np.uint32(0), None, True)
    outcome, _ = named_barriers.arrive_with_value(first, *arguments, first.lanes < 3)
    assert isinstance(outcome, list)
    outcome, values = named_barriers.arrive_with_value(second, *arguments, second.lanes < 34)
    assert outcome is None
    assert np.count_nonzero(values) == 5
    outcome, values = named_barriers.arrive_with_value(first, *arguments, first.lanes < 3)
    assert outcome is None
    assert np.count_nonzero(values) == 5


# --- the barrier of the cluster ---


def cluster_parts() -> list[Fragment]:
    f = fragment(32, cluster=2)
    return sorted(f.cluster.schedule.ready.values(), key=lambda part: part.cta.rank)


@pytest.mark.parametrize("is_relaxed", [False, True])
def test_the_barrier_of_the_cluster(is_relaxed: bool) -> None:
    one, other = cluster_parts()
    epoch = one.cluster.clocks.now(int(other.agents[0]))
    for part_ in (one, other):
        named_barriers.arrive_at_cluster(part_, AT, None, is_relaxed)
        waiting = named_barriers.wait_for_cluster(part_, AT, None)
        assert (waiting is None) is (part_ is other)
    assert named_barriers.wait_for_cluster(one, AT, None) is None
    assert knows(one, other, epoch) is not is_relaxed


def test_misuse_of_the_clusters_barrier() -> None:
    one, _ = cluster_parts()
    with pytest.raises(MachineFault, match="without a barrier"):
        named_barriers.wait_for_cluster(one, AT, None)
    named_barriers.arrive_at_cluster(one, AT, None, False)
    with pytest.raises(MachineFault, match="twice"):
        named_barriers.arrive_at_cluster(one, AT, None, False)


def test_the_cluster_does_not_wait_for_exited_threads() -> None:
    one, other = cluster_parts()
    named_barriers.arrive_at_cluster(one, AT, None, False)
    waiting = named_barriers.wait_for_cluster(one, AT, None)
    assert isinstance(waiting, Wait)
    other.cta.leave(other)
    assert waiting.is_over()


# --- arrivals that nothing waits for ---

HALVES = """
mov.u32 %r1, %tid.x;
setp.ge.u32 %p1, %r1, 32;
@%p1 bra $WAIT;
bar.arrive 1, 64;
bra $END;
$WAIT:
bar.sync 1, 64;
$END:
"""
FORGOTTEN = {
    "no wait": ("bar.sync 1, 64;", ""),
    "the wait is for another barrier": ("bar.sync 1, 64;", "bar.sync 2, 32;"),
    "one arrival more": ("bar.arrive 1, 64;", "bar.arrive 1, 64;\nbar.arrive 3, 64;"),
    "one arrives in a round that nothing ends": ("$END:", "$END:\n@!%p1 bar.arrive 1, 64;"),
}


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("name", FORGOTTEN)
def test_arrivals_that_nothing_waits_for(name: str, mode: Mode) -> None:
    """``bar.arrive`` needs no wait: it is defined, and a warning."""
    assert found_by(HALVES, mode, threads=64) == []
    (found,) = found_by(HALVES.replace(*FORGOTTEN[name]), mode, threads=64)
    assert "none waits for it any more" in found
    assert "bar.arrive" in found
    kind = found.partition(":")[0]
    assert severity_of(kind) is Severity.WARNING


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_wait_that_nothing_ends_is_an_error(mode: Mode) -> None:
    found = found_by(HALVES.replace("bar.arrive 1, 64;", ""), mode, threads=64)
    assert any(text.startswith("deadlock") for text in found)
