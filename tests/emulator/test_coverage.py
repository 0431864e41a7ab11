# SPDX-License-Identifier: Apache-2.0
"""Coverage: what was executed, what was not, and what nothing can reach."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from jitgen.emulator.program.coverage import (
    STORE,
    SYNCHRONISATION,
    Coverage,
    purpose_of,
)
from jitgen.emulator.program.translate import Program
from jitgen.emulator.program.unreached import CUT_OFF, TRAPPED
from tests.emulator.program import run_ptx

HEAD = "mov.u32 %r1, %tid.x;\nmov.b32 %r2, 2048;\n"
BRANCH = f"""{HEAD}
setp.lt.u32 %p1, %r1, 64;
@%p1 bra NEAR;
st.shared.b32 [%r2], %r1;
bar.sync 0;
NEAR:
bar.warp.sync -1;
"""


class Excuse(NamedTuple):
    condition: str
    reason: str
    function: str = ""


def coverage(body: str, threads: int = 32) -> Coverage:
    machine = run_ptx(body, threads=threads).machine
    return Coverage.of(machine.program, machine.block_counts, machine.held, machine.ways)


def texts(found: Coverage) -> list[str]:
    return [missed.place.partition(": ")[2] for missed in found.lacking]


def test_what_no_thread_came_to_is_named() -> None:
    found = coverage(BRANCH)

    assert texts(found) == ["st.shared.b32 [%r2], %r1", "bar.sync 0"]
    assert [missed.purpose for missed in found.missed] == [STORE, SYNCHRONISATION]
    assert found.purposes == {SYNCHRONISATION: (1, 2), STORE: (0, 1)}
    assert texts(coverage(BRANCH.replace("64", "0"))) == []


def test_two_runs_add_up() -> None:
    near, far = coverage(BRANCH), coverage(BRANCH.replace("64", "0"))
    both = near | Coverage(near.program, far.times, far.ways)

    assert both.lacking == []
    assert both.times.tolist() == (near.times + far.times).tolist()


@pytest.mark.parametrize(("number", "never"), [("64", ["passed"]), ("0", ["taken"]), ("16", [])])
def test_a_branch_has_two_outcomes(number: str, never: list[str]) -> None:
    found = coverage(BRANCH.replace("64", number).replace("bar.sync 0;", ""))

    assert [each.never for each in found.one_way] == never
    assert len(found.outcomes) == 2
    assert all("bra NEAR" in each.place for each in found.one_way)


def test_outcomes_of_two_runs_add_up() -> None:
    near, far = coverage(BRANCH), coverage(BRANCH.replace("64", "0"))
    both = near | Coverage(near.program, far.times, far.ways)

    assert both.one_way == []


def test_a_branch_to_a_trap_has_one_outcome() -> None:
    body = f"{HEAD}setp.lt.u32 %p1, %r1, 64;\n@%p1 bra NEAR;\ntrap;\nNEAR:\nbar.warp.sync -1;\n"
    found = coverage(body)

    assert len(found.outcomes) == 1
    assert found.one_way == []


def test_a_guard_that_never_held_is_no_execution() -> None:
    body = f"{HEAD}setp.gt.u32 %p1, %r1, {{}};\n@%p1 st.shared.b32 [%r2], %r1;\n"

    assert texts(coverage(body.format(31))) == ["@%p1 st.shared.b32 [%r2], %r1"]
    assert texts(coverage(body.format(30))) == []


@pytest.mark.parametrize(("number", "is_lacking"), [(0, False), (16, False), (32, True)])
def test_a_negated_guard(number: int, is_lacking: bool) -> None:
    """It counted where the predicate held for no thread, instead of where it did not for some."""
    body = f"{HEAD}setp.lt.u32 %p1, %r1, {number};\n@!%p1 st.shared.b32 [%r2], %r1;\n"

    assert bool(texts(coverage(body))) is is_lacking


def test_ways_that_end_in_a_trap_are_listed_with_the_reason() -> None:
    body = f"""{HEAD}
