# SPDX-License-Identifier: Apache-2.0
"""
Lanes of one warp: what orders their accesses of shared memory, what only brings them together.

Each kernel is right as it stands, in every mode; each mistake is found in the eager mode already.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.fragment import Fragment
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import ALL, EAGER, Mode, parse_modes
from jitgen.emulator.program.translate import Program
from tests.emulator.mutation import Mutation, assert_found, by_name
from tests.emulator.program import fragment

HEAD = """
.version 8.8
.target sm_90a
.visible .entry kernel(.param .u64 words)
{
.shared .align 128 .b8 box[512];
.shared .align 8 .b8 barrier[8];
ld.param.b64 %rd1, [words];
mov.u32 %r1, %tid.x;
mov.u32 %r20, box;
shl.b32 %r2, %r1, 2;
add.u32 %r2, %r2, %r20;
xor.b32 %r3, %r1, 1;
shl.b32 %r3, %r3, 2;
add.u32 %r3, %r3, %r20;
mad.wide.u32 %rd2, %r1, 16, %rd1;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r1, 1;
setp.lt.u32 %p3, %r1, 16;
"""
"""%r2: a thread's own word, %r3: its neighbour's; %rd2: 16 bytes for each; %p1: thread 0."""


def findings(body: str, mode: Mode = EAGER, threads: int = 32) -> list[str]:
    """Run a kernel of one CTA; return what is found."""
    words = np.arange(1024, dtype=np.uint32)
    memory = GlobalMemory()
    address = words.ctypes.data + -words.ctypes.data % 16
    memory.add(address, words.nbytes - 16, "words")
    params = (address.to_bytes(8, "little"),)
    launch = Launch(grid=(1, 1, 1), block=(threads, 1, 1), params=params)
    machine = Machine(Program(f"{HEAD}{body}\nret;\n}}\n"), memory, launch, mode)
    machine.run()
    return [str(finding) for finding in machine.findings.values()]


EXCHANGE = """
st.shared.b32 [%r2], %r1;
bar.warp.sync -1;
ld.shared.b32 %r4, [%r3];
bar.warp.sync 0xffffffff;
st.shared.b32 [%r2], %r4;
"""
HALF = """
@!%p3 bra $END;
st.shared.b32 [%r2], %r1;
bar.warp.sync 0x0000ffff;
ld.shared.b32 %r4, [%r3];
$END:
"""
STORE = """
st.shared.b32 [%r2], %r1;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
@!%p1 bra $END;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
$END:
bar.warp.sync -1;
st.shared.b32 [%r2], %r3;
"""
FENCED_BY_ONE = """
st.shared.b32 [%r2], %r1;
bar.warp.sync -1;
@!%p1 bra $END;
fence.proxy.async.shared::cta;
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
$END:
"""
ASYNC = """
shl.b32 %r5, %r1, 4;
add.u32 %r5, %r5, %r20;
xor.b32 %r6, %r1, 1;
shl.b32 %r6, %r6, 4;
add.u32 %r6, %r6, %r20;
cp.async.cg.shared.global [%r5], [%rd2], 16;
cp.async.commit_group;
cp.async.wait_group 0;
bar.warp.sync -1;
ld.shared.b32 %r7, [%r6];
"""
THROUGH_A_BARRIER = """
st.shared.b32 [%r2], %r1;
bar.sync 0;
ld.shared.b32 %r4, [%r3];
"""
THROUGH_AN_MBARRIER = """
@%p1 mbarrier.init.shared::cta.b64 [barrier], 32;
fence.mbarrier_init.release.cluster;
bar.warp.sync -1;
st.shared.b32 [%r2], %r1;
mbarrier.arrive.shared::cta.b64 _, [barrier];
$WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [barrier], 0;
@!%p4 bra $WAIT;
ld.shared.b32 %r4, [%r3];
"""
REFILL = """
@%p1 mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
st.shared.b32 [%r2], %r1;
bar.warp.sync -1;
ld.shared.b32 %r4, [%r3];
bar.warp.sync -1;
@!%p1 bra $WAIT;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20], [%rd1], 128, [barrier];
$WAIT:
bar.warp.sync -1;
$AGAIN:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [barrier], 0;
@!%p4 bra $AGAIN;
ld.shared.b32 %r4, [%r3];
"""
MATRICES = """
shl.b32 %r5, %r1, 4;
add.u32 %r5, %r5, %r20;
st.shared.b32 [%r5], %r1;
st.shared.b32 [%r5+4], %r1;
st.shared.b32 [%r5+8], %r1;
st.shared.b32 [%r5+12], %r1;
bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [%r5];
"""
HALVES = """
shl.b32 %r5, %r1, 1;
add.u32 %r5, %r5, %r20;
cvt.u16.u32 %rs1, %r1;
st.shared.b16 [%r5], %rs1;
bar.warp.sync -1;
ld.shared.b32 %r4, [%r20];
"""
KERNELS = {
    "exchange": EXCHANGE, "half": HALF, "store": STORE, "fenced by one": FENCED_BY_ONE,
    "async": ASYNC, "barrier": THROUGH_A_BARRIER, "mbarrier": THROUGH_AN_MBARRIER,
    "refill": REFILL, "matrices": MATRICES, "halves": HALVES,
}  # fmt: skip

SYNC = "bar.warp.sync -1;"
FENCE = "fence.proxy.async.shared::cta;"
SHUFFLE = "shfl.sync.idx.b32 %r9, %r1, 0, 31, -1;"
VOTE = "vote.sync.any.pred %p4, %p1, -1;"
ELECT = "elect.sync %r9|%p4, -1;"
WAIT_GROUP = "cp.async.bulk.wait_group.read 0;\n$END:"

MISTAKES = [
    ("exchange", Mutation("nothing before a read", SYNC, "", ("race: read", "lane", "st.shared"))),
    ("exchange", Mutation(
        "nothing before a write", "bar.warp.sync 0xffffffff;", "",
        ("race: write", "after the read by lane", "ld.shared"))),
    ("exchange", Mutation(
        "a sync of the other half", SYNC, "bar.warp.sync 0x0000fffd;", ("race: read", "lane"))),
    ("exchange", Mutation("a shuffle", SYNC, SHUFFLE, ("convergence: read", "bar.warp.sync does"))),
    ("exchange", Mutation("a vote", SYNC, VOTE, ("convergence: read", "lane"))),
    ("exchange", Mutation("an election", SYNC, ELECT, ("convergence: read", "lane"))),
    ("half", Mutation(
        "a quarter", "0x0000ffff", "0x000000ff", ("race: read", "lane 8", "lane 9"))),
    ("half", Mutation("none", "bar.warp.sync 0x0000ffff;", "", ("race: read", "lane"))),
    ("store", Mutation(
        "no sync before a bulk store", f"async.shared::cta;\n{SYNC}", "async.shared::cta;",
        ("race: read", "by lane 0", "after the write by lane 1", "cp.async.bulk"))),
    ("store", Mutation(
        "no sync after the wait for it", f"$END:\n{SYNC}", "$END:",
        ("race: write", "after the read by lane 0", "cp.async.bulk"))),
    ("store", Mutation(
        "another lane waits", WAIT_GROUP, f"$END:\n@%p2 {WAIT_GROUP[:-6]}",
        ("race: write", "bulk"))),
    ("store", Mutation(
        "another lane commits", "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;",
        "cp.async.bulk.wait_group.read 0;\n@%p2 cp.async.bulk.commit_group;",
        ("race: write", "bulk"))),
    ("store", Mutation(
        "one lane fences before the others are there", "fence.proxy", "@%p1 fence.proxy",
        ("proxy: no fence",))),
    ("fenced by one", Mutation("no sync before the fence", SYNC, "", ("race: read", "by lane 0"))),
    ("fenced by one", Mutation(
        "the fence comes before the sync", f"{SYNC}\n@!%p1 bra $END;\n{FENCE}",
        f"@%p1 {FENCE}\n{SYNC}\n@!%p1 bra $END;", ("proxy: no fence",))),
    ("async", Mutation("no sync after the wait", SYNC, "", ("race: read", "cp.async.cg"))),
    ("async", Mutation(
        "one lane waits for all", "cp.async.wait_group", "@%p1 cp.async.wait_group",
        ("race: read", "cp.async.cg"))),
    ("async", Mutation("a shuffle after the wait", SYNC, SHUFFLE, ("convergence: read",))),
    ("barrier", Mutation("none", "bar.sync 0;", "", ("race: read", "lane"))),
    ("mbarrier", Mutation(
        "none", "$WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p4, [barrier], 0;\n"
        "@!%p4 bra $WAIT;", "", ("race: read", "lane"))),
    ("refill", Mutation(
        "a copy over what lanes read", f"{SYNC}\n@!%p1 bra $WAIT;", "@!%p1 bra $WAIT;",
        ("race: write", "after the read by lane", "ld.shared"))),
    ("matrices", Mutation("none", SYNC, "", ("convergence: read", "several lanes", "st.shared"))),
    ("halves", Mutation("none", SYNC, "", ("race: read", "lane"))),
]  # fmt: skip


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels(name: str, mode: Mode) -> None:
    assert findings(KERNELS[name], mode) == []


@pytest.mark.parametrize(
    ("name", "mutation"), MISTAKES, ids=[f"{name}: {by_name(x)}" for name, x in MISTAKES]
)
def test_mistakes(name: str, mutation: Mutation) -> None:
    found = findings(mutation.edit(KERNELS[name]))

    assert_found(found, mutation.found)


class TestChains:
    """A chain of meetings orders who takes part in it, in the order of the meetings."""

    @pytest.mark.parametrize(
        ("masks", "order"),
        [
            ((0b0011, 0b0110), "ordered"),
            ((0b0110, 0b0011), "apart"),
            ((0b0011,), "apart"),
            ((0b0101,), "ordered"),
            ((), "apart"),
        ],
    )
    def test_from_lane_0_to_lane_2(self, masks: tuple[int, ...], order: str) -> None:
        f: Fragment = fragment(32)
        clocks, agent = f.cluster.clocks, int(f.agents[0])
        for mask in masks:
            clocks.lanes.meet(clocks.vector, agent, mask, orders=True)

        assert clocks.lanes.order(agent, 1, 0, 2) == order

    def test_more_meetings_than_are_kept(self) -> None:
        """The oldest are forgotten, and what came before them is taken for ordered."""
        f: Fragment = fragment(32)
        clocks, agent = f.cluster.clocks, int(f.agents[0])
        for _ in range(1000):
            clocks.lanes.meet(clocks.vector, agent, 3, orders=False)

        assert clocks.lanes.known[agent] > 1


@pytest.mark.parametrize(
    "mode", parse_modes(["eager", "random-7", "random-8"]), ids=lambda x: x.name
)
@pytest.mark.parametrize(
    "sync",
    [
        "elect.sync %r10|%p4, 65535;",
        "shfl.sync.idx.b32 %r10, %r9, 3, 31, 0xffff;",
        "vote.sync.ballot.b32 %r10, %p2, 0x0000ffff;",
        "redux.sync.add.u32 %r10, %r9, 0xffff;",
        "bar.warp.sync 0xffff;",
    ],
)
def test_lanes_of_a_partial_mask_wait_for_one_on_a_detour(sync: str, mode: Mode) -> None:
    body = f"""
    mov.u32 %r9, 5;
    @!%p2 bra $ON;
    mov.u32 %r9, 7;
    st.shared.b32 [%r2], %r9;
    $ON:
    @!%p3 bra $END;
    {sync}
    st.shared.b32 [%r2], %r9;
    $END:
    """
    assert findings(body, mode) == []
