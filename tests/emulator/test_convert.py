# SPDX-License-Identifier: Apache-2.0
"""
Conversions of the emulator: every code of the narrow types against torch, the rest by hand.
"""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.evaluate import bf16, evaluate, f16, f32, f64, numbers, s16, s32, s64

LARGEST, SMALLEST = 2**31 - 1, -(2**31)
TORCH = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def signed(found):
    return found.view(f"i{found.itemsize}").tolist()


@pytest.mark.parametrize(
    ("opcode", "values", "expected"),
    [
        ("cvt.s8.s32", [200, -3], [-56, -3]),
        ("cvt.u8.s32", [-1], [255]),
        ("cvt.sat.s8.s32", [200, -300, 5], [127, -128, 5]),
        ("cvt.sat.u8.s32", [300, -300], [255, 0]),
        ("cvt.u16.u32", [0x12345], [0x2345]),
        ("cvt.s32.s8", [200, 0x1FD], [-56, -3]),
        ("cvt.sat.s32.u32", [-1], [LARGEST]),
    ],
)
def test_between_integers(opcode, values, expected):
    assert signed(evaluate(f"{opcode} %r3, %r1;", r1=s32(*values))["r3"]) == expected


def test_between_integers_of_other_widths():
    assert evaluate("cvt.u64.u32 %rd3, %r1;", r1=s32(-1))["rd3"].tolist() == [2**32 - 1]
    assert signed(evaluate("cvt.s64.s32 %rd3, %r1;", r1=s32(-1))["rd3"]) == [-1]
    assert signed(evaluate("cvt.u32.u64 %r3, %rd1;", rd1=s64(2**32 + 7))["r3"]) == [7]
    assert signed(evaluate("cvt.s32.s16 %r3, %rs1;", rs1=s16(-7))["r3"]) == [-7]
    assert signed(evaluate("cvt.s8.s32 %rs3, %r1;", r1=s32(-7))["rs3"]) == [-7]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("rni", [2, -2, 2]), ("rzi", [2, -2, 1]), ("rmi", [2, -3, 1]), ("rpi", [3, -2, 2])],
)
def test_roundings_to_integers(mode, expected):
    values = f32(2.5, -2.5, 1.75)
    assert signed(evaluate(f"cvt.{mode}.s32.f32 %r3, %r1;", r1=values)["r3"]) == expected
    found = evaluate(f"cvt.{mode}.f32.f32 %r3, %r1;", r1=values)["r3"]
    assert found.view(np.float32).tolist() == expected


def test_what_is_no_integer_of_the_type():
    values = f32(nan, 1e20, -1e20)
    found = evaluate("cvt.rzi.s32.f32 %r3, %r1;", r1=values)["r3"]
    assert signed(found) == [0, LARGEST, SMALLEST]
    assert evaluate("cvt.rzi.u32.f32 %r3, %r1;", r1=values)["r3"].tolist() == [0, 2**32 - 1, 0]
    found = evaluate("cvt.rzi.s64.f32 %rd3, %r1;", r1=values)["rd3"]
    assert signed(found) == [-(2**63), 2**63 - 1, -(2**63)]
    found = evaluate("cvt.rzi.s32.f64 %r3, %rd1;", rd1=f64(nan, 5.5))["r3"]
    assert signed(found) == [SMALLEST, 5]
    assert signed(evaluate("cvt.rzi.s32.f16 %r3, %rs1;", rs1=f16(-1.5))["r3"]) == [-1]


def test_integers_to_floats():
    values = s32(-3, 2**24 + 1)
    for mode, expected in (("rn", [-3, 2**24]), ("rp", [-3, 2**24 + 2]), ("rz", [-3, 2**24])):
        found = evaluate(f"cvt.{mode}.f32.s32 %r3, %r1;", r1=values)["r3"]
        assert found.view(np.float32).tolist() == expected
    found = evaluate("cvt.rn.f32.u64 %r3, %rd1;", rd1=s64(-1))["r3"]
    assert found.view(np.float32).tolist() == [2.0**64]
    found = evaluate("cvt.rn.f16.s32 %rs3, %r1;", r1=s32(-3))["rs3"]
    assert numbers(found, "f16").tolist() == [-3]
    found = evaluate("cvt.rn.f64.s32 %rd3, %r1;", r1=s32(-3))["rd3"]
    assert found.view(np.float64).tolist() == [-3]


