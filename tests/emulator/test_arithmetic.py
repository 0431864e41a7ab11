# SPDX-License-Identifier: Apache-2.0
"""
Arithmetic of the emulator: each instruction on a few numbers worked out by hand.
"""

from __future__ import annotations

import re
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitgen.emulator.formats.numbers import encode
from jitgen.errors import UnsupportedPtx
from tests.emulator.evaluate import bf16, evaluate, f16, f32, f64, numbers, s16, s32, s64

LARGEST, SMALLEST = 2**31 - 1, -(2**31)
LARGEST_F32 = float(np.finfo(np.float32).max)

INTEGERS = [
    ("add.s32", [(1, 2), (-1, -5), (LARGEST, 1)], [3, -6, SMALLEST]),
    ("add.sat.s32", [(LARGEST, 1), (SMALLEST, -5), (1, 2)], [LARGEST, SMALLEST, 3]),
    ("sub.s32", [(1, 2), (-1, -5)], [-1, 4]),
    ("sub.sat.s32", [(LARGEST, -1)], [LARGEST]),
    ("mul.lo.s32", [(3, -4), (2**16, 2**16)], [-12, 0]),
    ("mul.hi.s32", [(LARGEST, 2), (SMALLEST, -5)], [0, 2]),
    ("mul.hi.u32", [(-1, -1)], [-2]),
    ("mul24.lo.u32", [(0x7F000003, 5)], [15]),
    ("mul24.hi.s32", [(0xFFFFFF, 5), (0x7FFFFF, 0x7FFFFF)], [-1, 0x3FFFFF00 >> 0]),
    ("mad.lo.s32", [(3, -4, 5)], [-7]),
    ("mad.hi.sat.s32", [(2**30, 8, LARGEST), (2**30, 8, 1)], [LARGEST, 3]),
    ("min.s32", [(-3, 4)], [-3]),
    ("min.u32", [(-3, 4)], [4]),
    ("max.s32", [(-3, 4)], [4]),
    ("max.u32", [(-3, 4)], [-3]),
    ("max.relu.s32", [(-3, -4), (2, 1)], [0, 2]),
    ("neg.s32", [(5,), (SMALLEST,)], [-5, SMALLEST]),
    ("abs.s32", [(-5,)], [5]),
    ("sad.s32", [(-3, 4, 1), (4, -3, 1)], [8, 8]),
    ("sad.u32", [(-1, 1, 0)], [-2]),
    ("div.s32", [(7, 2), (-7, 2), (7, -2), (-7, -2), (SMALLEST, -1)], [3, -3, -3, 3, SMALLEST]),
    ("div.u32", [(-2, 2)], [LARGEST]),
    ("rem.s32", [(7, 2), (-7, 2), (7, -2), (-7, -2)], [1, -1, 1, -1]),
    ("rem.u32", [(-1, 16)], [15]),
]

FLOATS = [
    ("add.f32", [(1, 2), (inf, -inf)], [3, nan]),
    ("sub.f32", [(1, 2)], [-1]),
    ("mul.f32", [(3, 0.5)], [1.5]),
    ("div.rn.f32", [(1, 4), (1, 0)], [0.25, inf]),
    ("fma.rn.f32", [(1 + 2**-23, 1 + 2**-23, -1 - 2**-22)], [2**-46]),
    ("fma.rm.f32", [(1, 1, 2**-60), (1, 1, -(2**-60))], [1, 1 - 2**-24]),
    ("add.rz.f32", [(1, -(2**-60)), (-1, 2**-60)], [1 - 2**-24, 2**-24 - 1]),
    ("add.rp.f32", [(1, 2**-60), (1, -(2**-60))], [1 + 2**-23, 1]),
    ("mul.rz.f32", [(3e38, 10)], [LARGEST_F32]),
    ("mul.ftz.f32", [(2**-100, 2**-30), (2**-127, 4), (2**-126, 1)], [0, 0, 2**-126]),
    ("add.sat.f32", [(1, 4), (-1, -1), (0.25, 0.25), (nan, 1)], [1, 0, 0.5, 0]),
    ("min.f32", [(1, 2), (nan, 3), (nan, nan)], [1, 3, nan]),
    ("max.f32", [(1, 2), (nan, 3)], [2, 3]),
    ("max.NaN.f32", [(1, 2), (nan, 3)], [2, nan]),
    ("max.xorsign.abs.f32", [(-1, 2), (-5, -3)], [-2, 5]),
    ("max.f32", [(-1, 2, 3)], [3]),
    ("neg.f32", [(4,)], [-4]),
    ("abs.f32", [(-4,)], [4]),
    ("sqrt.rn.f32", [(9,)], [3]),
    ("rcp.rn.f32", [(4,), (0,)], [0.25, inf]),
    ("rsqrt.approx.f32", [(4,)], [0.5]),
    ("ex2.approx.ftz.f32", [(3,), (-1,), (-140,)], [8, 0.5, 0]),
    ("lg2.approx.f32", [(8,), (0,)], [3, -inf]),
    ("sin.approx.f32", [(0,)], [0]),
    ("cos.approx.f32", [(0,)], [1]),
    ("tanh.approx.f32", [(0,), (inf,)], [0, 1]),
    ("copysign.f32", [(-1, 4)], [-4]),
]

