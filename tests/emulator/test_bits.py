# SPDX-License-Identifier: Apache-2.0
"""
Shifts, fields, counts, bytes and logic of the emulator against Python's integers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emulator.evaluate import evaluate, s16, s32, s64

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
PLACE = st.integers(0, 70)
ALL = 2**32 - 1


def signed(found):
    return found.view(f"i{found.itemsize}").tolist()


def test_shifts_beyond_the_width():
    found = evaluate("shl.b32 %r3, %r1, %r2;", r1=s32(1, 1, 1), r2=s32(31, 32, 65536))
    assert found["r3"].tolist() == [2**31, 0, 0]
    found = evaluate("shr.s32 %r3, %r1, %r2;", r1=s32(-8, -8, -8), r2=s32(1, 32, 2**31))
    assert signed(found["r3"]) == [-4, -1, -1]
    found = evaluate("shr.s16 %rs3, %rs1, %r2;", rs1=s16(-8, -8, -8), r2=s32(1, 32, 65536))
    assert signed(found["rs3"]) == [-4, -1, -1]
    found = evaluate("shl.b64 %rd3, %rd1, %r2;", rd1=s64(1, 1), r2=s32(63, 64))
    assert found["rd3"].tolist() == [2**63, 0]
    assert signed(evaluate("shr.s64 %rd3, %rd1, 3;", rd1=s64(-16))["rd3"]) == [-2]


@given(low=U32, high=U32, amount=PLACE)
def test_funnel_shifts(low, high, amount):
    both = high << 32 | low
    for mode, count in (("clamp", min(amount, 32)), ("wrap", amount % 32)):
        inputs = {"r1": s32(low), "r2": s32(high), "r4": s32(amount)}
        left = evaluate(f"shf.l.{mode}.b32 %r3, %r1, %r2, %r4;", **inputs)["r3"]
        right = evaluate(f"shf.r.{mode}.b32 %r3, %r1, %r2, %r4;", **inputs)["r3"]
        assert left.tolist() == [(both << count >> 32) & ALL]
        assert right.tolist() == [both >> count & ALL]


@pytest.mark.parametrize("value", [0, 1, 2**31, ALL, 0x12345678, 0x10000])
def test_counts(value):
    bits = f"{value:032b}"
    expected = {
        "popc.b32": bits.count("1"),
        "clz.b32": 32 - value.bit_length(),
        "brev.b32": int(bits[::-1], 2),
        "bfind.u32": (value.bit_length() - 1) & ALL,
        "bfind.shiftamt.u32": 32 - value.bit_length() if value else ALL,
    }
    for opcode, count in expected.items():
        assert evaluate(f"{opcode} %r3, %r1;", r1=s32(value))["r3"].tolist() == [count]


@pytest.mark.parametrize("value", [0, 3, 2**63, 0x123456789ABCDEF, 2**64 - 1])
def test_counts_of_64_bits(value):
    assert evaluate("popc.b64 %r3, %rd1;", rd1=s64(value))["r3"].tolist() == [value.bit_count()]
    assert evaluate("clz.b64 %r3, %rd1;", rd1=s64(value))["r3"].tolist() == [
        64 - value.bit_length()
    ]
    reverse = int(f"{value:064b}"[::-1], 2)
    assert evaluate("brev.b64 %rd3, %rd1;", rd1=s64(value))["rd3"].tolist() == [reverse]


def test_the_leading_bit_of_a_negative_number_is_a_zero():
    found = evaluate("bfind.s32 %r3, %r1;", r1=s32(-1, -2, -256, 5))
    assert found["r3"].tolist() == [ALL, 0, 7, 2]


def field(value, start, length, bits, has_sign):
    """Bit field extraction, bit by bit, as PTX defines it."""
    top = bits - 1
    sign = value >> min(start + length - 1, top) & 1 if has_sign and length else 0
    inside = [start + i <= top and i < length for i in range(bits)]
    return sum((value >> start + i & 1 if inside[i] else sign) << i for i in range(bits))


@given(value=U64, start=PLACE, length=PLACE)
def test_fields(value, start, length):
    place = {"r1": s32(start + 256), "r2": s32(length)}  # bits above the low byte do not count
    for kind, has_sign in (("u", False), ("s", True)):
        found = evaluate(f"bfe.{kind}64 %rd3, %rd1, %r1, %r2;", rd1=s64(value), **place)["rd3"]
        assert found.tolist() == [field(value, start, length, 64, has_sign)]
        found = evaluate(f"bfe.{kind}32 %r3, %r4, %r1, %r2;", r4=s32(value), **place)["r3"]
        assert found.tolist() == [field(value & ALL, start, length, 32, has_sign)]


@given(value=U64, new=U64, start=PLACE, length=PLACE)
def test_inserted_fields(value, new, start, length):
    places = range(start, min(start + length, 64))
    mask = sum(1 << i for i in places)
    inputs = {"rd1": s64(new), "rd2": s64(value), "r1": s32(start), "r2": s32(length)}
    found = evaluate("bfi.b64 %rd3, %rd1, %rd2, %r1, %r2;", **inputs)["rd3"]
    assert found.tolist() == [value & ~mask | new << start & mask]


def test_masks_and_extension_of_signs():
    found = evaluate("bmsk.clamp.b32 %r3, %r1, %r2;", r1=s32(4, 30, 32), r2=s32(3, 5, 2))["r3"]
    assert found.tolist() == [0x70, 0xC0000000, 0]
    found = evaluate("bmsk.wrap.b32 %r3, %r1, %r2;", r1=s32(33), r2=s32(34))["r3"]
    assert found.tolist() == [0b110]
    found = evaluate("szext.clamp.s32 %r3, %r1, %r2;", r1=s32(255, 127, 255), r2=s32(8, 8, 40))
    assert signed(found["r3"]) == [-1, 127, 255]


BYTES = {"r1": s32(0x33221100), "r2": s32(0x77665544)}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [(0x7531, 0x77553311), (0x3210, 0x33221100), (0x0000, 0), (0x8F62, 0x00006622)],
)
def test_bytes_by_a_selector(selector, expected):
    """Whether the selector is written in the instruction or in a register."""
    found = evaluate(f"prmt.b32 %r3, %r1, %r2, {selector:#x};", **BYTES)["r3"]
    assert found.tolist() == [expected]
    found = evaluate("prmt.b32 %r3, %r1, %r2, %r4;", **BYTES, r4=s32(selector))["r3"]
    assert found.tolist() == [expected]


def test_the_sign_of_a_byte():
    assert evaluate("prmt.b32 %r3, %r1, 0, 0x8808;", r1=s32(0x80))["r3"].tolist() == [0xFFFF80FF]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("f4e", [0x33221100, 0x44332211, 0x55443322, 0x66554433]),
        ("b4e", [0x55667700, 0x66770011, 0x77001122, 0x00112233]),
        ("rc8", [0x00000000, 0x11111111, 0x22222222, 0x33333333]),
        ("ecl", [0x33221100, 0x33221111, 0x33222222, 0x33333333]),
        ("ecr", [0x00000000, 0x11111100, 0x22221100, 0x33221100]),
        ("rc16", [0x11001100, 0x33223322, 0x11001100, 0x33223322]),
    ],
)
def test_modes_of_permutation(mode, expected):
    inputs = {name: np.repeat(value, 4) for name, value in BYTES.items()}
    found = evaluate(f"prmt.b32.{mode} %r3, %r1, %r2, %r4;", **inputs, r4=s32(0, 1, 2, 7))["r3"]
    assert found.tolist() == expected


def test_dot_products():
    inputs = {"r1": s32(0xFF01FF02), "r2": s32(0x01020304), "r4": s32(10)}
    found = evaluate("dp4a.s32.u32 %r3, %r1, %r2, %r4;", **inputs)["r3"]
    assert signed(found) == [10 + 2 * 4 - 1 * 3 + 1 * 2 - 1 * 1]
    inputs = {"r1": s32(0xFFFF0002), "r2": s32(0x05FF0304), "r4": s32(10)}
    found = evaluate("dp2a.hi.s32.s32 %r3, %r1, %r2, %r4;", **inputs)["r3"]
    assert signed(found) == [10 + 2 * -1 + -1 * 5]


def test_logic_of_bits_and_predicates():
    assert evaluate("and.b32 %r3, %r1, 7;", r1=s32(13))["r3"].tolist() == [5]
    assert evaluate("xor.b64 %rd3, %rd1, 7;", rd1=s64(13))["rd3"].tolist() == [10]
    assert evaluate("not.b16 %rs3, %rs1;", rs1=s16(13))["rs3"].tolist() == [0xFFFF - 13]
    assert evaluate("cnot.b32 %r3, %r1;", r1=s32(0, 5))["r3"].tolist() == [1, 0]
    inputs = {"p1": [True, True, False], "p2": [True, False, False]}
    assert evaluate("and.pred %p3, %p1, !%p2;", **inputs)["p3"].tolist() == [False, True, False]
    assert evaluate("not.pred %p3, %p1;", **inputs)["p3"].tolist() == [False, False, True]


@pytest.mark.parametrize("table", range(256))
def test_every_function_of_three_bits(table):
    rows = [sum((row >> bit & 1) << row for row in range(8)) for bit in (2, 1, 0)]
    inputs = {f"r{i}": s32(row) for i, row in enumerate(rows)}
    found = evaluate(f"lop3.b32 %r3, %r0, %r1, %r2, {table};", **inputs)["r3"]
    assert (int(found[0]) & 0xFF) == table


def test_a_function_of_three_bits_with_a_predicate():
    inputs = {"r0": s32(1, 1), "r1": s32(1, 0), "p2": [False, False]}
    found = evaluate("lop3.or.b32 %r3|%p1, %r0, %r1, %r1, 0xc0, %p2;", **inputs)
    assert found["r3"].tolist() == [1, 0]
    assert found["p1"].tolist() == [True, False]
