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


def _byte(row: int, place: int) -> int:
    """Return where the scale of a row and of a place along K is in an atom."""
    return row % 32 * 16 + row // 32 * 4 + place


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
    "sm90/fp4_gemm/powers.py.jinja": [
        ("0x40000000", 0x00008000 << 15 & 0x7F800000, _float(0x40000000) == 2),
    ],
    "sm90/fp4_gemm/pairs.py.jinja": [
        ("0x00C0", 3 << 6, _float(0x00C0 << 16) == 1.5 * 2.0**-126),
    ],
    "sm90/fp4_gemm/decode_mxfp4.py.jinja": [
        ("0x0C", 0x0C & 0x9C, _e4m3(0x0C) == 1.5 * 2**-6),
        ("0x9C", _moved(0x63), _e4m3(0x9C) == -6 * 2**-6),
        ("14", _table(0)[3], _e4m3(0x14) == 1.5 * 2**-5),
        ("1C", _table(1)[3], _e4m3(0x1C) == 1.5 * 2**-4),
        ("0x40004000", 128 * 0x00800080, _float(0x4000 << 16) == 2),
    ],
    "cpu/shared/atom_values.py.jinja": [
        ("0x82", 127 + 3, 2.0 ** (0x82 - 127) == 8),
        ("0x2E000000", 92 << 23, _float(0x2E000000) == 2.0**-35),
        ("0x2E800000", 93 << 23, _float(0x2E800000) == 2.0**-34 and -35 - 34 == 31 - 100),
    ],
    "cpu/shared/scale_rows.py.jinja": [
        ("0x56", _byte(37, 2), divmod(37, 32) == (1, 5)),
    ],
    "sm90/shared/vectors.py.jinja": [
        ("0x15", (165 & 31) * 4 + (165 >> 5 & 3), divmod(165, 128) == (1, 37)),
        ("0x54", _byte(37, 0), 0x54 == 4 * 0x15),
    ],
    "sm100/shared/operands.py.jinja": [
        ("0x54", _byte(37, 0), (0x54 // 16, 0x54 % 16 // 4) == (5, 1)),
        ("0x57", _byte(37, 3), 0x57 // 4 == 0x54 // 4),
        ("0xC0", 3 * 64, 0xC0 % 128 // 32 == 2),
    ],
    "sm120/grouped_gemm/operands.py.jinja": [
        ("0x2E0", 5 * 128 + (3 ^ 5) * 16, len({3 ^ row % 8 for row in range(8)}) == 8),
        ("0x150", 5 * 64 + (3 ^ 5 // 2 % 4) * 16, True),
        ("2", 6 % 4, divmod(6, 4) == (1, 2) and divmod(5, 4) == (1, 1)),
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
    text = (ROOT / "sm90/fp4_gemm/decode_mxfp4.py.jinja").read_text(encoding="utf-8")

    assert said in text
    assert bytes.fromhex(said) == _table(0)
    assert [_e4m3(code) * 2**5 for code in _table(0)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
