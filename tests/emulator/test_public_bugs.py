# SPDX-License-Identifier: Apache-2.0
"""
Mistakes that others published, made anew: a small kernel for each class, right as it stands.

Where they come from, and which of them the emulator does not find, is in `docs/emulator.md`.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import EAGER, QUICK, Mode
from jitgen.emulator.program.translate import Program
from jitgen.errors import MachineFault
from tests.emulator.mutation import Mutation, assert_found, text_of

HEAD = """
.version 8.8
.target sm_90a
.visible .entry kernel(.param .u64 words)
{
.shared .align 128 .b8 box[1024];
.shared .align 8 .b8 bars[64];
ld.param.b64 %rd1, [words];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
and.b32 %r3, %r1, 31;
mov.u32 %r4, box;
shl.b32 %r5, %r3, 2;
add.u32 %r5, %r5, %r4;
mov.u32 %r6, bars;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r3, 0;
setp.eq.u32 %p3, %r2, 0;
setp.eq.u32 %p4, %r2, 1;
setp.eq.u32 %p5, %r2, 2;
"""
"""%r3: lane; %r5: a lane's word of the box, %r6: barriers; %p1: thread 0, %p2: lane 0 of each warp,
%p3 to %p5: warps 0, 1 and 2."""


def barriers(*counts: int) -> str:
    """Return what makes barriers 0, 1, ... that wait for so many arrivals."""
    made = [f"@%p1 mbarrier.init.shared::cta.b64 [%r6+{8 * i}], {n};" for i, n in enumerate(counts)]
    return "\n".join([*made, "@%p1 fence.mbarrier_init.release.cluster;", "bar.sync 0;", ""])


def wait(number: int, parity: int = 0, who: str = "") -> str:
    """Return a wait for a barrier, with a label of its own if `who` is."""
    label = f"$W{number}{parity}{who}"
    test = f"mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r6+{8 * number}], {parity};"
    return f"{label}:\n{test}\n@!%p9 bra {label};\n"


def arrive(number: int) -> str:
    """Return an arrival of lane 0, which the other lanes come before."""
    return f"bar.warp.sync -1;\n@%p2 mbarrier.arrive.shared::cta.b64 _, [%r6+{8 * number}];\n"


def load(number: int, place: int, size: int = 128) -> str:
    """Return a bulk copy into the box, which signals a barrier."""
    return (
        f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6+{8 * number}], {size};\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[%r4+{place}], [%rd1], {size}, [%r6+{8 * number}];\n"
    )


FENCE, ENDED = (
    "fence.proxy.async.shared::cta;",
    "bar.warp.sync -1;\n@%p1 mbarrier.inval.shared::cta.b64 [%r6];\n",
)
READ, READ_2 = "ld.shared.b32 %r10, [%r5];\n", "ld.shared.b32 %r11, [%r5+128];\n"
WRITE, WRITE_2 = "st.shared.b32 [%r5], %r3;\n", "st.shared.b32 [%r5+128], %r3;\n"

TWO_LOADS = (
    f"{barriers(1, 1)}@!%p1 bra $GO;\n{load(0, 0)}{load(1, 128)}$GO:\n"
    f"{wait(0)}{wait(1)}{READ}{READ_2}"
)
"""A TMA copy for each operand; everybody waits for both."""

PARTS = "@%p4 bra $B;\n@!%p3 bra $END;\n"
"""Warp 1 goes to $B, warp 0 goes on, the others end."""

STORED = f"{barriers(1)}{PARTS}{WRITE}{arrive(0)}bra $END;\n$B:\n{wait(0)}{READ}$END:\n"
"""Warp 0 writes, warp 1 reads."""

REWRITTEN = (
    f"{barriers(1, 1)}@%p3 {WRITE}bar.sync 0;\n@%p4 bra $B;\n@%p5 bra $C;\n@!%p3 bra $END;\n"
    f"{wait(0)}{wait(1)}{WRITE}bra $END;\n"
    f"$B:\n{READ}{arrive(0)}bra $END;\n$C:\n{READ}{arrive(1)}$END:\n"
)
"""Warps 1 and 2 read, each tells so at a barrier of its own; then warp 0 writes again."""

REWRITTEN_ONE = (
    REWRITTEN.replace(barriers(1, 1), barriers(2))
    .replace(wait(1), "")
    .replace(arrive(1), arrive(0))
)
"""The same with one barrier for both."""

ORDERED = (
    f"{barriers(1, 1)}{PARTS}{WRITE}{arrive(0)}{WRITE_2}{arrive(1)}bra $END;\n"
    f"$B:\n{wait(0)}{READ}{wait(1)}{READ_2}$END:\n"
)
"""Two buffers, each with its barrier."""

RING = (
    f"{barriers(1, 1)}@%p4 bra $B;\n@!%p1 bra $END;\n{load(0, 0)}{wait(1)}{load(0, 0)}bra $END;\n"
    f"$B:\n{wait(0)}{READ}{arrive(1)}{wait(0, 1)}{READ}$END:\n"
)
"""One slot, filled twice: the second copy waits until the first was read."""

FENCED_REFILL = RING.replace(arrive(1), f"{FENCE}\n{arrive(1)}")
"""The same with a proxy fence between the reads and the copy that takes their place."""

STAGED = (
    f"@!%p3 bra $END;\n{WRITE}{WRITE_2}{FENCE}\nbar.warp.sync -1;\n"
    "@!%p1 bra $SYNC;\n"
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r4], 128;\n"
    "cp.async.bulk.commit_group;\n"
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1+128], [%r4+128], 128;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 1;\n"
    f"$SYNC:\nbar.warp.sync -1;\n{WRITE}bar.warp.sync -1;\n"
    f"@%p1 cp.async.bulk.wait_group.read 0;\nbar.warp.sync -1;\n{WRITE_2}$END:\n"
)
"""Two stages of bulk stores, each written over when its copy has read it."""

COPIES = (
    f"{barriers(32)}mad.wide.u32 %rd2, %r3, 4, %rd1;\n{PARTS}"
    "cp.async.ca.shared.global [%r5], [%rd2], 4;\ncp.async.commit_group;\n"
    "cp.async.ca.shared.global [%r5+128], [%rd2], 4;\ncp.async.commit_group;\n"
    "cp.async.wait_group 0;\nmbarrier.arrive.shared::cta.b64 _, [%r6];\nbra $END;\n"
    f"$B:\n{wait(0)}{READ}{READ_2}$END:\n"
)
"""Two groups of cp.async of warp 0, read by warp 1."""

SLICES = "@%p3 st.shared.b32 [%r5], %r3;\n@%p4 st.shared.b32 [%r5+128], %r3;\n"
"""Views of a buffer that do not overlap."""

CROSSED = f"{barriers(1, 1)}{PARTS}{arrive(0)}{wait(1)}bra $END;\n$B:\n{arrive(1)}{wait(0)}$END:\n"
"""Each waits for the other, and arrives first."""

PHASES = f"{barriers(1)}@!%p3 bra $END;\n{arrive(0)}{wait(0)}{arrive(0)}{wait(0, 1)}$END:\n"
"""A barrier goes through two phases."""

LIFE = f"{barriers(1)}@!%p3 bra $END;\n{arrive(0)}{wait(0)}{ENDED}$END:\n"
"""A barrier from beginning to end."""

KERNELS = {
    "two loads": TWO_LOADS, "stored": STORED, "rewritten": REWRITTEN,
    "rewritten, one barrier": REWRITTEN_ONE, "ordered": ORDERED, "ring": RING,
    "fenced refill": FENCED_REFILL, "staged": STAGED, "copies": COPIES, "slices": SLICES,
    "crossed": CROSSED, "phases": PHASES, "life": LIFE,
}  # fmt: skip

MADE = barriers(1).partition("\n")[0] + "\n"
RACE_READ, RACE_WRITE = ("race: read", "not ordered"), ("race: write", "not ordered")
RACE = ("race: ", "not ordered")  # in either order

ARRIVED = "mbarrier.arrive.shared::cta.b64 _, [%r6];\nbra $END;\n$B:\n"
AGAIN = ("mbarrier: ", "initialised again")
NO_BARRIER = ("fault: ", "mbarrier", "initialised")

TRITON = {  # ConSan's tests
    "two loads": (
        ("a copy read before its wait", wait(0), "", RACE_READ),
        ("bytes that never come", "[%r6+0], 128;\ncp", "[%r6+0], 132;\ncp", ("deadlock",)),
        ("a copy over a copy", "[%r4+128], [%rd1]", "[%r4+64], [%rd1]", RACE_WRITE),
    ),
    "stored": (
        ("a read without a wait", wait(0), "", RACE_READ),
        ("nothing was ever written", WRITE, "", ("uninitialised",)),
    ),
    "rewritten": (
        ("one reader is forgotten", wait(0), "", RACE),
        ("the other reader is forgotten", wait(1), "", RACE),
    ),
    "rewritten, one barrier": (
        ("both readers are forgotten", wait(0), "", RACE),
        ("one arrival counts for both", "[%r6+0], 2;", "[%r6+0], 1;", RACE),
    ),
    "ordered": (("the other buffer", f"{wait(0)}{READ}", f"{wait(0)}{READ_2}", RACE_READ),),
    "ring": (
        ("a producer that does not wait", wait(1), "", RACE_WRITE),
        ("released before it is read", f"{READ}{arrive(1)}", f"{arrive(1)}{READ}", RACE_WRITE),
        ("the phase of last time", wait(0, 1), wait(0, 0, "again"), ("deadlock",)),
    ),
    "staged": (("a store's source", "@%p1 cp.async.bulk.wait_group.read 0;\n", "", RACE_WRITE),),
    "copies": (
        ("the last group is not waited for", "wait_group 0", "wait_group 1", RACE_READ),
        ("no group is waited for", "cp.async.wait_group 0;\n", "", RACE_READ),
        (
            "the reader waits for the writer's groups",
            f"cp.async.wait_group 0;\n{ARRIVED}",
            f"{ARRIVED}cp.async.wait_group 0;\n",
            RACE_READ,
        ),
        ("two copies into one place", "[%r5+128], [%rd2]", "[%r5], [%rd2]", RACE_WRITE),
    ),
    "slices": (("views that overlap", "[%r5+128], %r3", "[%r5+64], %r3", RACE_WRITE),),
    "crossed": (
        ("no arrival", arrive(0), "", ("deadlock",)),
        ("too few arrive", "[%r6+0], 1;", "[%r6+0], 2;", ("deadlock",)),
    ),
    "phases": (
        (
            "two arrivals where one was meant",
            f"{wait(0)}{arrive(0)}{wait(0, 1)}",
            f"{arrive(0)}{wait(0)}",
            ("deadlock",),
        ),
        ("an arrival that counts twice", "_, [%r6+0]", "_, [%r6+0], 2", ("fault: ",)),
    ),
    "life": (
        ("made again before its end", arrive(0), f"{MADE}{arrive(0)}", AGAIN),
        ("used before it is made", MADE, "", NO_BARRIER),
        ("used after its end", wait(0), f"{ENDED}{wait(0)}", NO_BARRIER),
    ),
}

CUTRACER = {  # buggy versions of a GEMM for Hopper, found there by random delays
    "two loads": (
        (
            "a wait that comes late",
            f"{wait(1)}{READ}{READ_2}",
            f"{READ}{READ_2}{wait(1)}",
            RACE_READ,
        ),
        ("time instead of a wait", wait(1), "nanosleep.u32 1000;\n", RACE_READ),
    ),
    "staged": (("no proxy fence", f"{FENCE}\n", "", ("proxy: no fence",)),),
    "crossed": (("a wait that never ends", wait(1), f"{wait(1)}{wait(1, 1)}", ("deadlock",)),),
}

DEEPEP = {  # from the field: #657
    "staged": (("one stage is not waited for", "group.read 1", "group.read 2", RACE_WRITE),),
}

SOURCES = {"ConSan": TRITON, "CUTracer": CUTRACER, "DeepEP": DEEPEP}
CASES = [
    pytest.param(kernel, Mutation(*mistake), id=f"{source}: {kernel}: {mistake[0]}")
    for source, kernels in SOURCES.items()
    for kernel, mistakes in kernels.items()
    for mistake in mistakes
]


def findings(body: str, mode: Mode = EAGER) -> list[str]:
    """Run a kernel of 4 warps over 4 KB; return what is found, what ended it included."""
    words = np.zeros(1024 + 4, np.uint32)
    memory = GlobalMemory()
    address = words.ctypes.data + -words.ctypes.data % 16
    memory.add(address, 4096, "words")
    params = (address.to_bytes(8, "little"),)
    launch = Launch(grid=(1, 1, 1), block=(128, 1, 1), params=params)
    machine = Machine(Program(f"{HEAD}{body}\nret;\n}}\n"), memory, launch, mode)
    fault = []
    try:
        machine.run()
    except MachineFault as error:
        fault = [text_of(error)]
    return [*(str(finding) for finding in machine.findings.values()), *fault]


@pytest.mark.parametrize("mode", QUICK, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels(name: str, mode: Mode) -> None:
    assert findings(KERNELS[name], mode) == []


@pytest.mark.parametrize(("kernel", "mutation"), CASES)
def test_published_mistakes(kernel: str, mutation: Mutation) -> None:
    assert_found(findings(mutation.edit(KERNELS[kernel])), mutation.found)


def test_a_copy_over_what_was_read_without_a_proxy_fence() -> None:
    """
    DeepEP #642, which is not found: the barrier orders reads and copy, as in every pipeline of
    CUTLASS, and nothing tells those that work from the one that did not.
    """
    assert findings(FENCED_REFILL) == findings(RING) == []
