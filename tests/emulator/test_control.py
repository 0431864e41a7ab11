# SPDX-License-Identifier: Apache-2.0
"""Branches, exits, fences, waits and warp instructions, as PTX."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.errors import Deadlock, MachineFault, UnsupportedPtx
from tests.emulator.program import BY_WARP, EAGER, Mode, run_grid, run_ptx

LANES = np.arange(32)


def test_a_loop_with_a_trip_count_of_each_thread() -> None:
    run = run_ptx("""
        mov.u32 %r1, %tid.x;
        mov.u32 %r2, 0;
        $L__loop:
        add.u32 %r2, %r2, 2;
        sub.u32 %r1, %r1, 1;
        setp.gt.s32 %p1, %r1, 0;
        @%p1 bra $L__loop;
        """)
    assert run.register("%r2").tolist() == (2 * np.maximum(LANES, 1)).tolist()


def test_threads_exit_one_by_one() -> None:
    run = run_ptx("""
        mov.u32 %r1, %laneid;
        setp.lt.u32 %p1, %r1, 5;
        @%p1 exit;
        elect.sync %r2|%p2, -1;
        selp.u32 %r3, 1, 0, %p2;
        """)
    assert run.register("%r3").tolist() == (LANES == 5).astype(int).tolist()


def test_a_trap_is_a_fault() -> None:
    with pytest.raises(MachineFault, match="trap"):
        run_ptx("trap;")


def test_unknown_modifiers_are_named_at_parse() -> None:
    with pytest.raises(UnsupportedPtx) as caught:
        run_ptx("fence.odd.cta;\nmbarrier.arrive.odd.shared.b64 _, [1024];\nbar.sync.odd 0;")
    assert len(caught.value.unknown) == 3


def test_a_discard_is_refused() -> None:
    """It leaves memory without a value, and was taken for a hint."""
    with pytest.raises(UnsupportedPtx, match="discard"):
        run_ptx("mov.u64 %rd1, 0;\ndiscard.global.L2 [%rd1], 128;")


RING = """
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra $L__ready;
    mbarrier.init.shared.b64 [1024], 32;
    mbarrier.init.shared.b64 [1032], 32;
    $L__ready:
    bar.sync 0;
    setp.eq.u32 %p2, %r2, 0;
    mov.u32 %r3, 0;
    mov.u32 %r5, 0;
    @%p2 bra $L__produce;

    $L__consume:
    {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [1024], %r5, 10000000;
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }
    mbarrier.arrive.shared.b64 %rd1, [1032];
    xor.b32 %r5, %r5, 1;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r3, 5;
    @%p3 bra $L__consume;
    ret;

    $L__produce:
    xor.b32 %r6, %r5, 1;
    {
    .reg .pred P1;
    LAB_WAIT:
    mbarrier.try_wait.parity.shared.b64 P1, [1032], %r6, 10000000;
    @P1 bra.uni DONE;
    bra.uni LAB_WAIT;
    DONE:
    }
    mbarrier.arrive.shared.b64 %rd1, [1024];
    xor.b32 %r5, %r5, 1;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r3, 5;
    @%p3 bra $L__produce;
    """


@pytest.mark.parametrize("mode", [EAGER, BY_WARP], ids=lambda mode: mode.name)
def test_producer_and_consumer(mode: Mode) -> None:
    run = run_ptx(RING, threads=64, mode=mode)
    assert (run.register("%r3") == 5).all()
    assert run.findings == []
    assert [barrier.phase for barrier in run.cluster.ctas[0].barriers.values()] == [5, 5]


def test_a_consumer_that_never_releases_is_a_deadlock() -> None:
    broken = RING.replace("mbarrier.arrive.shared.b64 %rd1, [1032];", "")
    with pytest.raises(Deadlock) as caught:
        run_ptx(broken, threads=64)
    text = str(caught.value)
    assert "threads 0..31 wait for parity 0 of mbarrier 0x408" in text
    assert "threads 32..63 wait for parity 1 of mbarrier 0x400" in text


def test_a_barrier_before_the_initialisation_is_missed() -> None:
    broken = RING.replace("bar.sync 0;", "bar.warp.sync -1;")
    assert run_ptx(broken, threads=64).findings == ["race"]
    with pytest.raises(MachineFault, match="no mbarrier was initialised at 0x400"):
        run_ptx(broken, threads=64, mode=Mode(name="other", by_warp=True, seed=1))


CLUSTER = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    shl.b32 %r3, %r2, 24;
    add.u32 %r3, %r3, 1024;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra $L__ready;
    mbarrier.init.shared.b64 [%r3], 2;
    fence.mbarrier_init.release.cluster;
    $L__ready:
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
    setp.ge.u32 %p2, %r1, 2;
    @%p2 bra $L__wait;
    mapa.shared::cluster.u32 %r4, %r3, %r1;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
    $L__wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 0;
    @!%p3 bra $L__wait;
    """
"""Threads 0 and 1 of each CTA arrive at the barriers of CTA 0 and 1, and all wait for their own."""


def test_ctas_signal_each_other() -> None:
    assert run_ptx(CLUSTER, cluster=2).findings == []


def test_an_initialisation_without_its_fence() -> None:
    unfenced = CLUSTER.replace("fence.mbarrier_init.release.cluster;", "")
    assert set(run_ptx(unfenced, cluster=2).findings) == {"race"}


