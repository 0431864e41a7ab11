# SPDX-License-Identifier: Apache-2.0
"""Registers of wgmma: accesses in flight, fences that lack, sums that nothing was put in."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.modes import Mode
from tests.emulator.wgmma import (
    A_START,
    B_START,
    COMMIT,
    FENCE,
    MODES,
    WAIT,
    Kernel,
    Matrix,
    descriptors,
    product,
    vector,
)

A, B = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)

START = descriptors(A, B) + "mov.u32 %r50, %tid.x;\n"
START += "setp.lt.u32 %p1, %r50, 40;\nsetp.eq.u32 %p2, %r50, 0;\n"
ZEROS = "".join(f"mov.b32 %r{i}, 0;\n" for i in range(8))
PART_OF_A = "".join(f"mov.b32 %r{20 + i}, 0x3c003c00;\n" for i in range(4))
FROM_REGISTERS = product(a=vector(4, 20), rest="1, 1, 0")

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def findings(body: str, mode: Mode = MODES[0]) -> list[str]:
    return Kernel(START + body, A, B, mode=mode).findings


# --- accesses in flight --------------------------------------------------------------------------

ACCESSES = [
    "add.f32 %r3, %r3, 0f3F800000;",
    "mul.f32 %r3, %r3, 0f40000000;",
    "fma.rn.f32 %r3, %r3, %r3, %r3;",
    "mov.b32 %r3, %r50;",
    "mov.b32 %r60, %r3;",
    "cvt.rn.f16.f32 %rs1, %r3;",
    "cvt.rn.f16x2.f32 %r60, %r2, %r3;",
    "selp.b32 %r60, %r3, %r50, %p1;",
    "add.rn.f16x2 %r60, %r3, %r50;",
    "mov.b64 %rd5, {%r50, %r3};",
    "mov.b64 {%r3, %r60}, %rd1;",
    "setp.gt.f32 %p5, %r3, 0f00000000;",
    "@%p2 st.shared.b32 [0xF000], %r3;",
    "ld.shared.b32 %r3, [0x2000];",
    "shfl.sync.bfly.b32 %r60, %r3, 1, 31, -1;",
    "@%p1 add.f32 %r3, %r3, 0f3F800000;",
    "@!%p1 mov.b32 %r60, %r3;",
]


@every_mode
@pytest.mark.parametrize("access", ACCESSES)
def test_accumulators_in_flight(access: str, mode: Mode) -> None:
    early = FENCE + product() + COMMIT + access + "\n" + WAIT
    late = FENCE + product() + COMMIT + WAIT + access + "\n"
    assert findings(early, mode) == ["register"]
    assert findings(late, mode) == []


@every_mode
@pytest.mark.parametrize("access", ["mov.b32 %r22, %r50;", "xor.b32 %r60, %r22, %r50;"])
def test_registers_of_a_in_flight(access: str, mode: Mode) -> None:
    begin = PART_OF_A + FENCE + FROM_REGISTERS + COMMIT
    assert findings(begin + access + "\n" + WAIT, mode) == ["register"]
    assert findings(begin + WAIT + access + "\n", mode) == []


@every_mode
def test_a_guard_that_holds_for_no_thread(mode: Mode) -> None:
    begin = "setp.gt.u32 %p5, %r50, LIMIT;\n" + FENCE + product() + COMMIT
    body = begin + "@%p5 add.f32 %r3, %r3, %r3;\n" + WAIT
    assert findings(body.replace("LIMIT", "200"), mode) == []
    assert findings(body.replace("LIMIT", "126"), mode) == ["register"]


@every_mode
@pytest.mark.parametrize(("register", "found"), [(0, []), (8, ["register"])])
def test_a_wait_that_keeps_a_group(register: int, found: list[str], mode: Mode) -> None:
    body = FENCE + product() + COMMIT + product(first=8) + COMMIT
    body += f"wgmma.wait_group.sync.aligned 1;\nadd.f32 %r{register}, %r{register}, %r50;\n" + WAIT
    assert findings(body, mode) == found


@every_mode
def test_a_wait_without_a_commit_waits_for_nothing(mode: Mode) -> None:
    body = FENCE + product() + WAIT + "add.f32 %r60, %r3, %r50;\n" + COMMIT + WAIT
    assert findings(body, mode) == ["register"]


@every_mode
def test_a_loop_that_reads_what_the_last_round_began(mode: Mode) -> None:
    """The access stands before the product, and only in the second round it is too early."""
    loop = f"""{ZEROS}mov.b32 %r40, 0;
    $LOOP:
    EARLY
    {FENCE}{product(is_added=1)}{COMMIT}
    LATE
    add.u32 %r40, %r40, 1;
    setp.lt.u32 %p3, %r40, 3;
    @%p3 bra $LOOP;
    {WAIT}"""
    read = "mul.f32 %r60, %r3, %r3;"
    assert findings(loop.replace("EARLY", read).replace("LATE", ""), mode) == ["register"]
    assert findings(loop.replace("EARLY", read).replace("LATE", WAIT), mode) == []


def test_products_that_use_registers_of_each_other() -> None:
    a_of_sums = product(a=vector(4, 0), rest="1, 1, 0", first=8)
    assert findings(FENCE + product() + a_of_sums + COMMIT + WAIT) == ["register"]
    waited = FENCE + product() + COMMIT + WAIT
    assert findings(waited + a_of_sums + COMMIT + WAIT) == ["fence"]
    assert findings(waited + FENCE + a_of_sums + COMMIT + WAIT) == []
    sums_in_a = product(first=20)
    begin = PART_OF_A + FENCE + FROM_REGISTERS
    assert findings(begin + sums_in_a + COMMIT + WAIT) == ["register"]
    assert findings(begin + COMMIT + WAIT + FENCE + sums_in_a + COMMIT + WAIT) == []


def test_a_register_of_a_that_two_products_read() -> None:
    both = FROM_REGISTERS + product(a=vector(4, 20), rest="1, 1, 0", first=8)
    write = "mov.b32 %r21, 0;\n"
    begin = PART_OF_A + FENCE + both + COMMIT
    assert findings(begin + WAIT + write) == []
    assert findings(begin + write + WAIT) == ["register"]


# --- fences --------------------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize(
    "access", ["mov.b32 %r3, 0;\n", "add.f32 %r3, %r3, %r3;\n", "mov.b32 %r60, %r3;\n"]
)
def test_accumulators_accessed_after_the_fence(access: str, mode: Mode) -> None:
    end = product(is_added=1) + COMMIT + WAIT
    assert findings(ZEROS + FENCE + access + end, mode) == ["fence"]
    assert findings(ZEROS + access + FENCE + end, mode) == []


@every_mode
def test_registers_of_a_written_after_the_fence(mode: Mode) -> None:
    end = FROM_REGISTERS + COMMIT + WAIT
    assert {*findings(FENCE + PART_OF_A + end, mode)} == {"fragment"}
    assert findings(PART_OF_A + FENCE + end, mode) == []


@every_mode
def test_a_guarded_access_after_the_fence(mode: Mode) -> None:
    body = ZEROS + "setp.gt.u32 %p5, %r50, LIMIT;\n" + FENCE
    body += "@%p5 mov.b32 %r3, 0;\n" + product(is_added=1) + COMMIT + WAIT
    assert findings(body.replace("LIMIT", "126"), mode) == ["fence"]
    assert findings(body.replace("LIMIT", "200"), mode) == []


@every_mode
def test_a_fence_that_only_the_first_round_executes(mode: Mode) -> None:
    loop = f"""{ZEROS}mov.b32 %r40, 0;
    ONCE
    $LOOP:
    ALWAYS
    {product(is_added=1)}{COMMIT}{WAIT}
    add.f32 %r3, %r3, %r3;
    add.u32 %r40, %r40, 1;
    setp.lt.u32 %p3, %r40, 3;
    @%p3 bra $LOOP;
    """
    assert findings(loop.replace("ONCE", FENCE).replace("ALWAYS", ""), mode) == ["fence"]
    assert findings(loop.replace("ONCE", "").replace("ALWAYS", FENCE), mode) == []


def test_products_of_two_shapes_into_the_same_registers() -> None:
    other = product("m64n16k8.f32.tf32.tf32", is_added=1, rest="1, 1")
    assert findings(FENCE + product() + other + COMMIT + WAIT) == ["fence"]
    assert findings(FENCE + product() + FENCE + other + COMMIT + WAIT) == []
    assert findings(FENCE + product() + product(is_added=1) + COMMIT + WAIT) == []


def test_a_narrower_product_into_registers_of_another() -> None:
    narrow = product("m64n8k16.f32.f16.f16", 4)
    begin = FENCE + product() + COMMIT + WAIT
    assert findings(begin + narrow + COMMIT + WAIT) == ["fence"]
    assert findings(begin + FENCE + narrow + COMMIT + WAIT) == []


# --- accumulators that were never written --------------------------------------------------------


@every_mode
def test_a_product_is_added_to_nothing(mode: Mode) -> None:
    end = FENCE + product(is_added=1) + COMMIT + WAIT
    assert findings(end, mode) == ["undefined"]
    assert findings(ZEROS + end, mode) == []
    assert findings(ZEROS.replace("mov.b32 %r5, 0;\n", "") + end, mode) == ["undefined"]


@every_mode
@pytest.mark.parametrize(("value", "found"), [(1, ["undefined"]), (0, [])])
def test_a_predicate_says_whether_it_is_added(value: int, found: list[str], mode: Mode) -> None:
    body = f"mov.pred %p4, {value};\n" + FENCE
    body += product(is_added="%p4") + COMMIT + WAIT  # type: ignore[arg-type]
    assert findings(body, mode) == found


@every_mode
@pytest.mark.parametrize(("first", "found"), [(0, []), (1, ["undefined"])])
def test_a_loop_whose_first_round_replaces(first: int, found: list[str], mode: Mode) -> None:
    body = f"""mov.pred %p4, {first};
    mov.b32 %r40, 0;
    $LOOP:
    {FENCE}{product(is_added="%p4")}{COMMIT}{WAIT}
    mov.pred %p4, 1;
    add.u32 %r40, %r40, 1;
    setp.lt.u32 %p3, %r40, 3;
    @%p3 bra $LOOP;
    """  # type: ignore[arg-type]
    assert findings(body, mode) == found


@every_mode
def test_some_threads_wrote_their_accumulators(mode: Mode) -> None:
    end = FENCE + product(is_added=1) + COMMIT + WAIT
    some = ZEROS.replace("mov.b32 %r5", "@%p1 mov.b32 %r5")
    assert findings(some + end, mode) == ["undefined"]
    assert findings(some + "@!%p1 mov.b32 %r5, 0;\n" + end, mode) == []


@every_mode
def test_a_in_registers_that_nothing_was_put_in(mode: Mode) -> None:
    end = FENCE + FROM_REGISTERS + COMMIT + WAIT
    assert findings(end, mode) == ["undefined"]
    assert findings(PART_OF_A + end, mode) == []


def test_what_an_access_in_flight_does_is_found_where_it_stands() -> None:
    body = FENCE + product() + COMMIT + "add.f32 %r3, %r3, %r50;\n" + WAIT
    kernel = Kernel(START + body, A, B)
    (found,) = kernel.machine.findings.values()
    assert "warp 0 accesses %r3, which is an accumulator of a wgmma in flight" in str(found)
    assert "add.f32 %r3, %r3, %r50" in str(found)
    assert (kernel.result(16) == A.values @ B.values.T)[:, np.arange(16) != 8].any()
