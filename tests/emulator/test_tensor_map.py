# SPDX-License-Identifier: Apache-2.0
"""Tensor maps and swizzles: where the fields lie, which part of a box is in the tensor."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from jitgen.emulator.formats.swizzle import placement, span, swizzled
from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, TensorMap, decode, encode

ELEMENTS = {element.name: element for element in ELEMENT_TYPES}

MAP = TensorMap(
    address=0x7F00_1234_5680,
    element=ELEMENTS["bf16"],
    sizes=(100, 50, 3),
    strides=(256, 256 * 64),
    box=(64, 8, 2),
    element_strides=(1, 1, 1),
    swizzle=3,
    fills_nan=False,
    is_interleaved=False,
)


def changed(**fields: object) -> TensorMap:
    return dataclasses.replace(MAP, **fields)  # type: ignore[arg-type]


# --- the 128 bytes ---


def test_fields_written_by_hand() -> None:
    data = bytearray(128)
    struct.pack_into("<Q", data, 0, 0x7F00_1234_5680)
    struct.pack_into("<I", data, 8, 2 | (3 - 1) << 4 | 10 << 7 | 3 << 13 | 1 << 18 | 1 << 21)
    struct.pack_into("<2I", data, 12, 256 // 16, 256 * 64 // 16)
    struct.pack_into("<3I", data, 32, 100 - 1, 50 - 1, 3 - 1)
    data[55:58] = bytes([64 - 1, 8 - 1, 2 - 1])
    assert decode(bytes(data)) == MAP


def test_strides_have_36_bits() -> None:
    data = bytearray(encode(MAP))
    data[28] = 0x51  # upper bits: 1 of the first stride, 5 of the second
    assert decode(bytes(data)).strides == (256 + (1 << 36), 256 * 64 + (5 << 36))


@pytest.mark.parametrize(
    "tensor_map",
    [
        MAP,
        changed(sizes=(7,), strides=(), box=(16,), element_strides=(1,), swizzle=0),
        changed(sizes=(2**32, 1, 1), box=(8, 256, 256), swizzle=1),
        changed(element=ELEMENTS["f32"], fills_nan=True, swizzle=2, element_strides=(1, 8, 3)),
        changed(
            sizes=(1, 2, 3, 4, 5),
            strides=(16, 1 << 38, 48, (1 << 40) - 16),
            box=(16, 2, 3, 4, 5),
            element_strides=(1, 2, 3, 4, 5),
        ),
    ],
    ids=["rank 3", "rank 1", "large", "f32", "rank 5"],
)
def test_encoding_is_decoded(tensor_map: TensorMap) -> None:
    assert decode(encode(tensor_map)) == tensor_map


@pytest.mark.parametrize("flags", [0, 3 | 1 << 4, 2 | 5 << 4], ids=["none", "im2col", "rank 6"])
def test_what_is_no_tensor_map_is_refused(flags: int) -> None:
    data = bytearray(128)
    struct.pack_into("<I", data, 8, flags)
    with pytest.raises(ValueError, match="no tensor map"):
        decode(bytes(data))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"address": 0x1008}, "not aligned to 16"),
        ({"box": (4, 8, 2)}, "8 bytes is not a multiple of 16"),
        ({"box": (128, 8, 2)}, "wider than the swizzle"),
        ({"swizzle": 1}, "wider than the swizzle"),
        ({"element": ELEMENTS["u16"], "fills_nan": True}, "cannot be filled with NaN"),
        ({"is_interleaved": True}, "interleaved"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_rules_of_the_hardware(fields: dict[str, object], message: str) -> None:
    assert message in changed(**fields).problem
    assert not MAP.problem


def test_bytes_of_a_box() -> None:
    assert (MAP.shape, MAP.transaction_bytes, MAP.shared_bytes) == ((2, 8, 128), 2048, 2048)
    padded = changed(element=ELEMENTS["b4x16_p64"], box=(128, 8, 1))
    assert (padded.shape, padded.transaction_bytes, padded.shared_bytes) == ((1, 8, 64), 512, 1024)
    assert changed(element_strides=(1, 3, 2)).shape == (1, 3, 128)


FOUR = changed(
    element=ELEMENTS["b4x16_p64"], box=(128, 8, 1), sizes=(256, 50, 3), strides=(128, 128 * 64)
)
SIX = dataclasses.replace(FOUR, element=ELEMENTS["b6x16_p32"], strides=(192, 192 * 64))


@pytest.mark.parametrize("right", [FOUR, SIX], ids=lambda right: right.element.name)
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"address": 0x7F00_1234_5690}, "not at whole 32 bytes"),
        ({"strides": (144, 128 * 64)}, "with strides"),
        ({"strides": (128, 128 * 64 + 16)}, "with strides"),
        ({"box": (64, 8, 1)}, "with a box of 64, not 128"),
        ({"box": (256, 8, 1)}, "with a box of 256, not 128"),
        ({"sizes": (192, 50, 3)}, "rows of 192 elements"),
        ({"swizzle": 2}, "with a swizzle"),
        ({"fills_nan": True}, "cannot be filled with NaN"),
    ],
)
def test_rules_of_types_that_are_padded(
    right: TensorMap, mistake: dict[str, object], message: str
) -> None:
    assert not right.problem
    assert not dataclasses.replace(right, swizzle=0).problem
    assert message in dataclasses.replace(right, **mistake).problem  # type: ignore[arg-type]


def test_bytes_of_padded_boxes() -> None:
    assert (FOUR.transaction_bytes, FOUR.shared_bytes) == (512, 1024)
    assert (SIX.transaction_bytes, SIX.shared_bytes) == (768, 1024)


def test_rows_of_packed_elements_end_with_a_byte() -> None:
    packed = dataclasses.replace(FOUR, element=ELEMENTS["b4x16"], sizes=(254, 50, 3))
    assert not packed.problem
    assert "do not end with a byte" in dataclasses.replace(packed, sizes=(255, 50, 3)).problem


# --- the part inside the tensor ---


def test_a_box_inside() -> None:
    window = MAP.window((8, 40, 1))
    assert window is not None
    assert window.offset == 8 * 2 + 40 * 256 + 256 * 64
    assert window.shape == (2, 8, 128)
    assert window.strides == (256 * 64, 256, 1)
    assert window.inside == (slice(0, 2), slice(0, 8), slice(0, 128))
    assert window.extent == 256 * 64 + 7 * 256 + 128


def test_a_box_over_the_upper_edges() -> None:
    window = MAP.window((64, 47, 2))
    assert window is not None
    assert window.shape == (1, 3, (100 - 64) * 2)
    assert window.inside == (slice(0, 1), slice(0, 3), slice(0, 72))


def test_a_box_over_the_lower_edges() -> None:
    window = MAP.window((-8, -3, -1))
    assert window is not None
    assert window.offset == 0
    assert window.inside == (slice(1, 2), slice(3, 8), slice(16, 128))


@pytest.mark.parametrize("where", [(104, 0, 0), (0, -8, 0), (0, 50, 0), (0, 0, 3), (-64, 0, 0)])
def test_a_box_outside(where: tuple[int, ...]) -> None:
    assert MAP.window(where) is None


@pytest.mark.parametrize("start", [-5, -3, -1, 0, 1, 44, 46, 49])
def test_element_strides(start: int) -> None:
    """Rows start, start + 3, start + 6 of the box, of which those inside count."""
    window = changed(element_strides=(1, 3, 1)).window((0, start, 0))
    rows = [start + 3 * number for number in range(3)]
    inside = [number for number, row in enumerate(rows) if 0 <= row < 50]
    assert window is not None
    assert list(range(3))[window.inside[1]] == inside
    assert window.offset == rows[inside[0]] * 256
    assert window.strides[1] == 3 * 256


def test_the_innermost_coordinate() -> None:
    assert not MAP.misalignment((-8, 1, 1))
    assert MAP.misalignment((4, 0, 0))
    assert not changed(element=ELEMENTS["b4x16"]).misalignment((32, 0, 0))
    assert changed(element=ELEMENTS["b4x16"]).misalignment((8, 0, 0))


# --- swizzles ---


@pytest.mark.parametrize(
    ("bits", "row_of_chunk"),
    [(0, [0, 0, 0, 0]), (1, [0, 1, 0, 1]), (2, [0, 1, 2, 3]), (3, [0, 1, 2, 3])],
)
def test_the_first_chunk_of_the_first_lines(bits: int, row_of_chunk: list[int]) -> None:
    found = [int(swizzled(128 * line, bits)) - 128 * line for line in range(4)]
    assert found == [16 * chunk for chunk in row_of_chunk]


def test_128_byte_swizzle_repeats_after_8_lines() -> None:
    lines = 128 * np.arange(16) + 0x70
    expected = [128 * line + 16 * (7 - line % 8) for line in range(16)]
    assert np.asarray(swizzled(lines, 3)).tolist() == expected


@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize(("offset", "size"), [(1024, 4096), (1152, 1024), (1408, 80), (2048, 32)])
def test_placements(bits: int, offset: int, size: int) -> None:
    """Every byte lies where the rule says, whichever way the placement is written."""
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    memory = np.zeros(8192, np.uint8)
    place = placement(offset, size, bits)
    memory[place.where] = place.arranged(data)
    assert np.array_equal(memory[swizzled(np.arange(offset, offset + size), bits)], data)
    assert np.array_equal(place.arranged(memory[place.where]), data)
    is_whole = size % span(bits) == 0
    assert isinstance(place.where, slice) == is_whole
