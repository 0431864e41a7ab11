# SPDX-License-Identifier: Apache-2.0
"""
Global memory: what orders its accesses, within a CTA and between CTAs.

Each kernel is right as it stands, in every mode; each mistake is found in the eager mode already.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.machine.regions import Box, Scattered
from jitgen.emulator.machine.track import Track
from jitgen.emulator.modes import ALL, EAGER, Mode
from jitgen.emulator.program.translate import Program
from tests.emulator.bulk import Bench, numbered
from tests.emulator.mutation import Mutation, assert_found, by_name

HEAD = """
.version 8.8
.target sm_90a
.visible .entry kernel(.param .u64 data, .param .u64 flag, .param .u64 work, .param .u64 map)
{
.shared .align 128 .b8 box[1024];
.shared .align 128 .b8 copy[128];
.shared .align 8 .b8 barrier[8];
ld.param.b64 %rd1, [data];
ld.param.b64 %rd2, [flag];
ld.param.b64 %rd3, [work];
ld.param.b64 %rd4, [map];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
mad.wide.u32 %rd5, %r1, 4, %rd3;
xor.b32 %r3, %r1, 40;
mad.wide.u32 %rd6, %r3, 4, %rd3;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r2, 0;
"""
"""%rd5: a thread's word of the workspace, %rd6: that of one in the other warp; %p1: thread 0."""

THREADS = 64
OPEN = """
@%p1 mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
WAIT = """
$WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [barrier], 0;
@!%p4 bra $WAIT;
"""


def findings(body: str, mode: Mode = EAGER, grid: int = 1) -> list[str]:
    """
    Run a kernel; return what is found.

    Its memory: 256 words of data, 4 of flags that are 0, 1024 of a workspace that hold nothing, and
    a tensor map of 8 x 16 16-bit numbers with boxes of 8 x 8, in 256 bytes that may be written.
    """
    bench, memory = Bench(), GlobalMemory()
    box = numbered(8, 16)
    source = bench.tensor_map(box, "u16", (8, 8))
    arrays = {name: numbered(size, dtype="u4") for name, size in SIZES.items()}
    arrays["flag"][...] = 0
    arrays["map"][:32] = bench.f.machine.memory.bytes(source, 128).view("u4")
    for name, array in {**arrays, "tensor": box}.items():
        memory.add(array.ctypes.data, array.nbytes, name, is_unknown=name == "work")
    params = tuple(array.ctypes.data.to_bytes(8, "little") for array in arrays.values())
    launch = Launch(grid=(grid, 1, 1), block=(THREADS, 1, 1), params=params)
    machine = Machine(Program(f"{HEAD}{body}\nret;\n}}\n"), memory, launch, mode)
    machine.run()
    return [str(finding) for finding in machine.findings.values()]


SIZES = {"data": 256, "flag": 4, "work": 1024, "map": 64}

TAKE = """$TAKE:
@!%p1 bra $TAKEN;
$POLL:
ld.acquire.gpu.global.b32 %r4, [%rd2];
setp.eq.u32 %p3, %r4, 0;
@%p3 bra $POLL;
$TAKEN:
bar.sync 0;
"""
"""Wait for a flag that another CTA raises."""

EXCHANGE = """
st.global.b32 [%rd5], %r1;
bar.sync 0;
ld.global.b32 %r4, [%rd6];
bar.sync 0;
st.global.b32 [%rd5], %r4;
"""
HANDED_OVER = f"""
@!%p2 bra $TAKE;
st.global.b32 [%rd5], %r1;
bar.sync 0;
@%p1 st.release.gpu.global.b32 [%rd2], 1;
bra $END;
{TAKE}ld.global.b32 %r5, [%rd6];
$END:
"""
"""CTA 0 writes a workspace and raises a flag, CTA 1 reads it."""

FENCED = """
@!%p2 bra $TAKE;
st.global.b32 [%rd5], %r1;
bar.sync 0;
fence.acq_rel.gpu;
@%p1 st.relaxed.gpu.global.b32 [%rd2], 1;
bra $END;
$TAKE:
@!%p1 bra $TAKEN;
$POLL:
ld.relaxed.gpu.global.b32 %r4, [%rd2];
setp.eq.u32 %p3, %r4, 0;
@%p3 bra $POLL;
fence.acq_rel.gpu;
$TAKEN:
bar.sync 0;
ld.global.b32 %r5, [%rd6];
$END:
"""
COUNTED = """
mad.wide.u32 %rd7, %r2, 256, %rd5;
st.global.b32 [%rd7], %r1;
bar.sync 0;
@!%p1 bra $COUNTED;
atom.acq_rel.gpu.global.add.u32 %r4, [%rd2], 1;
st.shared.b32 [box], %r4;
$COUNTED:
bar.sync 0;
ld.shared.b32 %r4, [box];
setp.ne.u32 %p3, %r4, 2;
@%p3 bra $END;
ld.global.b32 %r5, [%rd6];
ld.global.b32 %r6, [%rd6+256];
ld.global.b32 %r7, [%rd6+512];
$END:
"""
"""Each of three CTAs writes its part; who comes last, by a counter, reads them all (stream-K)."""

COPIED = f"""
{OPEN}
st.global.b32 [%rd5], %r1;
fence.proxy.async;
bar.sync 0;
@!%p1 bra $WAIT;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [box], [%rd3], 256, [barrier];
{WAIT}
st.global.b32 [%rd5], %r3;
"""
"""Threads write a workspace that a bulk copy reads."""

STORED = f"""
mov.u32 %r6, box;
shl.b32 %r7, %r1, 2;
add.u32 %r7, %r6, %r7;
st.shared.b32 [%r7], 1;
fence.proxy.async.shared::cta;
bar.sync 0;
@!%p2 bra $TAKE;
@!%p1 bra $END;
cp.async.bulk.global.shared::cta.bulk_group [%rd3], [box], 256;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
st.release.gpu.global.b32 [%rd2], 1;
bra $END;
{TAKE}ld.global.b32 %r5, [%rd5];
$END:
"""
"""A bulk copy writes a workspace; another CTA reads it."""

CONSTANT = """
mad.wide.u32 %rd7, %r1, 4, %rd1;
ld.global.nc.b32 %r4, [%rd7];
st.global.b32 [%rd5], %r4;
ld.global.b32 %r5, [%rd5];
"""
SUMMED = """
st.global.b32 [%rd5], 0;
bar.sync 0;
@%p1 st.release.gpu.global.b32 [%rd2], 1;
red.relaxed.gpu.global.add.u32 [%rd6], 1;
bar.sync 0;
ld.global.b32 %r4, [%rd5];
"""
HALVES = """
mad.wide.u32 %rd7, %r2, 2, %rd3;
cvt.u16.u32 %rs1, %r1;
@%p1 st.global.b16 [%rd7], %rs1;
"""
"""Two CTAs write the halves of a word."""

LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
EDITED = f"""
{OPEN}
@!%p1 bra $WAIT;
tensormap.replace.tile.global_dim.global.b1024.b32 [%rd4], 0, 8;
fence.proxy.tensormap::generic.release.gpu;
fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
{LOAD} [box], [%rd4, {{0, 0}}], [barrier];
{WAIT}
@%p1 tensormap.replace.tile.global_dim.global.b1024.b32 [%rd4], 0, 16;
"""
"""A map in global memory is changed, used, and changed again when the copy is over."""

PUBLISHED = f"""
{OPEN}
ld.global.b32 %r9, [%rd4];
mad.wide.u32 %rd8, %r1, 4, %rd4;
mov.u32 %r7, copy;
shl.b32 %r8, %r1, 2;
add.u32 %r8, %r7, %r8;
setp.lt.u32 %p5, %r1, 32;
@!%p5 bra $WAIT;
ld.global.b32 %r9, [%rd8];
st.shared.b32 [%r8], %r9;
bar.warp.sync -1;
@%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [copy], 0, 8;
bar.warp.sync -1;
add.u64 %rd9, %rd4, 128;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
    [%rd9], [copy], 128;
fence.proxy.tensormap::generic.acquire.gpu [%rd9], 128;
@!%p1 bra $WAIT;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 128;
{LOAD} [box], [%rd9, {{0, 0}}], [barrier];
{WAIT}
"""
KERNELS = {
    "exchange": (EXCHANGE, 1), "handed over": (HANDED_OVER, 2), "fenced": (FENCED, 2),
    "counted": (COUNTED, 3), "copied": (COPIED, 1), "stored": (STORED, 2),
    "constant": (CONSTANT, 1), "summed": (SUMMED, 1), "halves": (HALVES, 2),
    "edited": (EDITED, 1), "published": (PUBLISHED, 1),
}  # fmt: skip
"""Kernels, and how many CTAs they have."""

RELEASE = "st.release.gpu.global.b32 [%rd2], 1;"
ACQUIRE = "ld.acquire.gpu"
ACQUIRE_MAP = "fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;"
RELEASE_MAP = "fence.proxy.tensormap::generic.release.gpu;"
EDIT = "tensormap.replace.tile.global_dim.global.b1024.b32 [%rd4], 0, 8;"
READ = ("race: read of global memory", "of work", "write by CTA (0, 0, 0)", "st.global")

MISTAKES = [
    ("exchange", Mutation(
        "no barrier before the read", "%r1;\nbar.sync 0;", "%r1;",
        ("race: read of global", "work"))),
    ("exchange", Mutation(
        "no barrier before the write", "[%rd6];\nbar.sync 0;", "[%rd6];",
        ("race: write of global", "after the read"))),
    ("handed over", Mutation(
        "a weak flag", "st.release.gpu", "st", ("race: relaxed read", "of flag"))),
    ("handed over", Mutation(
        "a weak poll", ACQUIRE, "ld", ("race: read", "of flag", "relaxed write"))),
    ("handed over", Mutation("a relaxed flag", "st.release.gpu", "st.relaxed.gpu", READ)),
    ("handed over", Mutation("a volatile poll", ACQUIRE, "ld.volatile", READ)),
    ("handed over", Mutation("a relaxed poll", ACQUIRE, "ld.relaxed.gpu", READ)),
    ("handed over", Mutation("a flag for the CTA", "st.release.gpu", "st.release.cta", READ)),
    ("handed over", Mutation("a poll of the CTA", ACQUIRE, "ld.acquire.cta", READ)),
    ("handed over", Mutation(
        "the flag is raised too early", f"bar.sync 0;\n@%p1 {RELEASE}", f"@%p1 {RELEASE}", READ)),
    ("handed over", Mutation("only one warp waits", "$TAKEN:\nbar.sync 0;", "$TAKEN:", READ)),
    ("fenced", Mutation("a fence of the CTA", "fence.acq_rel.gpu", "fence.acq_rel.cta", READ)),
    ("fenced", Mutation(
        "no fence before the flag", "bar.sync 0;\nfence.acq_rel.gpu;", "bar.sync 0;", READ)),
    ("fenced", Mutation("no fence after the poll", "fence.acq_rel.gpu;\n$TAKEN:", "$TAKEN:", READ)),
    ("counted", Mutation("a relaxed counter", "atom.acq_rel", "atom.relaxed", READ)),
    ("counted", Mutation("a counter that only releases", "atom.acq_rel", "atom.release", READ)),
    ("counted", Mutation("a counter that only acquires", "atom.acq_rel", "atom.acquire", READ)),
    ("counted", Mutation(
        "no barrier before the counter", "[%rd7], %r1;\nbar.sync 0;", "[%rd7], %r1;", READ)),
    ("counted", Mutation(
        "all write the same part", "%r2, 256, %rd5", "%r2, 0, %rd5", ("race: write", "of work"))),
    ("counted", Mutation(
        "an unwritten part", "[%rd6+512]", "[%rd6+768]", ("uninitialised", "of work"))),
    ("copied", Mutation(
        "no proxy fence", "fence.proxy.async;", "", ("proxy: no fence", "cp.async.bulk"))),
    ("copied", Mutation(
        "a fence for shared memory", "fence.proxy.async;", "fence.proxy.async.shared::cta;",
        ("proxy: no fence", "work"))),
    ("copied", Mutation(
        "no barrier after the fence", "fence.proxy.async;\nbar.sync 0;", "fence.proxy.async;",
        ("race: read of global", "cp.async.bulk"))),
    ("copied", Mutation(
        "written over before the copy is done", WAIT, "\n$WAIT:\n",
        ("race: write of global", "after the read"))),
    ("copied", Mutation(
        "never written", "st.global.b32 [%rd5], %r1;", "", ("uninitialised", "cp.async.bulk"))),
    ("stored", Mutation(
        "only the sources are waited for", "wait_group 0", "wait_group.read 0",
        ("race: read of global", "bulk writes"))),
    ("stored", Mutation(
        "no wait", "cp.async.bulk.wait_group 0;", "",
        ("race: read of global", "bulk writes"))),
    ("stored", Mutation("a weak flag", "st.release.gpu", "st", ("race: relaxed read", "of flag"))),
    ("stored", Mutation(
        "a relaxed flag", "st.release.gpu", "st.relaxed.gpu", ("race: read of global", "writes"))),
    ("constant", Mutation(
        "it reads its own write", "ld.global.b32", "ld.global.nc.b32",
        ("race: non-coherent read", "must not change"))),
    ("constant", Mutation(
        "it is written later", "st.global.b32 [%rd5]", "st.global.b32 [%rd7]",
        ("race: write", "non-coherent read"))),
    ("constant", Mutation(
        "never written", "st.global.b32 [%rd5], %r4;", "", ("uninitialised", "of work"))),
    ("summed", Mutation(
        "zeros come too late", "0;\nbar.sync 0;", "0;",
        ("race: update of global", "after the write"))),
    ("summed", Mutation(
        "never zeroed", "st.global.b32 [%rd5], 0;", "", ("uninitialised", "red.relaxed"))),
    ("summed", Mutation(
        "no barrier after the sums", "1;\nbar.sync 0;\nld", "1;\nld",
        ("race: read", "after the update"))),
    ("halves", Mutation("overlapping", "%r2, 2, %rd3", "%r2, 0, %rd3", ("race: write", "of work"))),
    ("edited", Mutation("no release", RELEASE_MAP, "", ("proxy", "generic.release", "replace"))),
    ("edited", Mutation("no acquire", ACQUIRE_MAP, "", ("proxy", "generic.acquire", "replace"))),
    ("edited", Mutation(
        "an acquire of another map", ACQUIRE_MAP, ACQUIRE_MAP.replace("[%rd4]", "[%rd4+128]"),
        ("proxy", "generic.acquire", "replace"))),
    ("edited", Mutation(
        "fences before the change", f"{EDIT}\n{RELEASE_MAP}\n{ACQUIRE_MAP}",
        f"{RELEASE_MAP}\n{ACQUIRE_MAP}\n{EDIT}", ("proxy", "generic.release", "replace"))),
    ("edited", Mutation(
        "changed while a copy reads it", WAIT, "\n$WAIT:\n", ("race: write", "of map", "replace"))),
    ("published", Mutation(
        "no acquire", "fence.proxy.tensormap::generic.acquire.gpu [%rd9], 128;", "",
        ("proxy", "generic.acquire", "cp_fenceproxy"))),
]  # fmt: skip


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels(name: str, mode: Mode) -> None:
    body, grid = KERNELS[name]

    assert findings(body, mode, grid) == []


@pytest.mark.parametrize(
    ("name", "mutation"), MISTAKES, ids=[f"{name}: {by_name(x)}" for name, x in MISTAKES]
)
def test_mistakes(name: str, mutation: Mutation) -> None:
    body, grid = KERNELS[name]

    assert_found(findings(mutation.edit(body), grid=grid), mutation.found)


class TestTrack:
    """What is kept of a range that was only read so far."""

    def track(self) -> Track:
        return Track(1024, 1024 + 64)

    def test_words_become_bytes(self) -> None:
        track = self.track()
        track.plane("wrote")[3] = 7
        track.keep(Scattered(np.array([2]), 4), 5)
        track.split()
        assert np.flatnonzero(track.plane("wrote") == 7).tolist() == [12, 13, 14, 15]
        ((where, number),) = track.kept
        assert isinstance(where, Scattered)
        assert where.addresses.tolist() == [8, 9, 10, 11]
        assert number == 5

    def test_boxes(self) -> None:
        """Two rows of 6 bytes, 32 bytes apart, take two words each."""
        track, plane = self.track(), np.zeros(16, np.int32)
        box = Box(1024 + 16, (2, 6), (32, 1)).within(track.start, track.unit)
        box.put(plane, 1)
        assert np.flatnonzero(plane).tolist() == [4, 5, 12, 13]
        assert box.offset(2, track.unit) == 48
        in_bytes = np.zeros(64, bool)
        box.in_bytes().put(in_bytes, True)
        assert in_bytes.sum() == 16
        assert box.number == 4

    def test_kept_reads_count_at_the_first_write(self) -> None:
        """Two reads of a word by two CTAs, then a write by one of them."""
        body = """
        ld.global.b32 %r4, [%rd1];
        @%p2 bra $END;
        @%p1 st.global.b32 [%rd1], %r4;
        $END:
        """
        assert_found(findings(body, grid=2), ("race: write of global", "of data", "after the read"))
