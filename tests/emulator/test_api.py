# SPDX-License-Identifier: Apache-2.0
"""`emulate`, on a host part in C and kernels in PTX that fit on a page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from jitgen.emulator.api import emulate
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.report import Report
from jitgen.errors import Deadlock, EmulationError, InputError, MachineFault, UnsupportedPtx
from tests.emulator.host import KERNEL, build

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

PTX = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry {kernel}(.param .u64 p0, .param .u32 p1)
.reqntid 128, 1, 1
{{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.b64 %rd1, [p0];
    ld.param.b32 %r1, [p1];
    griddepcontrol.wait;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    setp.ge.s32 %p1, %r2, %r1;
{body}
$L_DONE:
    ret;
}}
"""
DOUBLE = """
    @%p1 bra $L_DONE;
    add.s32 %r3, %r2, %r2;
    st.relaxed.gpu.global.b32 [%rd3], %r3;
"""
"""Every CTA writes the same."""

TOO_FAR = DOUBLE.replace("@%p1 bra $L_DONE;", "").replace("relaxed.gpu.", "")
WAITS = """
    .shared .align 8 .b8 barrier[8];
    mov.b32 %r4, barrier;
    setp.eq.s32 %p2, %r2, 0;
    @%p2 mbarrier.init.shared::cta.b64 [%r4], 2;
    bar.sync 0;
$L_LOOP:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], 0;
    @!%p1 bra $L_LOOP;
"""
RUNS_AWAY = """
$L_LOOP:
    add.s32 %r4, %r4, 1;
    bra $L_LOOP;
"""


def run(
    folder: Path,
    body: str,
    *,
    modes: str = "quick",
    num: int = 100,
    time_limit_s: float = 60,
    unknown: tuple[str, ...] = (),
    settled: tuple[str, ...] = (),
    ptx: str = PTX,
) -> tuple[Report, torch.Tensor]:
    artifact = Artifact(
        library=build(folder),
        symbol="double",
        ptx=ptx.format(kernel=KERNEL, body=body),
        names=("out",),
    )
    out = torch.full((100,), -1, dtype=torch.int32)
    report = emulate(
        artifact,
        out,
        out.data_ptr(),
        num,
        modes=modes,
        num_sms=4,
        time_limit_s=time_limit_s,
        unknown=unknown,
        settled=settled,
    )
    return report, out


def test_results_are_written_and_counted(tmp_path: Path) -> None:
    report, out = run(tmp_path, DOUBLE, modes="all")

    assert out.tolist() == list(range(0, 200, 2))
    assert report.is_clean, str(report)
    assert report.arch == "sm_90a"
    assert len({run.mode for run in report.runs}) == len(report.runs) > 6
    # 4 x 2 CTAs of 4 warps; each executes 8 instructions, some of them not all 11
    assert 8 * 4 * 8 < sum(report.runs[0].warp_instructions.values()) <= 8 * 4 * 13


def test_an_address_out_of_bounds_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(MachineFault, match=r"(?s)out.*st\.global.*in mode deferred"):
        run(tmp_path, TOO_FAR, modes="deferred")


def test_a_deadlock_is_named_with_its_mode(tmp_path: Path) -> None:
    with pytest.raises(Deadlock, match=r"(?s)mbarrier.*in mode random-3"):
        run(tmp_path, WAITS, modes="random-3")


def test_a_runaway_kernel_is_ended(tmp_path: Path) -> None:
    with pytest.raises(MachineFault, match="time limit"):
        run(tmp_path, RUNS_AWAY, time_limit_s=0.2)


def test_an_unknown_instruction_is_named_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPtx, match="frobnicate"):
        run(tmp_path, "    frobnicate.b32 %r3, %r2;")


def test_a_result_that_depends_on_the_schedule_is_found(tmp_path: Path) -> None:
    """The last write wins, and the CTAs of one grid have no order."""
    body = """
    @%p1 bra $L_DONE;
    mov.u64 %rd4, %globaltimer;
    cvt.u32.u64 %r3, %rd4;
    st.global.b32 [%rd3], %r3;
"""
    report, _ = run(tmp_path, body, modes="eager,random-0")

    (found,) = [finding for _, finding in report.findings if finding.kind == "result"]
    assert re.search(
        r"out differs from that of mode eager in \d+ values, the first at \[\d+\]", found.message
    )
    assert not report.is_clean


