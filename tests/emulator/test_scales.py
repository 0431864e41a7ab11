# SPDX-License-Identifier: Apache-2.0
"""Formats of tcgen05: scale factors, padded elements, instruction descriptors, layouts."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import instruction_descriptor, matrix_elements, scales
from jitgen.emulator.formats.tensor_layouts import Datapath, pattern


def test_scales_of_a_row_lie_in_every_quarter() -> None:
    lanes, columns = scales.places(128)
    assert lanes[:, 33].tolist() == [1, 33, 65, 97]
    assert columns[:, 33].tolist() == [1, 1, 1, 1]


def test_scales_of_half_of_the_columns_lie_in_half_of_the_quarters() -> None:
    lanes, columns = scales.places(128, halves=2)
    assert lanes[:, 0].tolist() == [0, 32]
    assert (lanes[:, 64 + 33].tolist(), columns[:, 64 + 33].tolist()) == ([65, 97], [1, 1])


def test_the_scale_factor_id_names_a_byte() -> None:
    words = np.array([0x83828180, 0x7F7F7F7F], np.uint32)
    assert scales.values(words, 2, 2, "ue8m0").tolist() == [[8, 16], [1, 1]]
    assert scales.values(words, 3, 1, "ue8m0").tolist() == [[16], [1]]
    with pytest.raises(ValueError, match="scale factor id 1 with 2"):
        scales.values(words, 1, 2, "ue8m0")


def test_a_scale_counts_for_a_block_of_k() -> None:
    a, b = np.array([[1, 1, 1, 1, 10, 10, 10, 10]], np.float32), np.ones((2, 8), np.float32)
    found = scales.product(a, b, np.float32([[2, 3]]), np.float32([[1, 1], [5, 7]]))
    assert found.tolist() == [[2 * 4 + 3 * 40, 5 * 2 * 4 + 7 * 3 * 40]]


def test_scales_multiply_the_dot_product() -> None:
    """Scaled elements are beyond float32, and what they make is not: 448 x 448 x 32 times 1."""
    a = np.full((1, 32), 448, np.float32)
    large, small = np.float32([[2.0**122]]), np.float32([[2.0**-122]])
    assert scales.product(a, a, large, small).tolist() == [[6422528]]
    assert scales.product(a, a, small, large).tolist() == [[6422528]]
    assert scales.product(a, a, large, large)[0, 0] == 32 * 448.0**2 * 2.0**244


def test_padded_e2m1_is_packed_in_the_first_half_of_16_bytes() -> None:
    raw = np.full((1, 32), 0xFF, np.uint8)
    raw[0, 0], raw[0, 1:8], raw[0, 16], raw[0, 17:24] = 0x42, 0, 0x06, 0
    found = matrix_elements.in_shared_memory(raw, "e2m1", is_padded=True)
    assert found.shape == (1, 32)
    assert found[0, :3].tolist() == [1, 2, 0]
    assert found[0, 16:18].tolist() == [4, 0]


def test_six_bit_elements_are_packed_in_12_of_16_bytes() -> None:
    codes = np.arange(16)
    bits = sum(int(code) << 6 * place for place, code in enumerate(codes))
    raw = np.frombuffer(bits.to_bytes(12, "little") + b"\xff" * 4, np.uint8)
    found = matrix_elements.in_shared_memory(raw[None], "e2m3", is_padded=True)
    assert found[0].tolist() == [code / 8 for code in range(16)]


def test_elements_in_tensor_memory_have_a_byte_each() -> None:
    words = np.array([[0x18100804]], np.uint32)  # e2m1 in bits 2 to 5
    found = matrix_elements.in_tensor_memory(words, "e2m1", is_padded=True)
    assert found.tolist() == [[0.5, 1, 2, 4]]
    words = np.array([[0x76543210]], np.uint32)
    found = matrix_elements.in_tensor_memory(words, "e2m1", is_padded=False)
    assert found.tolist() == [[0, 0.5, 1, 1.5, 2, 3, 4, 6]]


@pytest.mark.parametrize(
    ("bits", "kind", "ctas", "expected"),
    [
        (0x08400010, "f16", 1, (128, 256, "f16", "f32")),
        (0x08200010, "f8f6f4", 1, (128, 128, "e4m3", "f32")),
        (0x10400480, "mxf4nvf4", 2, (256, 256, "e2m1", "f32")),
        (0x10401480, "mxf4nvf4", 2, (256, 256, "e2m1", "f32")),  # the reserved bit over type b
        (0x08A00000, "mxf8f6f4", 1, (128, 128, "e4m3", "f32")),
        (0x04100000, "f16", 1, (64, 64, "f16", "f16")),
        (0x08200490, "f16", 1, (128, 128, "bf16", "f32")),
        (0x082000A8, "i8", 1, (128, 128, "s8", "s32")),
    ],
)
def test_instruction_descriptors(
    bits: int, kind: str, ctas: int, expected: tuple[int, int, str, str]
) -> None:
    found = instruction_descriptor.decode(bits, kind, ctas)
    assert (found.m, found.n, found.a_type, found.d_type) == expected


def test_fields_of_a_scaled_descriptor() -> None:
    bits = 0x10400480 | 1 << 23 | 2 << 29 | 1 << 4
    found = instruction_descriptor.decode(bits, "mxf4nvf4", 2)
    assert (found.scale_type, found.scale_a_id, found.scale_b_id) == ("ue8m0", 2, 1)


def test_operands_can_be_mn_major_and_negated() -> None:
    found = instruction_descriptor.decode(0x08200010 | 0b1010 << 13, "f16", 1)
    assert (found.is_a_negated, found.is_b_negated) == (False, True)
    assert (found.is_a_mn_major, found.is_b_mn_major) == (False, True)


@pytest.mark.parametrize(
    ("bits", "kind", "ctas", "message"),
    [
        (0x08200014, "f16", 1, "sparsity"),
        (0x08200110, "f16", 1, "input types 2 and 0"),
        (0x08200030, "f16", 1, "output type 3"),
        (0x10200010, "f16", 1, "shape 256x128"),
        (0x04200010, "f16", 2, "shape 64x128"),
        (0x08020010, "f16", 2, "shape 128x8"),
        (0x08022020, "i8", 1, "negate"),
        (0x08208480, "mxf4", 1, "K-major"),
        (0x08200480, "mxf4", 1, "ue8m0"),
        (0x88A00480, "mxf4", 1, "K = 96"),
        (0x08200018, "f16", 1, "integers"),
        (0x080A0020, "i8", 1, "shape 128x40"),
        (0x080C0020, "i8", 2, "shape 128x48"),
        (0x08200050, "f16", 1, "reserved bits are set: 0x40"),
        (0x08A00010, "f16", 1, "reserved bits are set: 0x800000"),
        (0x28200010, "f8f6f4", 1, "reserved bits are set: 0x20000000"),
        (0x28200950, "tf32", 1, "reserved bits are set: 0x20000040"),
        (0x08A00001, "mxf8f6f4", 1, "reserved bits are set: 0x1"),
        (0x08A00008, "mxf8f6f4", 1, "reserved bits are set: 0x8"),
        (0x88A00000, "mxf8f6f4", 1, "K = 96"),
        (0x08A00040, "mxf8f6f4", 1, "reserved bits are set: 0x40"),
        (0x08A004C0, "mxf4", 1, "reserved bits are set: 0x40"),
        (0x08A00482, "mxf4nvf4", 1, "reserved bits are set: 0x2"),
        (0x0AA00480, "mxf4nvf4", 1, "shape 160x128"),
        (0x08200480, "f16", 1, "no f16 result of bf16"),
        (0x08200400, "f16", 1, "no f16 result of bf16"),
        (0x08210910, "tf32", 1, "MN-major tf32"),
        (0x08050010, "f8f6f4", 2, "N = 16 of an MN-major B"),
        (0x08030010, "f8f6f4", 1, "N = 8 of an MN-major B"),
    ],
)
def test_refused_descriptors(bits: int, kind: str, ctas: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        instruction_descriptor.decode(bits, kind, ctas)


@pytest.mark.parametrize(
    ("bits", "kind", "ctas"),
    [
        (0x08200000, "f16", 1),  # an f16 result of f16 operands
        (0x08200490, "f16", 1),
        (0x08200000, "f8f6f4", 1),  # an f16 result
        (0x08090010, "f8f6f4", 2),  # N = 32, B MN-major
        (0x08050010, "f8f6f4", 1),
        (0x08030010, "f16", 1),  # N = 8, B MN-major
        (0x08200910, "tf32", 1),
        (0x08060020, "i8", 1),  # N = 24
        (0x08100020, "i8", 2),  # N = 64
        (0x08A00480, "mxf4", 1),
    ],
)
def test_descriptors_that_are_nearly_refused(bits: int, kind: str, ctas: int) -> None:
    assert instruction_descriptor.decode(bits, kind, ctas).m == 128


@pytest.mark.parametrize(("scales", "is_right"), [(0, True), (4, True), (2, False)])
def test_scale_factors_with_a_mantissa_belong_to_blocks_of_16(scales: int, is_right: bool) -> None:
    bits = 0x08200480
    if is_right:
        assert instruction_descriptor.decode(bits, "mxf4nvf4", 1, scales).scale_type == "ue4m3"
    else:
        with pytest.raises(ValueError, match="2 scale factors of a row are ue8m0"):
            instruction_descriptor.decode(bits, "mxf4nvf4", 1, scales)
    assert instruction_descriptor.decode(bits | 1 << 23, "mxf4nvf4", 1, scales)


@pytest.mark.parametrize(
    ("shape", "registers", "thread", "words"),
    [
        ("32x32b", 2, 5, [(5, 0), (5, 1)]),
        ("16x64b", 2, 5, [(9, 0), (9, 2)]),
        ("16x64b", 2, 6, [(1, 1), (1, 3)]),
        ("16x128b", 4, 5, [(1, 1), (9, 1), (1, 5), (9, 5)]),
        ("16x256b", 4, 5, [(1, 2), (1, 3), (9, 2), (9, 3)]),
        ("16x32bx2", 2, 17, [(1, 0), (1, 1)]),
    ],
)
def test_registers_of_a_thread(
    shape: str, registers: int, thread: int, words: list[tuple[int, int]]
) -> None:
    found = pattern(shape, registers)
    lanes, columns = found.lanes[:, thread].tolist(), found.columns[:, thread].tolist()
    assert list(zip(lanes, columns, strict=True)) == words
    assert bool(found.is_second[0, thread]) == (shape == "16x32bx2")


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b"])
def test_every_word_has_one_register(shape: str) -> None:
    found = pattern(shape, 8)
    words = set(zip(found.lanes.ravel().tolist(), found.columns.ravel().tolist(), strict=True))
    lanes = 32 if shape == "32x32b" else 16
    assert words == {(lane, column) for lane in range(lanes) for column in range(8 * 32 // lanes)}


def test_packed_registers_hold_two_columns() -> None:
    found = pattern("32x32b", 2, is_packed=True)
    assert found.columns[:, :, 0].tolist() == [[0, 2], [1, 3]]


def test_lanes_of_accumulators() -> None:
    assert Datapath(128).lanes.tolist() == list(range(128))
    assert Datapath(64, 2).lanes.tolist() == list(range(128))
    assert Datapath(64).lanes[[0, 15, 16, 63]].tolist() == [0, 15, 32, 111]
    assert Datapath(64, first_lane=16).lanes[[0, 63]].tolist() == [16, 127]