setp.lt.u32 %p1, %r1, 64;
@%p1 bra GOOD;
setp.lt.u32 %p2, %r1, 70;
@%p2 bra LOW;
st.shared.b32 [%r2], %r1;
trap;
LOW:
st.shared.b32 [%r2], %r1;
trap;
GOOD:
"""
    found = coverage(body)

    assert found.lacking == []
    assert [missed.reason for missed in found.missed] == [TRAPPED] * 2


def test_what_no_way_leads_to_is_listed_with_the_reason() -> None:
    found = coverage(f"{HEAD}bra DONE;\nbar.sync 0;\nDONE:\n")

    assert found.lacking == []
    assert [missed.reason for missed in found.missed] == [CUT_OFF]


SOURCE = """\
def kernel(waves):
    if waves == 0:
        release()
    store()
"""
NOTED = """\
.version 8.8
.target sm_90a
.visible .entry kernel()
{
.loc 1 1 5
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 64;
@%p1 bra NEXT;
.loc 1 1 5
bar.sync 1;
setp.lt.u32 %p2, %r1, 64;
@%p2 bra MORE;
bar.sync 2;
MORE:
.loc 1 3 5
bar.sync 3;
NEXT:
setp.lt.u32 %p3, %r1, 64;
@%p3 bra DONE;
.loc 1 4 5
bar.sync 4;
DONE:
ret;
}
"""


def test_an_excuse_counts_for_what_hangs_together() -> None:
    """Blocks in front of the marked one are part of it, those behind what was executed are not."""
    program = Program(NOTED, SOURCE)
    reached = ("@%p1 bra NEXT", "@%p3 bra DONE", "ret")
    counts = [
        int(any(x.text in reached for x in program.code[block.start : block.end]))
        for block in program.blocks
    ]
    found = Coverage.of(program, np.array(counts), set())
    excuse = Excuse("waves == 0", "never")

    assert len(found.lacking) == 4
    reasons = {x.place[-1]: x.reason for x in found.excused((excuse,)).missed}
    assert reasons == {"1": "never", "2": "never", "3": "never", "4": ""}


def test_an_excuse_counts_for_the_function_that_it_names() -> None:
    """A body that only calls one used to leave no line of its own, once it was inlined."""
    source = "def skip():\n    pass\n\ndef kernel():\n    if waves == 0:\n        skip()\n"
    program = Program(NOTED.replace(".loc 1 3 5", ".loc 1 2 5"), source)
    counts = [
        int(any(x.text in ("@%p1 bra NEXT", "ret") for x in program.code[b.start : b.end]))
        for b in program.blocks
    ]
    found = Coverage.of(program, np.array(counts), set())

    def excused(excuse: Excuse) -> bool:
        return any(x.reason for x in found.excused((excuse,)).missed)

    assert not excused(Excuse("waves == 0", "never"))
    assert excused(Excuse("waves == 0", "never", function="skip"))


def test_lines_of_functions() -> None:
    program = Program(NOTED, SOURCE)
    found = Coverage.of(program, np.array([1] + [0] * (len(program.blocks) - 1)), set())

    assert found.functions == {"kernel": (1, 3, [3, 4])}
    assert found.to_json()["functions"]["kernel"] == {"lines": [1, 3], "never": [3, 4]}


def test_purposes_of_opcodes() -> None:
    text = "\n".join(
        [
            "mbarrier.init.shared.b64 [%rd1], 1;",
            "cp.async.bulk.commit_group;",
            "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r2};",
            "wgmma.wait_group.sync.aligned 0;",
            "add.s32 %r1, %r1, 1;",
            "cp.async.wait_all;",
            "st.global.b32 [%rd1], %r1;",
        ]
    )
    program = Program(f".version 8.8\n.target sm_90a\n.visible .entry k()\n{{\n{text}\nret;\n}}\n")
    wanted = [SYNCHRONISATION, SYNCHRONISATION, STORE, SYNCHRONISATION, "", SYNCHRONISATION, STORE]

    assert [purpose_of(x) for x in program.code] == [*wanted, ""]
