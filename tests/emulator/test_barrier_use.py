# SPDX-License-Identifier: Apache-2.0
"""
Whatever initialises, signals, awaits or ends an mbarrier obeys the same rules.

Mistakes in a kernel of two CTAs that store into each other's shared memory, each beside what is
right, in every mode.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from jitgen.emulator import isa
from jitgen.emulator.modes import Mode
from jitgen.errors import UnsupportedPtx
from tests.emulator.mutation import Mutation, assert_found, by_name
from tests.emulator.program import EVERY_MODE, found_by, run_ptx

FENCE = "fence.mbarrier_init.release.cluster;\n"
INIT = "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"
MEET = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
STORE = "@%p1 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], 7, [%r7];\n"
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4;\n"
WAIT = """$WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra $WAIT;
"""
SPREAD = f"""
mov.u32 %r1, %tid.x;
mov.u32 %r4, %cluster_ctarank;
xor.b32 %r5, %r4, 1;
setp.eq.u32 %p1, %r1, 0;
mov.u32 %r2, 2048;
mapa.shared::cluster.u32 %r2, %r2, %r4;
mapa.shared::cluster.u32 %r6, 1024, %r5;
mapa.shared::cluster.u32 %r8, 1024, %r4;
mapa.shared::cluster.u32 %r7, 2048, %r5;
{INIT}{FENCE}{MEET}{EXPECT}{STORE}{WAIT}
ld.shared.b32 %r3, [%r8];
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""
"""Each CTA expects four bytes, stores four to the other one and waits for its own."""

REDUCE = "@%p1 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
REDUCE = f"{REDUCE}.add.u32 [%r6], 7, [%r7];\n"
REMOTE = "@%p1 mbarrier.{} [%r7]{};\n"

MISTAKES = (
    Mutation("no fence", FENCE, "", ("proxy: no fence.mbarrier_init", "st.async")),
    Mutation("the fence comes first", INIT + FENCE, FENCE + INIT, ("proxy", "st.async")),
    Mutation("no barrier", INIT, "", ("fault: no mbarrier was initialised at",)),
    Mutation(
        "the other CTA is not waited for", MEET, "", ("start: access", "may not have started")
    ),
    Mutation(
        "it has ended", FENCE, f"@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n{FENCE}",
        ("fault: no mbarrier was initialised at", "since the last one ended", "mbarrier.inval"),
    ),
    Mutation("not aligned", "[%r6], 7, [%r7]", "[%r6], 7, [%r7+4]", ("fault", "multiple of 8")),
    Mutation(
        "the barrier of another CTA than the data's", "[%r6], 7, [%r7]", "[%r6], 7, [%r2]",
        ("fault: mbarrier 0x800", "is not in the CTA that is written to"),
    ),
    Mutation("a CTA that is not there", "2048, %r5", "2048, 2", ("fault", "is of CTA 2 of 2")),
    Mutation("a count of none", "[%r2], 1;", "[%r2], 0;", ("fault: an mbarrier of 0 arrivals",)),
    Mutation("too large a count", "[%r2], 1;", "[%r2], 1048576;", ("fault: an mbarrier of 1048",)),
    Mutation("too many bytes", "[%r2], 4;", "[%r2], 1048576;", ("fault", "beyond its range")),
    Mutation(
        "a wait for the other's barrier", "%p2, [%r2], 0", "%p2, [%r7], 0",
        ("fault: wait for mbarrier 0x800", "a barrier of another CTA"),
    ),
    Mutation(
        "the end of the other's barrier", EXPECT,
        REMOTE.format("inval.shared::cta.b64", "") + EXPECT,
        ("fault: end for mbarrier 0x800", "a barrier of another CTA"),
    ),
    Mutation(
        "the beginning of the other's barrier", INIT, f"{INIT}{REMOTE.format('init.b64', ', 1')}",
        ("fault: shared address", "is not in CTA"),
    ),
    Mutation(
        "bytes of the next phase", STORE, STORE + STORE.replace("[%r6]", "[%r6+16]"),
        ("phase: bytes of phase 1 of mbarrier 0x800", "may come in the phase before", "st.async"),
    ),
)  # fmt: skip


SUM = f"@%p1 st.shared.b32 [%r8], 3;\n{FENCE}fence.acq_rel.cluster;\n"
FAR = REMOTE.format("expect_tx.relaxed.cluster.shared::cluster.b64", ", 4")
RIGHT = {
    "stores": SPREAD,
    "proxy fence": SPREAD.replace(
        FENCE, "fence.proxy.async.shared::cta;\nfence.acq_rel.cluster;\n"
    ),
    "released": SPREAD.replace(FENCE, "").replace("arrive.relaxed", "arrive.release"),
    "bytes expected from afar": SPREAD.replace(EXPECT, FAR).replace(
        STORE, f"{STORE}{MEET}@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n"
    ),
    "reductions": SPREAD.replace(STORE, REDUCE).replace(FENCE, SUM),
}


def test_a_reduction_without_an_operation_is_refused() -> None:
    """It ended in a KeyError."""
    with pytest.raises(UnsupportedPtx, match="no operation"):
        run_ptx(SPREAD.replace(STORE, REDUCE.replace(".add", "")), cluster=2)


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_what_is_right(text: str, mode: Mode) -> None:
    assert found_by(text, mode, cluster=2) == []


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("mutation", MISTAKES, ids=by_name)
def test_mistakes(mutation: Mutation, mode: Mode) -> None:
    assert_found(found_by(mutation.edit(SPREAD), mode, cluster=2), mutation.found)


def test_a_reduction_adds() -> None:
    run = run_ptx(RIGHT["reductions"], cluster=2)

    assert not run.findings
    assert (run.register("%r3") == np.uint32(10)).all()


COPIES = """
mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 0;
mov.u32 %r2, 2048;
@%p1 mbarrier.init.shared::cta.b64 [%r2], 32;
bar.sync 0;
cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r2];
$WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra $WAIT;
"""
ARRIVALS = (
    Mutation("no barrier", "bar.sync 0;", "@%p1 mbarrier.inval.shared::cta.b64 [%r2];\nbar.sync 0;",
             ("fault: no mbarrier was initialised", "since the last one ended")),
    Mutation("not known", "bar.sync 0;", "", ("mbarrier", "init")),
    Mutation("too many", "[%r2], 32", "[%r2], 31", ("fault", "32 arrivals, of 31 only 31 lack")),
    Mutation("beyond its range", "[%r2], 32", "[%r2], 1048575", ("fault", "beyond its range")),
    Mutation("not aligned", "noinc.shared::cta.b64 [%r2]", "noinc.shared::cta.b64 [%r2+4]",
             ("fault", "multiple of 8")),
)  # fmt: skip


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("mutation", ARRIVALS, ids=by_name)
def test_copies_of_threads_that_arrive(mutation: Mutation, mode: Mode) -> None:
    assert found_by(COPIES, mode, threads=32) == []
    threads = 64 if mutation.name == "not known" else 32
    text = mutation.edit(COPIES)
    if mutation.name == "not known":
        text = text.replace("[%r2], 32", "[%r2], 64")
    if mutation.name == "beyond its range":
        text = text.replace(".noinc", "")
    assert_found(found_by(text, mode, threads), mutation.found)


def test_no_instruction_goes_around_the_rules() -> None:
    """Instructions get barriers from `use` alone; none looks one up in a CTA."""
    folder = Path(isa.__file__).parent
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"by_offset", "barriers"}, path.name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "MBarrier", path.name
