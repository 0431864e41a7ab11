# SPDX-License-Identifier: Apache-2.0
"""
Number formats of the emulator: every code against torch, and roundings worked out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jitgen.emulator.formats.numbers import FORMATS, decode, elements, encode, product

TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
INF, NAN = float("inf"), float("nan")


def all_codes(name):
    return np.arange(2 * FORMATS[name].sign).astype(FORMATS[name].dtype)


def rounded(value, name, **how):
    """The value of the code that one value is rounded to."""
    return float(decode(encode(np.float32([value]), name, **how), name)[0])


@pytest.mark.parametrize("name", TORCH)
def test_every_code_has_the_value_torch_gives_it(name):
    codes = all_codes(name)
    expected = torch.from_numpy(codes).view(TORCH[name]).float().numpy()
    np.testing.assert_array_equal(decode(codes, name), expected)


def test_scales_are_powers_of_two():
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(decode(codes, "ue8m0"), expected)


def test_small_formats_have_the_values_of_their_tables():
    assert decode(np.arange(16), "e2m1").tolist() == [
        *(0, 0.5, 1, 1.5, 2, 3, 4, 6),
        *(0, -0.5, -1, -1.5, -2, -3, -4, -6),
    ]
    assert decode(np.arange(8), "e2m3").tolist() == [i / 8 for i in range(8)]
    assert decode(np.uint8([31, 63]), "e2m3").tolist() == [7.5, -7.5]
    assert decode(np.uint8([1, 4, 31, 63]), "e3m2").tolist() == [0.0625, 0.25, 28, -28]


def test_an_unsigned_scale_has_no_sign_bit():
    assert decode(np.uint8([0x38, 0xB8]), "ue4m3").tolist() == [1, 1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_value_that_has_a_code_gets_it_back(name):
    codes = all_codes(name) << FORMATS[name].unused_bits
    values = decode(codes, name)
    is_number = ~np.isnan(values)
    np.testing.assert_array_equal(encode(values, name)[is_number], codes[is_number])


TORCH_GIVES_NAN = bool(torch.tensor(1e6).to(torch.float8_e4m3fn).float().isnan())
"""Where a value is above the largest of e4m3; torch saturates it from 2.13 on."""


@pytest.mark.parametrize("name", TORCH)
@given(value=st.floats(width=32))
def test_rounding_to_nearest_is_that_of_torch(name, value):
    expected = float(torch.tensor(value).to(TORCH[name]).float())
    is_saturating = name == "e4m3" and not TORCH_GIVES_NAN
    found = rounded(value, name, is_saturating=is_saturating)
    assert found == expected or np.isnan([found, expected]).all()


def test_ties_go_to_the_even_code():
    assert [rounded(x, "e2m1") for x in (0.25, 0.75, 1.25, 2.5, 5, -5)] == [0, 1, 1, 2, 4, -4]
    assert [rounded(x, "e4m3") for x in (17, 19, 2.0**-10, 1.5 * 2.0**-9)] == [16, 20, 0, 2.0**-8]


@pytest.mark.parametrize(
    ("rounding", "positive", "negative"),
    [("rn", 1, -1), ("rz", 1, -1), ("rm", 1, -1.5), ("rp", 1.5, -1), ("rna", 1.5, -1.5)],
)
def test_each_rounding_of_a_value_in_the_middle(rounding, positive, negative):
    assert rounded(1.25, "e2m1", rounding=rounding) == positive
    assert rounded(-1.25, "e2m1", rounding=rounding) == negative


def test_rounding_to_tf32_keeps_ten_bits():
    step = 2.0**-10
    assert rounded(1 + step / 2, "tf32", rounding="rna") == 1 + step
    assert rounded(1 + step / 2, "tf32", rounding="rn") == 1
    assert encode(np.float32([1]), "tf32").tolist() == [0x3F800000]


@pytest.mark.parametrize(
    ("name", "largest", "beyond"),
    [("e4m3", 448, NAN), ("e5m2", 57344, INF), ("f16", 65504, INF), ("e2m1", 6, 6)],
)
def test_what_overflows(name, largest, beyond):
    for value in (2.0 * largest, INF):
        assert rounded(value, name, is_saturating=True) == largest
        assert rounded(-value, name, is_saturating=True) == -largest
        assert rounded(value, name) == beyond or np.isnan(beyond)
    assert rounded(1.0001 * largest, name) == largest


def test_a_finite_number_rounded_toward_zero_stays_finite():
    assert rounded(1e6, "f16", rounding="rz") == 65504
    assert rounded(INF, "f16", rounding="rz") == INF
    assert rounded(1e6, "f16", rounding="rm") == 65504
    assert rounded(-1e6, "f16", rounding="rm") == -INF
    assert rounded(-1e6, "f16", rounding="rp") == -65504


def test_nan_is_canonical_or_the_largest_value():
    nan = np.float32([NAN])
    codes = {name: int(encode(nan, name, is_saturating=True)[0]) for name in FORMATS}
    assert codes["f16"] == codes["bf16"] == 0x7FFF
    assert codes["e4m3"] == codes["e5m2"] == 0x7F
    assert (codes["e2m1"], codes["e2m3"], codes["e3m2"]) == (7, 31, 31)
    assert encode(nan, "ue8m0", rounding="rp").tolist() == [0xFF]


def test_relu_makes_what_is_negative_zero_without_sign():
    values = np.float32([-2, -0.0, 1])
    assert encode(values, "f16", is_relu=True).tolist() == [0, 0, 0x3C00]


def test_scales_are_rounded_up_or_down_to_a_power_of_two():
    values = np.float32([1, 1.5, 2, 0, 2.0**-130, INF, -4, 3e38])
    down = encode(values, "ue8m0", rounding="rz").tolist()
    up = encode(values, "ue8m0", rounding="rp").tolist()
    assert down == [127, 127, 128, 0, 0, 254, 129, 254]
    assert up == [127, 128, 128, 0, 0, 254, 129, 254]


def test_elements_of_memory():
    raw = np.uint8([[0x21, 0x43], [0xFF, 0x00]])
    assert elements(raw, "e2m1").tolist() == [[0.5, 1, 1.5, 2], [-6, -6, 0, 0]]
    assert elements(np.uint8([0b00_0010_00, 0b11_1111_11]), "e2m1.byte").tolist() == [1, -6]
    assert elements(np.uint8([0x00, 0x3C, 0x00, 0xC0]), "f16").tolist() == [1, -2]
    assert elements(np.uint8([0x80, 0x3F, 0x00, 0xC0]), "bf16").tolist() == [1, -2]
    assert elements(np.uint8([0xFF, 0x1F, 0x80, 0x3F]), "tf32").tolist() == [1]
    assert elements(np.uint8([0xFF]), "s8").tolist() == [-1]
    assert elements(np.float32([1.5]).view(np.uint8), "f32").tolist() == [1.5]
    assert elements(np.uint8([0x38, 0xB8]), "e4m3").tolist() == [1, -1]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_float64_is_rounded_once(name):
    """What lies a little above or below the middle, by less than a float32 shows."""
    step = 2.0**-10 if name == "f16" else 2.0**-7
    middle, little = 1 + step / 2, 2.0**-40
    values = np.array([middle - little, middle, middle + little, -middle - little])
    codes = encode(values, name)
    assert decode(codes, name).tolist() == [1, 1, 1 + step, -1 - step]


def test_a_product_has_the_same_bits_in_every_tile():
    """Sums in float32 followed the shape: five of 272 differed between 64 and 128 columns."""
    chance = np.random.default_rng(0)
    a, b = (chance.standard_normal((128, 16)).astype(np.float32) for _ in range(2))
    whole = product(a, b)

    assert whole.dtype == np.float32
    for rows, columns in ((64, 8), (1, 64), (128, 1)):
        assert np.array_equal(product(a[:rows], b[:columns]), whole[:rows, :columns])
    exact = a[:4].astype(np.float64) @ b[:4].T.astype(np.float64)
    assert np.array_equal(whole[:4, :4], exact.astype(np.float32))