HALVES = [
    ("add{}", [(1, 2), (1, -1)], [3, 0]),
    ("sub{}", [(1, 2)], [-1]),
    ("mul{}", [(3, -0.5)], [-1.5]),
    ("fma.rn{}", [(3, 2, 0.5)], [6.5]),
    ("fma.rn.relu{}", [(3, -2, 0.5), (1, 1, 1)], [0, 2]),
    ("add.sat{}", [(3, 2), (-1, 0)], [1, 0]),
    ("min{}", [(1, 2), (nan, 2)], [1, 2]),
    ("max.NaN{}", [(1, 2), (nan, 2)], [2, nan]),
    ("neg{}", [(1,)], [-1]),
    ("abs{}", [(-1,)], [1]),
    ("ex2.approx{}", [(3,)], [8]),
    ("tanh.approx{}", [(0,)], [0]),
]


def compute(opcode, rows, make, prefix="r"):
    """Evaluates one instruction on the columns of `rows`; the result's bits."""
    columns = list(zip(*rows, strict=True))
    inputs = {f"{prefix}{i}": make(*column) for i, column in enumerate(columns, 1)}
    operands = ", ".join(f"%{name}" for name in inputs)
    return evaluate(f"{opcode} %{prefix}9, {operands};", **inputs)[f"{prefix}9"]


@pytest.mark.parametrize(("opcode", "rows", "expected"), INTEGERS)
def test_integers(opcode, rows, expected):
    assert compute(opcode, rows, s32).view(np.int32).tolist() == expected


@pytest.mark.parametrize(("opcode", "rows", "expected"), FLOATS)
def test_floats(opcode, rows, expected):
    np.testing.assert_array_equal(compute(opcode, rows, f32).view(np.float32), expected)


@pytest.mark.parametrize(("opcode", "rows", "expected"), HALVES)
@pytest.mark.parametrize(("type_name", "make"), [("f16", f16), ("bf16", bf16)])
def test_halves(opcode, rows, expected, type_name, make):
    found = compute(opcode.format(f".{type_name}"), rows, make, "rs")
    np.testing.assert_array_equal(numbers(found, type_name), expected)


@pytest.mark.parametrize(("opcode", "rows", "expected"), HALVES)
@pytest.mark.parametrize(("type_name", "make"), [("f16", f16), ("bf16", bf16)])
def test_pairs_of_halves(opcode, rows, expected, type_name, make):
    def pair(*values):
        return np.stack([make(*values), make(*reversed(values))], axis=-1).view(np.uint32)[:, 0]

    found = compute(opcode.format(f".{type_name}x2"), rows, pair).view(np.uint16).reshape(-1, 2)
    np.testing.assert_array_equal(numbers(found[:, 0].copy(), type_name), expected)
    np.testing.assert_array_equal(numbers(found[:, 1].copy(), type_name), expected[::-1])


@pytest.mark.parametrize("operation", ["min", "max"])
def test_zero_is_larger_than_minus_zero(operation):
    found = compute(f"{operation}.f32", [(0.0, -0.0), (-0.0, 0.0)], f32).view(np.float32)
    assert np.signbit(found).tolist() == [operation == "min"] * 2


def test_wide_products():
    found = evaluate("mul.wide.s32 %rd1, %r1, %r2;", r1=s32(LARGEST, SMALLEST), r2=s32(2, -5))
    assert found["rd1"].view(np.int64).tolist() == [2 * LARGEST, -5 * SMALLEST]
    found = evaluate("mad.wide.u32 %rd1, %r1, %r2, %rd2;", r1=s32(-1), r2=s32(-1), rd2=s64(1))
    assert found["rd1"].tolist() == [(2**32 - 1) ** 2 + 1]
    found = evaluate("mul.wide.s16 %r1, %rs1, %rs2;", rs1=s16(-300), rs2=s16(300))
    assert found["r1"].view(np.int32).tolist() == [-90000]


@given(a=st.integers(-(2**63), 2**63 - 1), b=st.integers(-(2**63), 2**63 - 1))
def test_the_upper_half_of_128_bits(a, b):
    found = evaluate("mul.hi.s64 %rd3, %rd1, %rd2;", rd1=s64(a), rd2=s64(b))
    assert found["rd3"].view(np.int64).tolist() == [a * b >> 64]
    found = evaluate("mul.hi.u64 %rd3, %rd1, %rd2;", rd1=s64(a), rd2=s64(b))
    assert found["rd3"].tolist() == [(a % 2**64) * (b % 2**64) >> 64]


@given(a=st.integers(0, 2**64 - 1), b=st.integers(0, 2**64 - 1))
def test_a_carry_links_two_registers(a, b):
    halves = {"r1": s32(a), "r2": s32(a >> 32), "r3": s32(b), "r4": s32(b >> 32)}
    added = evaluate("add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4;", **halves)
    assert int(added["r5"][0]) | int(added["r6"][0]) << 32 == (a + b) % 2**64
    less = evaluate("sub.cc.u32 %r5, %r1, %r3; subc.u32 %r6, %r2, %r4;", **halves)
    assert int(less["r5"][0]) | int(less["r6"][0]) << 32 == (a - b) % 2**64