ADDS = """
    @%p1 bra $L_DONE;
    red.relaxed.gpu.global.add.u32 [%rd3], 1;
"""


class TestUnknownContents:
    """A workspace of ``torch.empty`` holds nothing until the kernel has written it."""

    def test_they_are_written_first(self, tmp_path: Path) -> None:
        report, _ = run(tmp_path, DOUBLE, unknown=("out",))
        assert report.is_clean, str(report)

    def test_they_are_read_first(self, tmp_path: Path) -> None:
        report, _ = run(tmp_path, ADDS, unknown=("out",))
        kinds = {finding.kind for _, finding in report.findings}
        assert kinds == {"uninitialised"}
        assert "of out is read" in next(report.findings)[1].message

    def test_they_are_known_unless_the_caller_says_so(self, tmp_path: Path) -> None:
        report, _ = run(tmp_path, ADDS)
        assert report.is_clean, str(report)

    def test_a_name_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="'in' is no tensor; allowed: out"):
            run(tmp_path, DOUBLE, unknown=("in",))


LATE = PTX.replace("    griddepcontrol.wait;\n", "    .shared .align 16 .b8 place[512];\n")
"""Whose body waits for the grid before, or does not."""

READS = {
    "ld": "ld.global.b32 %r3, [%rd3];",
    "cp.async": """
    mov.b32 %r4, place;
    mad.lo.u32 %r5, %r2, 4, %r4;
    cp.async.ca.shared.global [%r5], [%rd3], 4;
    cp.async.wait_all;
""",
    "cp.async.bulk": """
    .shared .align 8 .b8 barrier[8];
    mov.b32 %r4, place;
    mov.b32 %r5, barrier;
    setp.ne.s32 %p2, %r2, 0;
    @%p2 bra $L_DONE;
    mbarrier.init.shared::cta.b64 [%r5], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r5], 16;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 16, [%r5];
$L_LOOP:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;
    @!%p2 bra $L_LOOP;
""",
}
"""What reads the tensor, before any wait for the grid before."""


class TestSettledContents:
    """What no earlier grid is still writing may be read before that has ended, and no more."""

    @pytest.mark.parametrize("how", READS)
    def test_they_are_read_early(self, tmp_path: Path, how: str) -> None:
        body = f"@%p1 bra $L_DONE;\n{READS[how]}"
        settled, _ = run(tmp_path, body, settled=("out",), ptx=LATE)
        report, _ = run(tmp_path, body, ptx=LATE)

        assert settled.is_clean, str(settled)
        assert {finding.kind for _, finding in report.findings} == {"race"}
        assert "before griddepcontrol.wait" in str(report)

    @pytest.mark.parametrize("write", [DOUBLE, ADDS], ids=["store", "update"])
    def test_they_are_not_written_early(self, tmp_path: Path, write: str) -> None:
        early, _ = run(tmp_path, write, settled=("out",), ptx=LATE)
        late, _ = run(tmp_path, f"griddepcontrol.wait;{write}", settled=("out",), ptx=LATE)

        assert "before griddepcontrol.wait" in str(early)
        assert late.is_clean, str(late)

    def test_what_the_kernel_wrote_is_settled_no_more(self, tmp_path: Path) -> None:
        """One warp waits and writes; what others read before they wait may be that."""
        body = """
    setp.ge.s32 %p2, %r2, 32;
    @%p2 bra $L_READ;
    griddepcontrol.wait;
    st.relaxed.gpu.global.b32 [%rd3], %r2;
    bra $L_DONE;
$L_READ:
    ld.relaxed.gpu.global.b32 %r3, [%rd1];
"""
        report, _ = run(tmp_path, body, modes="eager", settled=("out",), ptx=LATE)

        assert "before griddepcontrol.wait" in str(report)

    def test_a_name_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="settled: 'in' is no tensor; allowed: out"):
            run(tmp_path, DOUBLE, settled=("in",))


def test_ptx_without_a_target(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="names no target"):
        emulate(Artifact(library=build(tmp_path), symbol="double", ptx=""), 1, 2)


def test_modes_are_checked_first() -> None:
    with pytest.raises(InputError, match="modes"):
        emulate(Artifact(library=b"", symbol="none", ptx=""), modes="slow")
