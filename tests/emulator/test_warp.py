# SPDX-License-Identifier: Apache-2.0
"""Shuffles, votes, matches, reductions, elections and special registers, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.isa import special, warp
from jitgen.errors import MachineFault
from tests.emulator.program import fragment, machine

AT = 0
EVERYONE = np.uint32(0xFFFFFFFF)
LANES = np.arange(32)


def shuffle(mode: str, lane: int, clamp: int) -> tuple[np.ndarray, np.ndarray]:
    """Shuffle the thread numbers of two warps."""
    f = fragment(64)
    values = f.lanes.astype(np.uint32)
    operands = (np.uint32(lane), np.uint32(clamp), EVERYONE)
    return warp.shuffle_lanes(f, AT, mode, values, *operands)


@pytest.mark.parametrize(
    ("mode", "lane", "clamp", "expected"),
    [
        ("idx", 5, 31, np.full(32, 5)),
        ("idx", 2, 0x181F, LANES // 8 * 8 + 2),
        ("bfly", 4, 31, LANES ^ 4),
        ("up", 1, 0, np.maximum(LANES - 1, 0)),
        ("down", 3, 31, np.where(LANES < 29, LANES + 3, LANES)),
        ("down", 3, 0x1C1F, np.where(LANES % 4 < 1, LANES + 3, LANES)),
    ],
)
def test_shuffles(mode: str, lane: int, clamp: int, expected: np.ndarray) -> None:
    values, _ = shuffle(mode, lane, clamp)
    assert values.tolist() == [*expected, *(expected + 32)]


def test_a_shuffle_tells_who_reads_inside_its_segment() -> None:
    assert (shuffle("up", 2, 0)[1] == np.tile(LANES >= 2, 2)).all()
    assert (shuffle("down", 2, 31)[1] == np.tile(LANES < 30, 2)).all()


def test_votes() -> None:
    f = fragment(64)
    votes = f.lanes >= 31

    def outcome(mode: str) -> list[int]:
        result = warp.count_votes(f, AT, mode, votes, EVERYONE)
        return [int(result[0]), int(result[32])]

    assert outcome("all") == [0, 1]
    assert outcome("any") == [1, 1]
    assert outcome("uni") == [0, 1]
    assert outcome("ballot") == [1 << 31, 0xFFFFFFFF]


def test_votes_of_named_lanes() -> None:
    f = fragment(32)
    half = f.part(f.lanes < 16)
    result = warp.count_votes(half, AT, "all", half.lanes < 16, np.uint32(0xFFFF))
    assert result.tolist() == [True] * 16


def test_named_lanes_must_be_there() -> None:
    f = fragment(32)
    half = f.part(f.lanes < 16)
    with pytest.raises(MachineFault, match="8 lanes"):
        warp.count_votes(half, AT, "all", True, np.uint32(0xFFFFFF))
    with pytest.raises(MachineFault, match="does not name"):
        warp.count_votes(f, AT, "all", True, np.uint32(0xFFFF))


def test_matches() -> None:
    f = fragment(32)
    lanes, is_all = warp.match_lanes(f, AT, "any", f.lanes // 16, EVERYONE)
    assert lanes.tolist() == [0xFFFF] * 16 + [0xFFFF0000] * 16
    assert not is_all.any()
    lanes, is_all = warp.match_lanes(f, AT, "all", np.uint32(3), EVERYONE)
    assert lanes.tolist() == [0xFFFFFFFF] * 32
    assert is_all.all()
    assert not warp.match_lanes(f, AT, "all", f.lanes, EVERYONE)[0].any()


@pytest.mark.parametrize(
    ("function", "dtype", "expected"),
    [
        (np.add, np.uint32, [496, 1520]),
        (np.minimum, np.int32, [0, 32]),
        (np.maximum, np.uint32, [31, 63]),
        (np.bitwise_xor, np.uint32, [0, 0]),
        (np.bitwise_or, np.uint32, [31, 63]),
    ],
)
def test_reductions(function: np.ufunc, dtype: type, expected: list[int]) -> None:
    f = fragment(64)
    result = warp.reduce_lanes(f, AT, function, f.lanes.astype(dtype), EVERYONE)
    assert result.dtype == dtype
    assert [result[0], result[32]] == expected


def test_sums_of_unsigned_numbers_wrap() -> None:
    f = fragment(32)
    result = warp.reduce_lanes(f, AT, np.add, np.uint32(1 << 28), EVERYONE)
    assert result.tolist() == [(32 << 28) & 0xFFFFFFFF] * 32


def test_the_lowest_living_lane_is_elected() -> None:
    f = fragment(64)
    lanes, chosen = warp.elect_lane(f, AT, EVERYONE)
    assert np.flatnonzero(chosen).tolist() == [0, 32]
    assert not lanes.any()
    rest = f.part(f.lanes % 32 >= 3)
    f.cta.leave(f.part(f.lanes % 32 < 3))
    lanes, chosen = warp.elect_lane(rest, AT, EVERYONE)
    assert rest.lanes[chosen].tolist() == [3, 35]
    assert (lanes == 3).all()


def test_the_active_mask_is_of_the_fragment() -> None:
    f = fragment(64)
    some = f.part((f.lanes < 2) | (f.lanes == 63))
    assert warp.active_mask(some, AT).tolist() == [3, 3, 1 << 31]


def test_special_registers() -> None:
    made = machine(lambda _: -1, threads=48)
    f = fragment(48, cluster=2, rank=1)

    def read(name: str) -> list[int]:
        value = special.special(f, AT, name)
        assert value.dtype == (np.uint64 if special.is_wide(name) else np.uint32)
        return [int(value[0]), int(value[-1])]

    assert read("%tid.x") == [0, 47]
    assert read("%laneid") == [0, 15]
    assert read("%warpid") == [0, 1]
    assert read("%ctaid.x") == [1, 1]
    assert read("%cluster_ctarank") == [1, 1]
    assert read("%clusterid.x") == [0, 0]
    assert read("%cluster_nctaid.x") == [2, 2]
    assert read("%lanemask_lt") == [0, (1 << 15) - 1]
    assert read("%lanemask_ge") == [0xFFFFFFFF, 0xFFFF8000]
    assert read("%dynamic_smem_size") == [4096, 4096]
    first, second = read("%clock64"), read("%clock64")
    assert second[0] > first[0]
    assert made.num_sms == 132
