# SPDX-License-Identifier: Apache-2.0
"""Examples beside code that moves bits have the numbers that the code gives."""

from __future__ import annotations

import struct

import pytest

from jitgen.templates import ROOT

_WORD = 0xFFFFFFFF


def _float(bits: int) -> float:
    return struct.unpack("f", struct.pack("I", bits))[0]


def _e4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    value = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return -value if code & 0x80 else value


def _moved(byte: int) -> int:
    """Return the second four values of a word of weights, as `exact1` has them."""
    return (byte << 2 & 0x8C) | (byte >> 2 & 0x10)


def _table(shift: int) -> bytes:
    low = shift * 0x08080800 + 0x14100800
    high = shift * 0x08080808 + 0x24201C18
    return low.to_bytes(4, "little") + high.to_bytes(4, "little")


EXAMPLES = {
    "cpu/shared/decode_e2m1.py.jinja": [
        ("0x3FC00000", (3 << 22) + (126 << 23), _float(0x3FC00000) == 1.5),
        ("0x3FC00000", (1 << 22) + (127 << 23), _float(0x3FC00000) - 1 == 0.5),
    ],
    "cpu/shared/decode_e4m3.py.jinja": [
        ("0x3FA00000", (0x3A << 20) + (120 << 23), _float(0x3FA00000) == _e4m3(0x3A) == 1.25),
        ("0x3CC00000", (0x04 << 20) + (121 << 23), _float(0x3CC00000) - 2**-6 == _e4m3(0x04)),
    ],
    "sm90/fp4_gemm/decode.py.jinja": [
        ("0x40000000", 0x00008000 << 15 & 0x7F800000, _float(0x40000000) == 2),
        ("0x0C", 0x0C & 0x9C, _e4m3(0x0C) == 1.5 * 2**-6),
        ("0x9C", _moved(0x63), _e4m3(0x9C) == -6 * 2**-6),
        ("14", _table(0)[3], _e4m3(0x14) == 1.5 * 2**-5),
        ("1C", _table(1)[3], _e4m3(0x1C) == 1.5 * 2**-4),
        ("0x00C0", 3 << 6, _float(0x00C0 << 16) == 1.5 * 2.0**-126),
        ("0x40004000", 128 * 0x00800080, _float(0x4000 << 16) == 2),
    ],
    "sm120/grouped_gemm/operands.py.jinja": [
        ("0x14", 0xB5 << 2 & 0x3C, True),
        ("0x2C", 0xB5 >> 2 & 0x3C, True),
    ],
    "shared/steps_scheduled.py.jinja": [
        ("0x06040300", 0x00020103 * 0x01010100 & _WORD, True),
        ("0x06060403", 0x00020103 * 0x01010101 & _WORD, True),
    ],
}
"""Of each template the numbers that it says, what the code makes of them, and what they mean."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_right(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    for said, value, is_right in EXAMPLES[name]:
        assert said in text
        assert int(said, 16) == value
        assert is_right


def test_the_table_of_folded_weights_is_that_of_the_example() -> None:
    said = "00 08 10 14 18 1C 20 24"
    text = (ROOT / "sm90/fp4_gemm/decode.py.jinja").read_text(encoding="utf-8")

    assert said in text
    assert bytes.fromhex(said) == _table(0)
    assert [_e4m3(code) * 2**5 for code in _table(0)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