def test_between_floats():
    found = evaluate("cvt.f64.f32 %rd3, %r1;", r1=f32(1.5))["rd3"]
    assert found.view(np.float64).tolist() == [1.5]
    for mode, expected in (("rn", 1), ("rp", 1 + 2**-23), ("rz", 1)):
        found = evaluate(f"cvt.{mode}.f32.f64 %r3, %rd1;", rd1=f64(1 + 2**-40))["r3"]
        assert found.view(np.float32).tolist() == [expected]
    found = evaluate("cvt.sat.f32.f32 %r3, %r1;", r1=f32(1.5, -1, nan, 0.5))["r3"]
    assert found.view(np.float32).tolist() == [1, 0, 0, 0.5]
    found = evaluate("cvt.rna.tf32.f32 %r3, %r1;", r1=f32(1 + 2**-11))["r3"]
    assert found.tolist() == [0x3F802000]
    found = evaluate("cvt.ftz.f64.f32 %rd3, %r1;", r1=f32(2**-130))["rd3"]
    assert found.view(np.float64).tolist() == [0]


@pytest.mark.parametrize(("name", "make"), [("f16", f16), ("bf16", bf16)])
@given(value=st.floats(width=32))
def test_halves(name, make, value):
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[name]
    expected = torch.tensor([value]).to(dtype).float().numpy()
    found = evaluate(f"cvt.rn.{name}.f32 %rs3, %r1;", r1=f32(value))["rs3"]
    np.testing.assert_array_equal(numbers(found, name), expected)
    back = evaluate(f"cvt.f32.{name} %r3, %rs1;", rs1=make(*expected))["r3"]
    np.testing.assert_array_equal(back.view(np.float32), expected)


def test_the_first_operand_of_a_pair_is_its_upper_half():
    found = evaluate("cvt.rn.bf16x2.f32 %r3, %r1, %r2;", r1=f32(2, 4), r2=f32(1, 3))["r3"]
    assert numbers(found.view(np.uint16), "bf16").tolist() == [1, 2, 3, 4]
    found = evaluate("cvt.rn.relu.f16x2.f32 %r3, %r1, 0f00000000;", r1=f32(2, -4))["r3"]
    assert numbers(found.view(np.uint16), "f16").tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("name", TORCH)
def test_every_pair_of_fp8_codes(name):
    pairs = np.arange(65536).astype(np.uint16)
    expected = torch.from_numpy(pairs.view(np.uint8)).view(TORCH[name]).half().numpy()
    found = evaluate(f"cvt.rn.f16x2.{name}x2 %r3, %rs1;", rs1=pairs)["r3"]
    np.testing.assert_array_equal(numbers(found.view(np.uint16), "f16"), expected)
    back = evaluate(f"cvt.rn.satfinite.{name}x2.f16x2 %rs3, %r1;", r1=found)["rs3"]
    codes, again = pairs.view(np.uint8), back.view(np.uint8)
    is_number = np.isfinite(expected)
    np.testing.assert_array_equal(again[is_number], codes[is_number])


def test_fp8_saturates_and_keeps_nan():
    inputs = {"r1": f32(1, 500, nan, inf), "r2": f32(-1, 0, -inf, 1e-9)}
    found = evaluate("cvt.rn.satfinite.e4m3x2.f32 %rs3, %r1, %r2;", **inputs)["rs3"]
    assert found.tolist() == [0x38B8, 0x7E00, 0x7FFE, 0x7E00]


def test_fp4_pairs_fill_a_byte():
    found = evaluate(
        "{ .reg .b8 %pair; cvt.rn.satfinite.e2m1x2.f32 %pair, %r1, %r2; cvt.u32.u8 %r3, %pair;"
        " cvt.rn.f16x2.e2m1x2 %r4, %pair; }",
        r1=f32(6, 100),
        r2=f32(-1, nan),
    )
    assert found["r3"].tolist() == [0x7A, 0x77]
    assert numbers(found["r4"].view(np.uint16), "f16").tolist() == [-1, 6, 6, 6]


def test_pairs_of_scales():
    inputs = {"r1": f32(3), "r2": f32(1)}
    found = evaluate("cvt.rp.satfinite.ue8m0x2.f32 %rs3, %r1, %r2;", **inputs)["rs3"]
    assert found.tolist() == [0x817F]
    found = evaluate("cvt.rn.bf16x2.ue8m0x2 %r3, %rs1;", rs1=s16(0x817F))["r3"]
    assert numbers(found.view(np.uint16), "bf16").tolist() == [1, 4]
    pair = bf16(1, 3).view(np.uint32)
    found = evaluate("cvt.rz.satfinite.ue8m0x2.bf16x2 %rs3, %r1;", r1=pair)["rs3"]
    assert found.tolist() == [0x807F]


def test_integers_packed_into_a_register():
    found = evaluate("cvt.pack.sat.s16.s32 %r3, %r1, %r2;", r1=s32(40000), r2=s32(-3))["r3"]
    assert found.tolist() == [0x7FFFFFFD]
    inputs = {"r1": s32(300), "r2": s32(-3), "r4": s32(0xAABBCCDD)}
    found = evaluate("cvt.pack.sat.u8.s32.b32 %r3, %r1, %r2, %r4;", **inputs)["r3"]
    assert found.tolist() == [0xCCDDFF00]
