# SPDX-License-Identifier: Apache-2.0
"""
Moves, comparisons and selections of the emulator.
"""

from __future__ import annotations

from math import nan

import numpy as np
import pytest

from jitgen.emulator.program.parse import SHARED_WINDOW
from tests.emulator.evaluate import bf16, evaluate, f16, f32, s16, s32, s64


def test_a_register_is_copied_not_shared():
    found = evaluate("mov.b32 %r2, %r1; add.s32 %r1, %r1, 1; mov.b32 %r3, 7;", r1=s32(1, 2))
    assert found["r1"].tolist() == [2, 3]
    assert found["r2"].tolist() == [1, 2]
    assert found["r3"].tolist() == [7, 7]


def test_registers_are_joined_and_cut():
    joined = evaluate("mov.b64 %rd1, {%r1, %r2};", r1=s32(1), r2=s32(2))["rd1"]
    assert joined.tolist() == [2 << 32 | 1]
    cut = evaluate("mov.b64 {%r1, %r2}, %rd1;", rd1=s64(2 << 32 | 1))
    assert (cut["r1"].tolist(), cut["r2"].tolist()) == ([1], [2])
    cut = evaluate("mov.b64 {%rs1, _, %rs3, %rs4}, %rd1;", rd1=s64(0x0004000300020001))
    assert [cut[name].tolist() for name in ("rs1", "rs3", "rs4")] == [[1], [3], [4]]
    joined = evaluate("mov.b32 %r1, {%rs1, %rs2};", rs1=s16(1), rs2=s16(-1))["r1"]
    assert joined.tolist() == [0xFFFF0001]


def test_a_guard_keeps_the_old_value():
    inputs = {"p1": [True, False], "r1": s32(1, 1), "r2": s32(5, 5)}
    assert evaluate("@%p1 mov.b32 %r2, %r1;", **inputs)["r2"].tolist() == [1, 5]
    assert evaluate("@!%p1 mov.b32 %r2, %r1;", **inputs)["r2"].tolist() == [5, 1]


def test_global_addresses_are_generic_already():
    text = "cvta.global.u64 %rd2, %rd1; cvta.to.global.u64 %rd3, %rd2;"
    found = evaluate(text, rd1=s64(1024))
    assert (found["rd2"].tolist(), found["rd3"].tolist()) == ([1024], [1024])


def test_shared_memory_is_a_window_of_generic_addresses():
    text = "cvta.shared.u64 %rd2, %rd1; cvta.to.shared::cluster.u64 %rd3, %rd2;"
    found = evaluate(text, rd1=s64(1024))
    assert (found["rd2"].tolist(), found["rd3"].tolist()) == ([SHARED_WINDOW + 1024], [1024])
    assert SHARED_WINDOW % 2**32 == 0, "an address that is cut to 32 bits is the shared one"


def test_low_addresses_are_of_global_memory():
    """Where Python is not position-independent, memory of the host begins below 4 GiB."""
    text = "isspacep.shared %p1, %rd1; isspacep.global %p2, %rd1;"
    found = evaluate(text, rd1=s64(1024, 1 << 46, SHARED_WINDOW + 1024))
    assert found["p1"].tolist() == [False, False, True]
    assert found["p2"].tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [("eq.b32", [0, 1]), ("ne.b32", [1, 0]), ("lt.s32", [1, 0]), ("lt.u32", [0, 0]),
     ("gt.u32", [1, 0]), ("lo.u32", [0, 0]), ("hs.u32", [1, 1]), ("ge.s32", [0, 1])],
)  # fmt: skip
def test_integers_compared(comparison, expected):
    found = evaluate(f"setp.{comparison} %p1, %r1, 3;", r1=s32(-1, 3))["p1"]
    assert found.tolist() == [bool(x) for x in expected]


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [("eq", [1, 0]), ("ne", [0, 0]), ("neu", [0, 1]), ("equ", [1, 1]), ("lt", [0, 0]),
     ("ltu", [0, 1]), ("ge", [1, 0]), ("geu", [1, 1]), ("num", [1, 0]), ("nan", [0, 1])],
)  # fmt: skip
def test_nan_compared(comparison, expected):
    found = evaluate(f"setp.{comparison}.f32 %p1, %r1, 0f3F800000;", r1=f32(1, nan))["p1"]
    assert found.tolist() == [bool(x) for x in expected]


def test_a_comparison_combined_with_a_predicate():
    """The second result is what the opposite comparison gives, with the predicate as it was."""
    inputs = {"r1": s32(0, 1, 0), "p3": [True, True, False]}
    found = evaluate("setp.eq.and.b32 %p1|%p2, %r1, 0, %p3;", **inputs)
    assert found["p1"].tolist() == [True, False, False]
    assert found["p2"].tolist() == [False, True, False]
    found = evaluate("setp.eq.or.b32 %p3|%p2, %r1, 0, !%p3;", **inputs)
    assert found["p3"].tolist() == [True, False, True]
    assert found["p2"].tolist() == [False, True, True]


def test_halves_compared():
    inputs = {"r1": f16(1, 2, 3, 4).view(np.uint32), "r2": f16(0, 3, 4, 3).view(np.uint32)}
    found = evaluate("setp.gt.f16x2 %p1|%p2, %r1, %r2;", **inputs)
    assert found["p1"].tolist() == [True, False]
    assert found["p2"].tolist() == [False, True]
    found = evaluate("setp.gt.bf16 %p1, %rs1, %rs2;", rs1=bf16(1, 2), rs2=bf16(0, 3))["p1"]
    assert found.tolist() == [True, False]


def test_selections():
    inputs = {"r1": s32(1, 2), "p1": [True, False]}
    assert evaluate("selp.b32 %r3, %r1, 5, %p1;", **inputs)["r3"].tolist() == [1, 5]
    found = evaluate("selp.f32 %r3, 0f3F800000, 0f40000000, %p1;", **inputs)["r3"]
    assert found.view(np.float32).tolist() == [1, 2]
    assert evaluate("slct.b32.s32 %r3, 1, 2, %r1;", r1=s32(-1, 2))["r3"].tolist() == [2, 1]
    assert evaluate("set.eq.u32.s32 %r3, %r1, 2;", r1=s32(-1, 2))["r3"].tolist() == [0, 2**32 - 1]
    found = evaluate("set.eq.f32.s32 %r3, %r1, 2;", r1=s32(-1, 2))["r3"]
    assert found.view(np.float32).tolist() == [0, 1]


def test_a_register_of_128_bits_is_two_of_64():
    text = "{ .reg .b128 %wide; mov.b128 %wide, {%rd1, %rd2}; mov.b128 {%rd3, %rd4}, %wide; }"
    found = evaluate(text, rd1=s64(1), rd2=s64(2))
    assert (found["rd3"].tolist(), found["rd4"].tolist()) == ([1], [2])
