# SPDX-License-Identifier: Apache-2.0
"""Registers that warps give back and ask for: mistakes, and their correct twins."""

from __future__ import annotations

import struct

import pytest

from jitgen.emulator.host.cubin import MachineCode, kernels
from jitgen.errors import Deadlock, UnsupportedPtx
from tests.emulator.program import BY_WARP, DEFERRED, EAGER, Run, run_ptx

MODES = pytest.mark.parametrize("mode", [EAGER, DEFERRED, BY_WARP], ids=lambda mode: mode.name)

ROLES = """
    mov.u32 %r1, %warpid;
    setp.ge.u32 %p1, %r1, 8;
    @%p1 bra $L__load;
    setmaxnreg.inc.sync.aligned.u32 MATH;
    bra $L__end;
    $L__load:
    setmaxnreg.dec.sync.aligned.u32 LOAD;
    $L__end:
"""
"""Two warpgroups ask for more, a third one gives back."""


def roles(math: int, load: int, **options: object) -> Run:
    text = ROLES.replace("MATH", str(math)).replace("LOAD", str(load))
    return run_ptx(text, threads=384, registers=168, **options)


@MODES
def test_what_one_group_gives_the_others_get(mode: object) -> None:
    run = roles(232, 40, mode=mode)
    assert run.findings == []
    pool = run.cluster.ctas[0].registers
    assert (pool.limits, pool.free) == ([232] * 8 + [40] * 4, 0)


@MODES
def test_more_than_the_pool_has_is_a_deadlock(mode: object) -> None:
    with pytest.raises(Deadlock, match=r"registers more.*setmaxnreg asks for 240, it has 168"):
        roles(240, 40, mode=mode)


def test_the_pool_is_what_the_launch_gave_and_no_more() -> None:
    """65536 / 384 is 170; the launch gives 168, and the rest is unused."""
    assert roles(224, 56).findings == []
    with pytest.raises(Deadlock):
        roles(224, 64)


@pytest.mark.parametrize(
    ("math", "load", "message"),
    [(160, 40, "increases the registers of a warp to 160; it has 168"),
     (168, 176, "decreases the registers of a warp to 176; it has 168")],
)  # fmt: skip
def test_the_wrong_way(math: int, load: int, message: str) -> None:
    run = roles(math, load)
    assert run.findings == ["setmaxnreg"]
    (finding,) = run.machine.findings.values()
    assert message in finding.message


def test_the_same_number_is_no_way() -> None:
    assert roles(168, 168).findings == []


ONE_DIFFERS = """
    mov.u32 %r1, %warpid;
    setp.eq.u32 %p1, %r1, 2;
    @%p1 bra $L__two;
    setmaxnreg.dec.sync.aligned.u32 24;
    ret;
    $L__two:
    setmaxnreg.dec.sync.aligned.u32 32;
"""


def test_warps_of_a_group_that_disagree() -> None:
    run = run_ptx(ONE_DIFFERS, threads=128, registers=64)
    assert run.findings == ["exit"]
    assert run_ptx(ONE_DIFFERS.replace("32;", "24;"), threads=128, registers=64).findings == []


def test_a_warp_that_does_not_take_part() -> None:
    """It has the number that the others ask for, but did not execute the instruction."""
    text = ONE_DIFFERS.replace("24;", "64;").replace("setmaxnreg.dec.sync.aligned.u32 32;", "")
    assert run_ptx(text, threads=128, registers=64).findings == ["exit"]


TWICE = """
    setmaxnreg.dec.sync.aligned.u32 48;
    bar.sync 1, 128;
    setmaxnreg.dec.sync.aligned.u32 24;
"""


@MODES
def test_a_second_one_without_synchronisation(mode: object) -> None:
    right = run_ptx(TWICE, threads=128, registers=64, mode=mode)
    assert right.findings == []
    text = TWICE.replace("bar.sync 1, 128;", "")
    assert run_ptx(text, threads=128, registers=64, mode=mode).findings == ["setmaxnreg"]


@pytest.mark.parametrize("number", [16, 20, 36, 264])
def test_numbers_that_there_are_not(number: int) -> None:
    with pytest.raises(UnsupportedPtx, match=f"{number} registers; a multiple of 8"):
        run_ptx(f"setmaxnreg.dec.sync.aligned.u32 {number};", threads=128)


def test_a_launch_without_a_number_is_open() -> None:
    run = run_ptx("setmaxnreg.dec.sync.aligned.u32 40;", threads=128)
    assert run.findings == ["setmaxnreg open"]


@MODES
def test_machine_code_without_it_neither_waits_nor_takes(mode: object) -> None:
    run = roles(240, 40, mode=mode, ignores_setmaxnreg=True)
    assert set(run.findings) == {"setmaxnreg open"}
    assert run.cluster.ctas[0].registers.limits == [168] * 12


def image(code: bytes) -> bytes:
    """Return machine code with one kernel ``k`` of 92 registers: an ELF file with five sections."""
    names = b"\0.names\0.symtab\0.nv.info\0.text.k\0k\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", names.index(b"\0k\0") + 1, 2, 0, 4, 0, 0)
    info = struct.pack("<BBHII", 4, 0x2F, 8, 1, 92)
    contents = [b"", names, symbols, info, code]
    titles = [0, *(names.index(x) for x in (b".names", b".symtab", b".nv.info", b".text.k"))]
    made, table = bytes(64), b""
    for number, (title, content) in enumerate(zip(titles, contents, strict=True)):
        place = (title, 2 if number == 2 else 1, 0, 0, len(made), len(content), 1, 0, 0, 0)
        table += struct.pack("<IIQQQQIIQQ", *place)
        made += content
    magic = b"\x7fELF\x02\x01" + bytes(10)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", magic, 2, 190, 1, 0, 0, len(made), 0, 64, 0, 0, 64, 5, 1
    )
    return head + made[64:] + table


@pytest.mark.parametrize(("opcode", "has"), [(0x79C8, True), (0x7918, False), (0x179C9, False)])
def test_whether_machine_code_has_one(opcode: int, has: bool) -> None:
    code = struct.pack("<QQQQ", 0x7918, 0, opcode, 0)
    assert kernels(b"before" + image(code)) == {"k": MachineCode(92, has_setmaxnreg=has)}
