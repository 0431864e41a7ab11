# SPDX-License-Identifier: Apache-2.0
"""What a kernel observes of its schedule, and what is proved where it observes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jitgen.emulator.api import emulate_ptx
from jitgen.emulator.machine.machine import Launch
from jitgen.emulator.machine.observed import MIXED
from jitgen.emulator.modes import EAGER, LATE_PEEKS, MOST_EXPLORED
from jitgen.emulator.report import Report
from tests.emulator.program import BY_WARP, run_grid, run_ptx

ROLES = """mov.u32 %r1, %ctaid.x;
setp.eq.u32 %p1, %r1, {writer};
setp.eq.u32 %p2, %r1, {reader};
@%p1 bra $L_write;
@%p2 bra $L_read;
bra $L_end;
$L_write:
mov.u32 %r2, %tid.x;
setp.ne.u32 %p4, %r2, 0;
@%p4 bra $L_end;
st.global.b32 [%rd1], 7;
{writes}
bra $L_end;
$L_read:
{reads}
ld.global.b32 %r9, [%rd1];
$L_end:
"""
"""CTA `writer` writes data and tells of it, CTA `reader` asks and reads them."""

TELLS = {
    "adds": "red.release.gpu.global.add.u32 [%rd1+128], 1;",
    "stores": "st.release.gpu.global.b32 [%rd1+128], 1;",
    "fences": "fence.acq_rel.gpu;\nst.relaxed.gpu.global.b32 [%rd1+128], 1;",
}
IGNORES = {
    "a load": "ld.acquire.gpu.global.b32 %r5, [%rd1+128];",
    "an atomic": "atom.acq_rel.gpu.global.add.u32 %r5, [%rd1+128], 1;",
    "a load and a fence": "ld.relaxed.gpu.global.b32 %r5, [%rd1+128];\nfence.acq_rel.gpu;",
    "a sum that nothing uses": "ld.acquire.gpu.global.b32 %r5, [%rd1+128];\nadd.u32 %r6, %r5, 1;",
}
SPIN = """$L_ask:
ld.acquire.gpu.global.b32 %r5, [%rd1+128];
setp.{comparison}.u32 %p3, %r5, {number};
@%p3 bra $L_ask;
"""
KEEPS = "ld.acquire.gpu.global.b32 %r5, [%rd1+128];\nst.global.b32 [%rd1+256], %r5;"
"""The value is used, and decides nothing."""

DECIDES = """ld.acquire.gpu.global.b32 %r5, [%rd1+128];
setp.eq.u32 %p3, %r5, 0;
@%p3 bra $L_end;
"""

BETWEEN = pytest.mark.parametrize("between", [0, 1, 5])
ORDERS = pytest.mark.parametrize("is_writer_first", [True, False], ids=["before", "behind"])


def body(writes: str, reads: str, between: int, *, is_writer_first: bool) -> str:
    first, last = 0, between + 1
    writer, reader = (first, last) if is_writer_first else (last, first)
    return ROLES.format(writer=writer, reader=reader, writes=writes, reads=reads)


def findings(text: str, clusters: int) -> list[str]:
    machine = run_grid(text, np.zeros(128, np.uint32), clusters, mode=EAGER)
    return [str(finding) for finding in machine.findings.values()]


def explored(text: str, clusters: int, modes: str = "quick") -> Report:
    head = ".version 8.8\n.target sm_90a\n.visible .entry kernel(.param .u64 words)\n"
    ptx = f"{head}{{\nld.param.b64 %rd1, [words];\n{text}\nret;\n}}\n"
    launch = Launch(grid=(clusters, 1, 1), block=(32, 1, 1))
    words = torch.zeros(128, dtype=torch.int32)
    return emulate_ptx(ptx, launch, {"words": words}, modes=modes)


def whats(report: Report) -> list[str]:
    return sorted({one.what for one in report.observed})


# --- values that are not checked -----------------------------------------------------------------


@BETWEEN
@ORDERS
@pytest.mark.parametrize(
    ("tells", "ignores"),
    [*(("adds", name) for name in IGNORES), ("stores", "a load"), ("fences", "a load")],
)
def test_a_value_that_is_ignored_orders_nothing(
    tells: str, ignores: str, between: int, is_writer_first: bool
) -> None:
    text = body(TELLS[tells], IGNORES[ignores], between, is_writer_first=is_writer_first)
    found = findings(text, between + 2)
    assert [line for line in found if line.startswith("race: ")], found


@BETWEEN
@ORDERS
@pytest.mark.parametrize(
    ("tells", "comparison", "number"),
    [("adds", "eq", 0), ("adds", "lt", 1), ("stores", "ne", 1), ("fences", "ne", 1)],
)
def test_a_value_that_is_waited_for_is_proved(
    tells: str, comparison: str, number: int, between: int, is_writer_first: bool
) -> None:
    spin = SPIN.format(comparison=comparison, number=number)
    text = body(TELLS[tells], spin, between, is_writer_first=is_writer_first)
    report = explored(text, between + 2)
    assert report.is_clean, str(report)
    assert report.is_proved, str(report)
    assert [run.mode for run in report.runs] == ["eager", "deferred"]


@BETWEEN
@ORDERS
def test_a_value_that_decides_nothing_is_found_without_a_seed(
    between: int, is_writer_first: bool
) -> None:
    text = body(TELLS["stores"], KEEPS, between, is_writer_first=is_writer_first)
    report = explored(text, between + 2, modes="eager")
    assert not report.is_clean
    first = next(run for run in report.runs if not run.is_clean)
    assert first.mode == ("reversed" if is_writer_first else "eager")
    assert "race" in {finding.kind for _, finding in report.findings}


@BETWEEN
@ORDERS
def test_a_value_that_decides_is_explored(between: int, is_writer_first: bool) -> None:
    text = body(TELLS["stores"], DECIDES, between, is_writer_first=is_writer_first)
    report = explored(text, between + 2, modes="eager")
    assert report.is_clean, str(report)
    assert not report.is_proved
    assert whats(report) == ["value of a load that synchronises"]
    assert report.explored == ("reversed", f"last-{0}")
    assert "observes the schedule: value of a load" in str(report)


# --- what is observed ----------------------------------------------------------------------------

TICKET = "atom.relaxed.gpu.global.add.u32 %r5, [%rd1], 1;\nst.global.b32 [%rd2], %r5;"
OWN_WORD = """mov.u32 %r1, %ctaid.x;
mad.wide.u32 %rd2, %r1, 128, %rd1;
add.u64 %rd2, %rd2, 128;
mov.u32 %r2, %tid.x;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra $L_end;
"""

OBSERVES = {
    "a ticket": (TICKET, "value that an atomic returns"),
    "a clock": ("mov.u32 %r5, %clock;\nst.global.b32 [%rd2], %r5;", "clock or multiprocessor"),
    "an SM": ("mov.u32 %r5, %smid;\nst.global.b32 [%rd2], %r5;", "clock or multiprocessor"),
    "a sum": ("red.relaxed.gpu.global.add.f32 [%rd1], 0f3F800000;", "order in which floats are"),
    "the last": ("st.relaxed.gpu.global.b32 [%rd1], %r1;", "order of relaxed writes"),
    "an exchange": ("atom.relaxed.gpu.global.exch.b32 _, [%rd1], %r1;", "order of relaxed writes"),
    "two sorts of updates": (
        "red.relaxed.gpu.global.add.u32 [%rd1], 3;\nred.relaxed.gpu.global.or.b32 [%rd1], 1;",
        "order of relaxed writes",
    ),
    "lanes": ("activemask.b32 %r5;\nst.global.b32 [%rd2], %r5;", "lanes that are active"),
}


@pytest.mark.parametrize("name", OBSERVES)
def test_what_observes_the_schedule(name: str) -> None:
    text, what = OBSERVES[name]
    machine = run_grid(f"{OWN_WORD}{text}\n$L_end:\n", np.zeros(256, np.uint32), 3)
    assert not machine.findings
    found = [str(one.what) for one in machine.observed.found.values()]
    assert len(found) == 1
    assert found[0].startswith(what)


def test_which_lane_is_first_is_observed() -> None:
    machine = run_grid(
        "mov.u32 %r2, %tid.x;\nmad.wide.u32 %rd2, %r2, 4, %rd1;\n"
        "atom.relaxed.gpu.global.add.u32 %r5, [%rd1], 1;\nst.global.b32 [%rd2+128], %r5;",
        np.zeros(64, np.uint32),
        1,
    )
    assert [str(x.what) for x in machine.observed.found.values()] == [
        "value that an atomic returns"
    ]


UNOBSERVED = {
    "a count": "red.relaxed.gpu.global.add.u32 [%rd1], 1;",
    "a ticket of its own": TICKET.replace("[%rd1]", "[%rd2]").replace("st.", "// st."),
    "the same store": "st.relaxed.gpu.global.b32 [%rd1], 5;",
    "a clock that nothing uses": "mov.u32 %r5, %clock;",
    "a sum of its own": "red.relaxed.gpu.global.add.f32 [%rd2], 0f3F800000;",
}


@pytest.mark.parametrize("name", UNOBSERVED)
def test_what_does_not(name: str) -> None:
    text = f"{OWN_WORD}{UNOBSERVED[name]}\n$L_end:\n"
    machine = run_grid(text, np.zeros(256, np.uint32), 3)
    assert not machine.observed.found


def test_a_counter_that_goes_on_behind_the_awaited_value() -> None:
    """The loop of CTA 0 ends at 1; which of the others had added then is a matter of luck."""
    spin = SPIN.format(comparison="eq", number=0)
    text = (
        f"mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra $L_add;\n{spin}bra $L_end;\n"
    )
    text += "$L_add:\nred.release.gpu.global.add.u32 [%rd1+128], 1;\n$L_end:\n"
    machine = run_grid(text, np.zeros(64, np.uint32), 3)
    found = [str(one.what) for one in machine.observed.found.values()]
    assert found == ["value of a load that synchronises"]
    machine = run_grid(text, np.zeros(64, np.uint32), 2)
    assert not machine.observed.found


# --- barriers ------------------------------------------------------------------------------------


def test_a_barrier_that_mixes_warps() -> None:
    found = run_ptx("bar.sync 1, 64;", threads=128, mode=BY_WARP)
    assert [one.what for one in found.machine.observed.found.values()] == [MIXED]


def test_a_barrier_of_the_same_warps() -> None:
    found = run_ptx("bar.sync 1, 64;\n" * 3, threads=64, mode=BY_WARP)
    assert not found.machine.observed.found


PEEK = """mov.u32 %r1, 0x500;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.sync 0;
@%p1 mbarrier.arrive.shared.b64 _, [%r1];
{wait}
bar.sync 0;
"""
ASKED = "mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;"
RETRY = """$L_wait:
mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;
@!%p2 bra $L_wait;"""


@pytest.mark.parametrize(
    ("wait", "what"),
    [
        (RETRY, []),
        (f"{ASKED}\n@%p3 bra $L_done;\n{RETRY}\n$L_done:", ["answer of a wait that may fail"]),
    ],
    ids=["retried", "peeked"],
)
def test_waits_for_an_mbarrier(wait: str, what: list[str]) -> None:
    found = run_ptx(PEEK.format(wait=wait), threads=64)
    assert [str(one.what) for one in found.machine.observed.found.values()] == what


def test_the_bound_is_told() -> None:
    text = body(TELLS["stores"], DECIDES, 1, is_writer_first=True)
    schedules = explored(text, 3).schedules()
    assert schedules["most_explored"] == MOST_EXPLORED
    assert schedules["proved"] is False


GUESSES = f"""mov.u32 %r1, 0x500;
mov.u32 %r2, %tid.x;
setp.eq.u32 %p1, %r2, 0;
setp.lt.u32 %p4, %r2, 32;
@%p1 mbarrier.init.shared.b64 [%r1], 1;
bar.sync 0;
@%p1 st.shared.b32 [%r1+256], 7;
@%p1 mbarrier.arrive.shared.b64 _, [%r1];
@%p4 bra $L_end;
{ASKED}
@!%p3 bra $L_read;
mov.u32 %r8, 1;
$L_read:
ld.shared.b32 %r9, [%r1+256];
$L_end:
"""
"""The second warp asks whether the data are there, and reads them in any case."""


def test_an_answer_that_decides_nothing_is_found_where_it_is_no() -> None:
    assert run_ptx(GUESSES, threads=64).findings == []
    assert run_ptx(GUESSES, threads=64, mode=LATE_PEEKS).findings == ["race"]


def test_an_answer_that_is_certain_is_never_no() -> None:
    certain = GUESSES.replace("@%p4 bra", "bar.sync 0;\n@%p4 bra")
    assert run_ptx(certain, threads=64, mode=LATE_PEEKS).findings == []


IGNORED = GUESSES.replace("@!%p3 bra $L_read;\n", "")


def test_an_answer_that_is_ignored_orders_nothing() -> None:
    assert run_ptx(IGNORED, threads=64).findings == ["race"]
