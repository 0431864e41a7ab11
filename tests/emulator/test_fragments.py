# SPDX-License-Identifier: Apache-2.0
"""Matrix descriptors and register layouts, element by element."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import fragments
from jitgen.emulator.formats.descriptors import Descriptor, Operand, of_tcgen05, of_wgmma, offsets

KIB = 1024


def fields(start: int, leading: int = 0, stride: int = 0, top: int = 0) -> int:
    """Return descriptor bits; `top` are bits 46 and up."""
    return start // 16 | leading // 16 << 16 | stride // 16 << 32 | top << 46


def swizzled(address: int, bits: int) -> int:
    """Exchange 16-byte chunks as the swizzle of ``16 << bits`` bytes does."""
    return address ^ (address >> 7 & (1 << bits) - 1) << 4


# --- descriptors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "swizzle"), [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_fields_of_wgmma(code: int, swizzle: int) -> None:
    found = of_wgmma(fields(0x2400, 16, 1024, code << 16))
    assert found == Descriptor(start=0x2400, leading=16, stride=1024, swizzle=swizzle)


@pytest.mark.parametrize(("code", "swizzle"), [(0, 0), (2, 3), (4, 2), (6, 1)])
def test_fields_of_tcgen05(code: int, swizzle: int) -> None:
    found = of_tcgen05(fields(0x2400, 16, 1024, 1 | code << 15))
    assert found == Descriptor(start=0x2400, leading=16, stride=1024, swizzle=swizzle)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 49, 51, 52, 61])
def test_bits_that_wgmma_does_not_have(bit: int) -> None:
    with pytest.raises(ValueError, match="matrix descriptor"):
        of_wgmma(fields(1024, 16, 1024, 1 << 16) | 1 << bit)


@pytest.mark.parametrize(
    "bits", [0, 1 | 1 << 15, 1 | 1 << 6, 1 | 1 << 3, 1 | 3 << 15, 3, 1 | 1 << 7]
)
def test_top_bits_that_tcgen05_does_not_have(bits: int) -> None:
    with pytest.raises(ValueError, match="matrix descriptor"):
        of_tcgen05(fields(1024, 16, 1024, bits))


# --- operands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_k_major_rows_are_as_wide_as_the_swizzle(swizzle: int) -> None:
    width = 16 << swizzle
    where = offsets(Descriptor(4 * KIB, 0, 8 * width, swizzle), Operand(64, 32))
    assert where.shape == (64, 32)
    for row, byte in [(0, 0), (1, 17), (5, 31), (7, 3), (8, 0), (63, 20)]:
        assert where[row, byte] == swizzled(4 * KIB + row * width + byte, swizzle)


def test_k_major_advances_within_the_swizzle() -> None:
    where = offsets(Descriptor(4 * KIB + 64, 0, KIB, 3), Operand(16, 32))
    assert where[3, 5] == swizzled(4 * KIB + 3 * 128 + 64 + 5, 3)
    assert where[9, 16] == swizzled(4 * KIB + KIB + 128 + 64 + 16, 3)


@pytest.mark.parametrize("start", [0x480, 0x500, 0x790])
def test_a_swizzle_is_of_addresses_wherever_the_operand_starts(start: int) -> None:
    found = offsets(Descriptor(start, 16, 1024, swizzle=3), Operand(rows=16, row_bytes=32))
    for row in range(16):
        address = start + row % 8 * 128 + row // 8 * 1024
        assert found[row, 0] == swizzled(address, 3)
        assert found[row, 16] == swizzled(address + 16, 3)


def test_k_major_wider_than_the_swizzle() -> None:
    where = offsets(Descriptor(KIB, 4 * KIB, 256, 1), Operand(8, 64))
    assert where[2, 40] == swizzled(KIB + 4 * KIB + 2 * 32 + 8, 1)


def test_k_major_without_swizzle_is_core_matrices() -> None:
    where = offsets(Descriptor(KIB, 128, 512, 0), Operand(16, 32))
    assert where[3, 2] == KIB + 3 * 16 + 2
    assert where[3, 18] == KIB + 128 + 3 * 16 + 2
    assert where[11, 18] == KIB + 512 + 128 + 3 * 16 + 2


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_mn_major_of_two_bytes(swizzle: int) -> None:
    width = 16 << swizzle
    where = offsets(Descriptor(4 * KIB, 2 * KIB, 8 * width, swizzle), Operand(128, 32, 2, True))
    assert where.shape == (128, 32)
    for row, k in [(0, 0), (1, 0), (0, 1), (9, 7), (100, 8), (127, 15)]:
        column, rest = divmod(2 * row, width)
        expected = 4 * KIB + column * 2 * KIB + rest + k * width
        assert where[row, 2 * k] == swizzled(expected, swizzle)
        assert where[row, 2 * k + 1] == where[row, 2 * k] + 1


def test_mn_major_without_swizzle_exchanges_the_offsets() -> None:
    where = offsets(Descriptor(KIB, 128, 512, 0), Operand(16, 32, 2, True))
    assert where[1, 0] == KIB + 2
    assert where[0, 2] == KIB + 16
    assert where[8, 0] == KIB + 512  # the next 16 bytes along MN, at the stride offset
    assert where[0, 16] == KIB + 128  # the next 8 k, at the leading offset


def test_mn_major_of_fewer_than_16_bytes() -> None:
    where = offsets(Descriptor(KIB, 0, 256, 1), Operand(8, 32, 1, True))
    assert where.shape == (8, 32)
    assert where[5, 4] == swizzled(KIB + 4 * 32 + 5, 1)


@pytest.mark.parametrize("operand", [Operand(64, 32), Operand(64, 32, 2, True)])
@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_no_byte_is_used_twice(operand: Operand, swizzle: int) -> None:
    width = 16 << swizzle
    dense = Descriptor(4 * KIB, 64 * 16 if width < 32 else 2 * 8 * width, 8 * width, swizzle)
    if operand.is_mn_major and swizzle == 0:
        dense = Descriptor(4 * KIB, 64 * 16, 8 * width, swizzle)
    assert len(np.unique(offsets(dense, operand))) == 64 * 32


# --- fragments -----------------------------------------------------------------------------------

LANES = np.arange(64)


def test_rows_of_a() -> None:
    registers = np.arange(4 * 64, dtype=np.uint32).reshape(4, 64)
    rows = fragments.rows_of_a(registers).view(np.uint32)
    assert rows.shape == (32, 8)
    for i in range(4):
        for lane in (0, 3, 4, 31, 32, 61):
            row = 16 * (lane // 32) + lane % 32 // 4 + 8 * (i % 2)
            assert rows[row, lane % 4 + 4 * (i // 2)] == registers[i, lane]


def test_rows_of_a_of_16_bytes() -> None:
    registers = np.arange(2 * 32, dtype=np.uint32).reshape(2, 32)
    rows = fragments.rows_of_a(registers).view(np.uint32)
    assert rows.shape == (16, 4)
    assert rows[2, 1] == registers[0, 9]
    assert rows[10, 1] == registers[1, 9]


def test_columns_of_b() -> None:
    registers = np.arange(2 * 64, dtype=np.uint32).reshape(2, 64)
    columns = fragments.columns_of_b(registers).view(np.uint32)
    assert columns.shape == (16, 8)
    for i in range(2):
        for lane in (0, 3, 4, 31, 32, 61):
            assert columns[lane // 4, lane % 4 + 4 * i] == registers[i, lane]


def test_accumulators() -> None:
    registers = np.arange(12 * 64).reshape(12, 64)
    matrix = fragments.matrix_of(registers)
    assert matrix.shape == (32, 24)
    for register in range(12):
        j, i, v = register // 4, register // 2 % 2, register % 2
        for lane in (0, 3, 4, 31, 32, 61):
            row = 16 * (lane // 32) + lane % 32 // 4 + 8 * i
            assert matrix[row, 8 * j + 2 * (lane % 4) + v] == registers[register, lane]
    assert (fragments.accumulators_of(matrix) == registers).all()


def test_accumulators_of_16_bits() -> None:
    packed = np.array([[0x0002_0001, 0x0004_0003], [0x0006_0005, 0x0008_0007]], np.uint32)
    halves = fragments.unpack(packed)
    assert halves.tolist() == [[1, 3], [2, 4], [5, 7], [6, 8]]
    assert (fragments.pack(halves) == packed).all()
