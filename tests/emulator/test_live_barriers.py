# SPDX-License-Identifier: Apache-2.0
"""Mistakes with the bytes and the beginning of mbarriers, each beside what is right."""

from __future__ import annotations

import pytest

from jitgen.emulator.modes import ALL, Mode
from tests.emulator.mutation import Mutation, assert_found, by_name
from tests.emulator.program import BY_WARP, EAGER, Run, run_ptx
from tests.emulator.tensor_core import Kernel
from tests.emulator.test_bulk_kernel import COPY
from tests.emulator.test_bulk_kernel import run as run_copy

REUSE = """
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 0;
    mov.u32 %r2, 1024;
    setp.eq.u32 %p3, %r1, 32;
    @%p3 st.shared.b32 [1088], %r1;
    @%p1 mbarrier.init.shared::cta.b64 [%r2], 64;
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 %rd1, [%r2];
    $L__wait:
    mbarrier.try_wait.shared::cta.b64 %p2, [%r2], %rd1;
    @!%p2 bra $L__wait;
    bar.sync 0;
    @%p1 mbarrier.inval.shared::cta.b64 [%r2];
    bar.sync 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r2], 32;
    @%p1 mbarrier.inval.shared::cta.b64 [%r2];
    @%p1 st.shared.b64 [%r2], %rd1;
    @%p1 ld.shared.b32 %r3, [%r2];
"""
"""A barrier, then another one in its place, then data there."""

INVAL = "@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n"
MISTAKES = (
    Mutation("initialised twice", f"bar.sync 0;\n    {INVAL}", "bar.sync 0;\n",
             ("mbarrier: mbarrier 0x400", "initialised again without mbarrier.inval")),
    Mutation("stored over", f"{INVAL}    @%p1 st", "@%p1 st",
             ("mbarrier: mbarrier 0x400", "accessed while it is a barrier", "st.shared")),
    Mutation("read", INVAL + "    @%p1 st.shared.b64 [%r2], %rd1;\n", "",
             ("mbarrier: mbarrier 0x400", "accessed while it is a barrier", "ld.shared")),
    Mutation("half of it stored over", "bar.sync 0;\n    mbarrier.arrive",
             "bar.sync 0;\n    @%p1 st.shared.b16 [%r2+6], %rs1;\n    mbarrier.arrive",
             ("mbarrier: mbarrier 0x400", "accessed while it is a barrier", "st.shared.b16")),
    Mutation("wide store over its end", "bar.sync 0;\n    mbarrier.arrive",
             "bar.sync 0;\n    @%p1 st.shared.v4.b32 [%r2], {%r1, %r1, %r1, %r1};\n"
             "    mbarrier.arrive",
             ("mbarrier: mbarrier 0x400", "accessed while it is a barrier")),
    Mutation("read after it ended", "@%p1 st.shared.b64 [%r2], %rd1;", "",
             ("uninitialised: shared memory 0x400",)),
    Mutation("data that another warp wrote", "[1088], %r1;", "[1024], %r1;",
             ("race: write of shared memory 0x400", "mbarrier.init")),
)  # fmt: skip


def texts(run: Run) -> list[str]:
    return [str(finding) for finding in run.machine.findings.values()]


@pytest.mark.parametrize("mode", [EAGER, BY_WARP], ids=lambda mode: mode.name)
def test_bytes_that_are_used_again(mode: Mode) -> None:
    assert texts(run_ptx(REUSE, threads=64, mode=mode)) == []


@pytest.mark.parametrize("mutation", MISTAKES, ids=by_name)
def test_mistakes_with_the_bytes(mutation: Mutation) -> None:
    assert_found(texts(run_ptx(mutation.edit(REUSE), threads=64)), mutation.found)