def test_a_carry_of_a_product():
    text = "mad.lo.cc.u32 %r5, %r1, %r1, %r2; madc.hi.u32 %r6, %r1, %r1, 0;"
    found = evaluate(text, r1=s32(-1), r2=s32(-1))
    assert int(found["r5"][0]) | int(found["r6"][0]) << 32 == (2**32 - 1) ** 2 + 2**32 - 1


def test_division_by_zero_is_defined():
    found = evaluate("div.u32 %r3, %r1, %r2;", r1=s32(7, 9), r2=s32(2, 0))
    assert found["r3"].view(np.int32).tolist() == [3, -1]
    found = evaluate("rem.u32 %r3, %r1, %r2;", r1=s32(7, 9), r2=s32(2, 0))
    assert found["r3"].tolist() == [1, 9]
    assert found.warnings == []


def test_packed_floats():
    a, b = f32(1, 2, 3, 4).view(np.uint64), f32(1, -2, 0.5, 1).view(np.uint64)
    found = evaluate("fma.rn.f32x2 %rd3, %rd1, %rd2, %rd1;", rd1=a, rd2=b)
    assert found["rd3"].view(np.float32).tolist() == [2, -2, 4.5, 8]
    found = evaluate("add.rn.f32x2 %rd3, %rd1, %rd2;", rd1=a, rd2=b)
    assert found["rd3"].view(np.float32).tolist() == [2, 0, 3.5, 5]


def test_packed_integers_do_not_carry():
    found = evaluate("add.s16x2 %r3, %r1, %r2;", r1=s32(0x7FFF0001), r2=s32(0x0001FFFF))
    assert found["r3"].tolist() == [0x80000000]


def test_a_product_in_float64_has_no_rounding_of_its_own():
    a, c = f64(1 + 2**-52), f64(-1 - 2**-51)
    found = evaluate("fma.rn.f64 %rd3, %rd1, %rd1, %rd2;", rd1=a, rd2=c)
    assert found["rd3"].view(np.float64).tolist() == [2**-104]


@given(st.tuples(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 2))
def test_directed_roundings_enclose_the_exact_sum(pair):
    down, up = (compute(f"add.{mode}.f32", [pair], f32) for mode in ("rm", "rp"))
    low, high = down.view(np.float32)[0], up.view(np.float32)[0]
    with np.errstate(over="ignore"):
        nearest = np.float32(pair[0]) + np.float32(pair[1])
    assert low <= nearest <= high
    assert nearest in (low, high)


def test_classes_of_numbers():
    values = f32(1, 2**-130, inf, nan)
    for test, expected in {
        "finite": [1, 1, 0, 0],
        "infinite": [0, 0, 1, 0],
        "number": [1, 1, 1, 0],
        "notanumber": [0, 0, 0, 1],
        "normal": [1, 0, 0, 0],
        "subnormal": [0, 1, 0, 0],
    }.items():
        found = evaluate(f"testp.{test}.f32 %p1, %r1;", r1=values)["p1"]
        assert found.tolist() == [bool(x) for x in expected]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("add.wrong.s32 %r3, %r1, %r2;", "modifier .wrong"),
        ("sqrt.rz.f32 %r3, %r1;", "rounding .rz of sqrt.f32"),
        ("addc.u32 %r3, %r1, %r2;", "a carry from another basic block"),
        ("sqrt.rn.f16 %rs3, %rs1;", "sqrt of f16"),
    ],
)
def test_what_is_not_known_is_refused_when_translated(text, why):
    with pytest.raises(UnsupportedPtx, match=re.escape(why)):
        evaluate(text, r1=s32(1))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision(kind):
    """Narrow factors and summands are widened, and what comes out is rounded once, to f32."""
    a, b, c = np.float32([1.5, -3, 0.25]), np.float32([2, 2, 0.5]), np.float32([1e-3, 5, 2**-30])
    found = evaluate(
        f"""
        fma.rn.f32.{kind} %r1, %rs1, %rs2, %r4;
        fma.rp.sat.f32.{kind} %r2, %rs1, %rs2, %r4;
        add.f32.{kind} %r3, %rs1, %r4;
        sub.rp.f32.{kind} %r5, %rs1, %r4;
        """,
        rs1=encode(a, kind),
        rs2=encode(b, kind),
        r4=c.view(np.uint32),
    )
    total, clipped, added, subtracted = (
        found[name].view(np.float32).tolist() for name in ("r1", "r2", "r3", "r5")
    )
    assert total == [float(np.float32(3 + float(c[0]))), -1, 0.125]
    assert clipped == [1, 0, 0.125 + 2**-26]
    assert added == (a + c).tolist()
    assert subtracted[1:] == [-8, 0.25]


def test_no_product_of_mixed_types():
    with pytest.raises(UnsupportedPtx, match="mul of mixed types"):
        evaluate("mul.f32.bf16 %r1, %rs1, %r2;", r2=[0])
