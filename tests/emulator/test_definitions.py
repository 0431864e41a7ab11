# SPDX-License-Identifier: Apache-2.0
"""Registers and predicates that are read before anything was written to them."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.program.translate import Program
from tests.emulator.mutation import assert_found
from tests.emulator.program import BY_WARP, EAGER, run_ptx
from tests.emulator.tensor_core import Kernel

RIGHT = """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 32;
@%p1 bra $L_low;
mov.b32 %r2, 0x500;
bra $L_join;
$L_low:
mov.b32 %r2, 0x700;
$L_join:
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r3, %r2;
mov.u32 %r5, 0;
$L_loop:
setp.gt.u32 %p2, %r5, 2;
@!%p2 mov.b32 %r6, %r5;
@%p2 mov.b32 %r6, 9;
st.shared.b32 [%r4], %r6;
add.u32 %r5, %r5, 1;
setp.lt.u32 %p3, %r5, 4;
@%p3 bra $L_loop;
bar.sync 0;
"""


def undefined(body: str, **options: object) -> list[str]:
    """Return what is found about registers without a value."""
    made = run_ptx(body, threads=64, **options).machine  # type: ignore[arg-type]
    return [str(x) for x in made.findings.values() if x.kind == "undefined"]


@pytest.mark.parametrize("mode", [EAGER, BY_WARP], ids=lambda mode: mode.name)
def test_a_right_kernel(mode: object) -> None:
    assert undefined(RIGHT, mode=mode) == []


@pytest.mark.parametrize(
    ("line", "new", "found"),
    [
        ("mov.u32 %r5, 0;", "", "thread 0 reads %r5"),
        ("shl.b32 %r3, %r1, 2;", "", "thread 0 reads %r3"),
        ("setp.lt.u32 %p3, %r5, 4;", "", "thread 0 reads %p3"),
        ("setp.lt.u32 %p1, %r1, 32;", "@%p2 setp.lt.u32 %p1, %r1, 32;", "thread 0 reads %p2"),
        ("bar.sync 0;", "bar.sync %r9, 64;", "thread 0 reads %r9"),
    ],
)
def test_nothing_was_written_on_any_way(line: str, new: str, found: str) -> None:
    assert line in RIGHT
    body = RIGHT.replace(line, new)
    assert_found(undefined(body), (found, "to which it never wrote"))


SOME = """
mov.u32 %r1, %tid.x;
setp.lt.u32 %p1, %r1, 40;
{write}
{use}
"""


@pytest.mark.parametrize(
    ("write", "use", "thread"),
    [
        ("@%p1 mov.b32 %r2, 64;", "st.shared.b32 [%r2+0x500], 1;", 40),
        ("@!%p1 mov.b32 %r2, 64;", "st.shared.b32 [%r2+0x500], 1;", 0),
        ("@%p1 setp.eq.u32 %p2, %r1, 3;", "@%p2 st.shared.b32 [0x500], 1;", 40),
        ("@%p1 mov.b32 %r2, 0;", "bar.sync %r2, 64;", 40),
        ("setp.lt.u32 %p2, %r1, 50;", "@%p3 mov.b64 %rd1, {%r1, %r1};", 0),
    ],
    ids=["address", "the others", "predicate", "barrier", "guard of a pack"],
)
def test_some_threads_wrote_nothing(write: str, use: str, thread: int) -> None:
    assert_found(undefined(SOME.format(write=write, use=use)), (f"thread {thread} reads",))


@pytest.mark.parametrize(
    ("write", "use"),
    [
        ("@%p1 mov.b32 %r2, 0x500;", "@%p1 st.shared.b32 [%r2], 1;"),
        ("@%p1 mov.b32 %r2, 0x500;\n@!%p1 mov.b32 %r2, 0x600;", "st.shared.b32 [%r2], 1;"),
        ("@%p1 mov.b32 %r2, 5;", "add.u32 %r3, %r2, 1;"),  # a value that may not matter
        ("mov.b64 %rd1, {%r1, %r2};", "mov.b64 {%r3, _}, %rd1;"),  # the other half comes later
        ("mov.b64 {_, %r3}, %rd1;", "mov.b64 %rd2, {%r1, %r3};"),
        ("// implicit-def: %r2", "add.u32 %r3, %r2, 1;"),
    ],
)
def test_reads_that_are_right_or_harmless(write: str, use: str) -> None:
    assert undefined(SOME.format(write=write, use=use)) == []


FILLED = """
mov.u32 %r1, %tid.x;
mov.b64 %rd1, {%r1, %r1};
mov.b64 %rd2, {%r1, %r2};
{use}
mov.b64 {%r3, _}, %rd3;
st.shared.b32 [0x500], %r3;
"""


@pytest.mark.parametrize(
    "use",
    [
        "mov.b64 %rd3, %rd2;",
        "add.f32x2 %rd3, %rd1, %rd2;",
        "fma.rn.f32x2 %rd4, %rd1, %rd2, %rd2;\nadd.f32x2 %rd3, %rd4, %rd1;",
    ],
)
def test_a_half_without_a_value_may_be_dropped(use: str) -> None:
    assert undefined(FILLED.replace("{use}", use)) == []
    assert undefined(FILLED.replace("{use}", f"{use}\nadd.u32 %r5, %r2, 1;")) != []


def test_a_descriptor_without_a_value() -> None:
    mma = "@%p0 tcgen05.mma.cta_group::1.kind::f16 [0], %rd1, %rd2, %r7, %p2;"
    with np.errstate(all="ignore"):
        kernel = Kernel(f"mov.b64 %rd1, 0;\nmov.b64 %rd2, 0;\nsetp.ne.u32 %p2, 0, 0;\n{mma}")
    assert kernel.program.register_counts["unwritten"] == 1


def test_what_is_not_in_doubt_costs_nothing() -> None:
    text = f".version 8.8\n.target sm_90a\n.visible .entry k()\n{{\n{RIGHT}ret;\n}}\n"
    program = Program(text)
    assert program.register_counts["unwritten"] == 0
    assert "written" not in program.python