FENCE = "fence.mbarrier_init.release.cluster;\n"
INIT = "mbarrier.init.shared::cta.b64 [barrier], 1;\n"
NO_FENCE = ("proxy: no fence.mbarrier_init or fence.proxy.async", "cp.async.bulk.tensor")
COPIES = (
    Mutation("no fence", FENCE, "", NO_FENCE),
    Mutation("the fence comes first", INIT + FENCE, FENCE + INIT, NO_FENCE),
    Mutation("the fence comes last", FENCE, "", NO_FENCE),
    Mutation("a fence of memory", FENCE, "fence.acq_rel.cta;\n", NO_FENCE),
    Mutation("a box over the barrier", "[box], [%rd1", "[box+128], [%rd1",
             ("mbarrier: mbarrier", "accessed while it is a barrier", "cp.async.bulk.tensor")),
)  # fmt: skip
"""In a kernel that loads a box and stores it."""


def copies(text: str, mode: Mode = EAGER) -> list[str]:
    machine, *_ = run_copy(text.replace("barrier[8]", "barrier[136]"), mode)
    return [str(finding) for finding in machine.findings.values()]


@pytest.mark.parametrize("mutation", COPIES, ids=by_name)
def test_mistakes_with_the_first_use(mutation: Mutation) -> None:
    text = mutation.edit(COPY)
    if mutation.name == "the fence comes last":
        text = text.replace("$WAIT:", f"{FENCE}$WAIT:")
    assert_found(copies(text), mutation.found)


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "fence", ["fence.mbarrier_init.release.cluster;", "fence.proxy.async.shared::cta;"]
)
def test_fences_that_do(fence: str, mode: Mode) -> None:
    assert copies(COPY.replace(FENCE.strip(), fence), mode) == []


def test_the_fence_of_another_warp() -> None:
    """fence.mbarrier_init is about what the thread itself initialised; a proxy fence is not."""
    early = COPY.replace(FENCE, "").replace("@%p1 bra $WAIT;", "@%p1 bra $MEET;", 1)
    issue = early[early.index("mbarrier.arrive.expect") : early.index("$WAIT:")]
    text = early.replace(issue, "").replace(
        "$WAIT:", f"$MEET:\nbar.sync 1;\nOTHER\nbar.sync 1;\n@%p1 bra $WAIT;\n{issue}$WAIT:"
    )
    other = "setp.eq.u32 %p3, %r1, 32;\n@%p3 {}"
    assert copies(text.replace("OTHER", other.format("fence.proxy.async.shared::cta;"))) == []
    assert_found(copies(text.replace("OTHER", other.format(FENCE))), NO_FENCE)


REMOTE = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %cluster_ctarank;
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.and.u32 %p2, %r2, 1, %p1;
    mapa.shared::cluster.u32 %r3, 1024, %r2;
    mapa.shared::cluster.u32 %r4, 1024, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.acquire.aligned;
    @%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
"""


def test_another_cta_uses_it() -> None:
    """Both CTAs have one; CTA 1 arrives at that of CTA 0."""
    assert texts(run_ptx(REMOTE, cluster=2)) == []
    without = run_ptx(REMOTE.replace(FENCE.strip(), ""), cluster=2)
    assert_found(texts(without), ("race: mbarrier 0x400", "is used by a warp that is not ordered"))
    released = REMOTE.replace(FENCE.strip(), "").replace(".relaxed", ".release")
    assert texts(run_ptx(released, cluster=2)) == []


COMMIT = """
    add.u32 %r5, %r9, 64;
    @%p0 mbarrier.init.shared::cta.b64 [%r5], 1;
    FENCE
    bar.warp.sync -1;
    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r5];
    $L_more:
    mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r5], 0;
    @!%p8 bra $L_more;
"""


def test_commits_are_asynchronous_work() -> None:
    assert_found(
        Kernel(COMMIT.replace("FENCE", "")).run().findings,
        ("proxy: no fence.mbarrier_init or fence.proxy.async", "tcgen05.commit"),
    )
    assert not Kernel(COMMIT.replace("FENCE", FENCE)).run().findings