def test_a_cta_that_does_not_wait_for_the_arrivals_of_others() -> None:
    hasty = CLUSTER[: CLUSTER.index("$L__wait:")] + "$L__wait:"
    assert set(run_ptx(hasty, cluster=2).findings) == {"exit"}


def test_the_previous_grid_is_known_after_the_wait_for_it() -> None:
    def knows(body: str, is_dependent: bool) -> bool:
        cluster = run_ptx(body, is_dependent=is_dependent).cluster
        cta = cluster.ctas[0]
        return bool(cluster.clocks.vector[cta.agent0, cluster.previous_grid] >= 1)

    assert knows("griddepcontrol.launch_dependents;", False)
    assert not knows("griddepcontrol.launch_dependents;", True)
    assert knows("griddepcontrol.wait;", True)


TURNS = """
    mov.u32 %r1, %laneid;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 exit;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %nctaid.x;
    sub.u32 %r4, %r3, %r2;
    sub.u32 %r4, %r4, 1;
    add.u32 %r5, %r4, 1;
    $L__poll:
    POLL
    setp.ne.u32 %p2, %r6, %r4;
    @%p2 bra $L__poll;
    st.release.gpu.global.b32 [%rd1], %r5;
    """
"""A CTA waits until the CTAs behind it have counted, then it counts."""

POLLS = {
    "load": "ld.acquire.gpu.global.b32 %r6, [%rd1];",
    "volatile": "ld.volatile.global.b32 %r6, [%rd1];",
    "sleeping": "ld.acquire.gpu.global.b32 %r6, [%rd1];\nnanosleep.u32 100;",
    "atomic": "atom.acq_rel.gpu.global.add.u32 %r6, [%rd1], 0;",
}


@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.parametrize("clusters", [1, 3])
def test_clusters_that_spin_on_global_memory(poll: str, clusters: int) -> None:
    words = np.zeros(1, np.uint32)
    mode = Mode(name="mode", seed=clusters, clusters=clusters)
    run_grid(TURNS.replace("POLL", POLLS[poll]), words, 5, mode=mode, time_limit_s=20)
    assert words[0] == 5


def test_a_spin_on_a_cluster_without_a_place_is_a_deadlock() -> None:
    with pytest.raises(Deadlock, match="another value in global memory"):
        run_grid(TURNS.replace("POLL", POLLS["load"]), np.zeros(1, np.uint32), 5, num_sms=4)


def test_named_barriers_of_two_warps() -> None:
    run = run_ptx(
        """
        mov.u32 %r1, %warpid;
        setp.eq.u32 %p1, %r1, 0;
        add.u32 %r2, %r1, 1;
        @%p1 bra $L__first;
        bar.arrive 1, 64;
        bar.sync %r2, 32;
        ret;
        $L__first:
        bar.sync 1, 64;
        """,
        threads=64,
    )
    assert run.findings == []


def test_reductions_over_the_cta() -> None:
    run = run_ptx(
        """
        mov.u32 %r1, %tid.x;
        setp.lt.u32 %p1, %r1, 50;
        bar.red.popc.u32 %r2, 0, %p1;
        bar.red.and.pred %p2, 0, !%p1;
        bar.red.or.pred %p3, 0, 64, %p1;
        """,
        threads=64,
    )
    assert (run.register("%r2") == 50).all()
    assert not run.register("%p2").any()
    assert run.register("%p3").all()


def test_warp_instructions() -> None:
    run = run_ptx("""
        mov.u32 %r1, %laneid;
        setp.lt.u32 %p1, %r1, 4;
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
        shfl.sync.down.b32 %r3|%p2, %r1, 1, 31, 0xffffffff;
        vote.sync.ballot.b32 %r4, %p1, -1;
        vote.sync.any.pred %p3, !%p1, -1;
        match.any.sync.b32 %r5, %r4, -1;
        redux.sync.add.s32 %r6, %r1, -1;
        activemask.b32 %r7;
        """)
    assert run.register("%r2").tolist() == (LANES ^ 1).tolist()
    assert run.register("%r3").tolist() == np.minimum(LANES + 1, 31).tolist()
    assert run.register("%p2").tolist() == (LANES < 31).tolist()
    assert (run.register("%r4") == 15).all()
    assert run.register("%p3").all()
    assert (run.register("%r5") == 0xFFFFFFFF).all()
    assert (run.register("%r6") == 496).all()
    assert (run.register("%r7") == 0xFFFFFFFF).all()


def test_lanes_of_a_partial_member_mask() -> None:
    run = run_ptx("""
        mov.u32 %r1, %laneid;
        setp.ge.u32 %p1, %r1, 16;
        @%p1 bra $L__end;
        shfl.sync.idx.b32 %r2, %r1, 3, 31, 0xffff;
        $L__end:
        """)
    assert run.register("%r2").tolist() == [3] * 16 + [0] * 16


@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_a_sum_of_a_warp_wraps_around(kind: str) -> None:
    run = run_ptx(f"""
        mov.b32 %r1, 0x70000000;
        redux.sync.add.{kind} %r2, %r1, -1;
        """)
    assert (run.register("%r2") == 32 * 0x70000000 % 2**32).all()
