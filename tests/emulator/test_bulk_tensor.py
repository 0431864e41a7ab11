# SPDX-License-Identifier: Apache-2.0
"""Copies of boxes: what lands where, what is counted, what is refused, what is a race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.isa.bulk_tensor import DIRT, load_boxes
from jitgen.errors import MachineFault
from tests.emulator.bulk import AT, BARRIER, BOX, Bench, aligned, numbered, unswizzled
from tests.emulator.program import DEFERRED


def load(bench: Bench, tensor_map: int, *where: int, size: int) -> np.ndarray:
    """Load one box that counts `size` bytes, and wait; return what lies there."""
    bench.barrier()
    bench.expect(size)
    bench.load(tensor_map, *where)
    assert bench.wait()
    return bench.shared(size)


# --- loads ---


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_a_box_of_each_rank(rank: int) -> None:
    bench = Bench()
    tensor = numbered(*(5, 4, 6, 3)[: rank - 1], 64)
    box = (8, 2, 3, 2, 1)[:rank]
    where = (16, 1, 1, 1, 3)[:rank]
    found = load(bench, bench.tensor_map(tensor, "u16", box), *where, size=2 * int(np.prod(box)))
    cut = tuple(slice(first, first + size) for first, size in zip(where, box, strict=True))[::-1]
    assert np.array_equal(found.view(np.uint16), tensor[cut].ravel())
    assert not bench.findings


@pytest.mark.parametrize(("bits", "columns"), [(0, 128), (1, 16), (2, 32), (3, 64)])
def test_swizzles(bits: int, columns: int) -> None:
    bench = Bench()
    tensor = numbered(64, 128)
    address = bench.tensor_map(tensor, "bf16", (columns, 8), swizzle=bits)
    found = load(bench, address, 0, 8, size=16 * columns)
    expected = np.ascontiguousarray(tensor[8:16, :columns])
    assert np.array_equal(unswizzled(found, bits).view(np.uint16), expected.ravel())


def test_a_swizzled_row_by_hand() -> None:
    """Row 3 of a 128-byte swizzle: chunk c of it is chunk c ^ 3."""
    bench = Bench()
    tensor = numbered(8, 128, dtype=np.uint8)
    found = load(bench, bench.tensor_map(tensor, "u8", (128, 8), swizzle=3), 0, 0, size=1024)
    row = found.reshape(8, 8, 16)[3]
    assert np.array_equal(row[[3, 2, 1, 0, 7, 6, 5, 4]].ravel(), tensor[3])


@pytest.mark.parametrize(("x", "y"), [(-8, -2), (24, 5), (-8, 5), (64, 0), (0, 8), (-64, 0)])
def test_out_of_bounds_elements_are_zero_and_counted(x: int, y: int) -> None:
    bench = Bench()
    tensor = numbered(8, 32)
    found = load(bench, bench.tensor_map(tensor, "u16", (16, 4)), x, y, size=128)
    around = np.zeros((40, 192), np.uint16)
    around[16:24, 64:96] = tensor
    assert np.array_equal(
        found.view(np.uint16).reshape(4, 16), around[16 + y : 20 + y, 64 + x : 80 + x]
    )


def test_rows_between_the_rows_of_a_tensor_are_not_touched() -> None:
    """The stride may be larger than a row, and what follows the last row need not exist."""
    bench = Bench()
    tensor = numbered(4, 64)[:, :24]
    found = load(bench, bench.tensor_map(tensor, "u16", (16, 4)), 16, 0, size=128)
    rows = found.view(np.uint16).reshape(4, 16)
    assert np.array_equal(rows[:, :8], tensor[:, 16:])
    assert not rows[:, 8:].any()


def test_nan_fill() -> None:
    bench = Bench()
    tensor = aligned(np.ones((2, 16), np.float16))
    address = bench.tensor_map(tensor, "f16", (16, 2), fills_nan=True)
    found = load(bench, address, 8, 1, size=64).view(np.float16).reshape(2, 16)
    assert (found[0, :8] == 1).all()
    assert np.isnan(found[0, 8:]).all()
    assert np.isnan(found[1]).all()


def test_element_strides() -> None:
    bench = Bench()
    tensor = numbered(9, 16)
    address = bench.tensor_map(tensor, "u16", (16, 8), element_strides=(1, 3))
    found = load(bench, address, 0, 2, size=3 * 32).view(np.uint16).reshape(3, 16)
    assert np.array_equal(found, [tensor[2], tensor[5], tensor[8]])


def test_padded_4_bit_elements() -> None:
    """
    16 elements take 8 bytes of global memory and 16 of shared memory; 8 are counted, and the others
    hold what they like.
    """
    bench = Bench()
    tensor = numbered(4, 128, dtype=np.uint8)
    fields = {"sizes": (256, 4), "strides": (128,)}
    address = bench.tensor_map(tensor, "b4x16_p64", (128, 4), **fields)
    bench.barrier()
    bench.expect(4 * 64)
    bench.load(address, 128, 0)
    assert bench.wait()
    found = bench.shared(4 * 128).reshape(4, 8, 16)
    assert np.array_equal(found[..., :8], tensor[:, 64:].reshape(4, 8, 8))
    assert (found[..., 8:] == DIRT).all()


PADDED = {"sizes": (256, 4), "strides": (128,)}


@pytest.mark.parametrize("count", [4 * 64 - 16, 4 * 128])
def test_padding_is_not_counted(count: int) -> None:
    """A barrier that expects other bytes than the packed ones never completes its phase."""
    bench = Bench()
    address = bench.tensor_map(numbered(4, 128, dtype=np.uint8), "b4x16_p64", (128, 4), **PADDED)
    bench.barrier()
    bench.expect(count)
    bench.load(address, 0, 0)
    assert not bench.wait()


@pytest.mark.parametrize("x", [0, 128, -128, 32, 64])
def test_padded_boxes_begin_at_whole_128_elements(x: int) -> None:
    bench = Bench()
    address = bench.tensor_map(numbered(4, 128, dtype=np.uint8), "b4x16_p64", (128, 4), **PADDED)
    bench.barrier()
    if x % 128 == 0:
        bench.load(address, x, 0)
        return
    with pytest.raises(MachineFault, match="not a multiple of 128 elements"):
        bench.load(address, x, 0)


def test_each_thread_loads_its_own() -> None:
    bench = Bench(threads=32)
    tensor = numbered(32, 8)
    address = bench.tensor_map(tensor, "u16", (8, 1))
    bench.barrier()
    bench.expect(32 * 16)
    lanes = np.arange(8)
    places = ((BOX + 128 * lanes).astype(np.uint32), np.uint32(BARRIER))
    first = bench.f.part(bench.f.lanes < 8)
    coordinates = (np.int32(0), lanes.astype(np.int32))
    load_boxes(first, AT, None, places, np.uint64(address), coordinates, None, False)
    assert np.array_equal(bench.shared(1024).view(np.uint16).reshape(8, 64)[:, :8], tensor[:8])
    assert bench.f.machine.counts["bulk_loads"] == 8
    assert bench.f.machine.counts["bulk_load_bytes"] == 128


def test_a_deferred_load_comes_when_no_thread_can_go_on() -> None:
    bench = Bench(mode=DEFERRED)
    tensor = numbered(8, 8)
    bench.barrier()
    bench.expect(128)
    bench.load(bench.tensor_map(tensor, "u16", (8, 8)), 0, 0)
    assert not bench.wait()
    assert not bench.f.cta.shared.initialised[BOX]
    bench.f.cluster.queues.run_all()
    assert bench.wait()
    assert np.array_equal(bench.shared(128).view(np.uint16), tensor.ravel())


# --- clusters ---


def test_multicast_signals_a_barrier_in_each_cta() -> None:
    bench = Bench(cluster=4)
    tensor = numbered(8, 8)
    barriers = [bench.barrier(rank=rank) for rank in range(4)]
    bench.load(bench.tensor_map(tensor, "u16", (8, 8)), 0, 0, ctas=np.uint16(0b1010))
    assert [barrier.transactions for barrier in barriers] == [0, -128, 0, -128]
    for rank, has_it in enumerate([False, True, False, True]):
        assert np.array_equal(bench.shared(128, rank).view(np.uint16), tensor.ravel()) == has_it


def test_a_pair_of_ctas_shares_the_barrier_of_one() -> None:
    bench = Bench(cluster=4)
    tensor = numbered(8, 8)
    barriers = [bench.barrier(rank=rank) for rank in range(4)]
    address = bench.tensor_map(tensor, "u16", (8, 8))
    bench.load(address, 0, 0, ctas=np.uint16(0b1111), is_pair=True)
    assert [barrier.transactions for barrier in barriers] == [-256, 0, -256, 0]
    odd = bench.of(1)
    bench.load(address, 0, 0, f=odd.part(odd.lanes == 0), to=odd.cta.base + BOX, is_pair=True)
    assert [barrier.transactions for barrier in barriers] == [-384, 0, -256, 0]


def test_multicast_outside_the_cluster() -> None:
    bench = Bench(cluster=2)
    bench.barrier()
    bench.barrier(rank=1)
    address = bench.tensor_map(numbered(8, 8), "u16", (8, 8))
    with pytest.raises(MachineFault, match="CTA 2 of 2"):
        bench.load(address, 0, 0, ctas=np.uint16(0b101))


def test_a_barrier_of_another_cta() -> None:
    bench = Bench(cluster=2)
    bench.barrier(rank=1)
    address = bench.tensor_map(numbered(8, 8), "u16", (8, 8))
    with pytest.raises(MachineFault, match="mbarrier of another CTA"):
        bench.load(address, 0, 0, signal=(1 << 24) + BARRIER)


# --- what hardware refuses ---


@pytest.mark.parametrize(
    ("where", "fields", "options", "message"),
    [
        ((4, 0), {}, {}, "innermost coordinate"),
        ((-4, 0), {}, {}, "innermost coordinate"),
        ((0, 0), {"box": (128, 2), "swizzle": 3}, {}, "wider than the swizzle"),
        ((0, 0), {"box": (4, 2)}, {}, "not a multiple of 16"),
        ((0, 0), {}, {"to": BOX + 64}, "not a multiple of 128"),
        ((0, 0), {}, {"to": 1 << 17}, "out of bounds"),
        ((0, 0), {}, {"signal": 512}, "no mbarrier"),
        ((0, 0, 0), {}, {}, "3 coordinates"),
    ],
    ids=["coordinate", "negative", "swizzle", "row", "address", "bounds", "barrier", "rank"],
)
def test_faults(
    where: tuple[int, ...], fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    bench = Bench()
    bench.barrier()
    address = bench.tensor_map(numbered(8, 256), "u16", fields.pop("box", (8, 8)), **fields)
    with pytest.raises(MachineFault, match=message):
        bench.load(address, *where, **options)


def test_a_map_that_was_never_written() -> None:
    bench = Bench()
    bench.barrier()
    with pytest.raises(MachineFault, match="no tensor map"):
        bench.load(bench.place_map(bytes(128)), 0, 0)
    with pytest.raises(MachineFault, match="out of bounds"):
        bench.load(1 << 40, 0, 0)


def test_a_tensor_that_ends_too_early() -> None:
    bench = Bench()
    address = bench.tensor_map(numbered(8, 8), "u16", (8, 8), sizes=(8, 9))
    with pytest.raises(MachineFault, match="out of bounds"):
        load(bench, address, 0, 1, size=128)


# --- stores and reductions ---


@pytest.mark.parametrize(("x", "y"), [(0, 0), (8, 2), (-8, -1), (24, 6), (64, 0)])
@pytest.mark.parametrize("bits", [0, 1])
def test_a_store_leaves_out_what_is_out_of_bounds(x: int, y: int, bits: int) -> None:
    bench = Bench()
    tensor = aligned(np.zeros((8, 32), np.uint16))
    box = numbered(4, 16)
    bench.fill(unswizzled(box.view(np.uint8).ravel(), bits))
    bench.store(bench.tensor_map(tensor, "u16", (16, 4), swizzle=bits), x, y)
    around = np.zeros((40, 192), np.uint16)
    around[16 + y : 20 + y, 64 + x : 80 + x] = box
    assert np.array_equal(tensor, around[16:24, 64:96])
    assert not bench.findings


def test_a_warp_stores_once() -> None:
    """All lanes execute the instruction; two warps are two."""
    bench = Bench(threads=64)
    tensor = aligned(np.zeros((4, 16), np.float32))
    bench.fill(np.ones((4, 16), np.float32))
    address = bench.tensor_map(tensor, "f32", (16, 4))
    bench.store(address, 0, 0, f=bench.f.part(bench.f.lanes < 32), operation="add")
    assert (tensor == 1).all()
    assert bench.f.machine.counts["bulk_stores"] == 1
    assert bench.f.machine.timeline.events == 1
    bench.store(address, 0, 0, f=bench.f.part(bench.f.lanes >= 32), operation="add")
    assert (tensor == 2).all()


@pytest.mark.parametrize(
    ("element", "dtype", "operation", "old", "new", "result"),
    [
        ("u32", np.uint32, "add", 2**32 - 1, 3, 2),
        ("s32", np.int32, "min", -5, 3, -5),
        ("s64", np.int64, "max", -5, 3, 3),
        ("u64", np.uint64, "xor", 6, 3, 5),
        ("u32", np.uint32, "inc", 7, 7, 0),
        ("u32", np.uint32, "inc", 6, 7, 7),
        ("u32", np.uint32, "dec", 0, 7, 7),
        ("u32", np.uint32, "dec", 5, 7, 4),
        ("u32", np.uint32, "and", 6, 3, 2),
        ("u32", np.uint32, "or", 6, 3, 7),
        ("f16", np.float16, "add", 2048, 1, 2048),
        ("f16", np.float16, "max", np.nan, 1, 1),
        ("f32", np.float32, "add", 0.5, 0.25, 0.75),
    ],
)
def test_reductions(
    element: str, dtype: Any, operation: str, old: float, new: float, result: float
) -> None:
    bench = Bench()
    tensor = aligned(np.full((2, 8), old, dtype))
    bench.fill(np.full((2, 8), new, dtype))
    bench.store(bench.tensor_map(tensor, element, (8, 2)), 0, 0, operation=operation)
    assert (tensor == dtype(result)).all()


def test_bf16_sums_are_rounded_to_even() -> None:
    bench = Bench()
    tensor = aligned(np.full((2, 8), 0x3F80, np.uint16))  # 1
    bench.fill(np.full((2, 8), 0x3B80, np.uint16))  # 2^-8, half of the last bit of 1
    bench.store(bench.tensor_map(tensor, "bf16", (8, 2)), 0, 0, operation="add")
    assert (tensor == 0x3F80).all()


def test_a_reduction_that_does_not_exist() -> None:
    bench = Bench()
    bench.fill(np.zeros((2, 8), np.float32))
    address = bench.tensor_map(numbered(2, 8, dtype=np.float32), "f32", (8, 2))
    with pytest.raises(MachineFault, match=r"no bulk reduction .min of f32"):
        bench.store(address, 0, 0, operation="min")


# --- order ---


def test_a_store_needs_a_proxy_fence() -> None:
    bench = Bench()
    bench.fill(np.zeros((4, 16), np.uint16), is_fenced=False)
    bench.store(bench.tensor_map(numbered(4, 16), "u16", (16, 4)), 0, 0)
    assert bench.findings == ["proxy"]


@pytest.mark.parametrize(("is_fenced", "findings"), [(False, ["proxy"]), (True, [])])
def test_a_load_over_what_threads_wrote_needs_a_proxy_fence(
    is_fenced: bool, findings: list[str]
) -> None:
    """It passed: either write may come last."""
    bench = Bench()
    bench.barrier()
    bench.fill(np.zeros((4, 16), np.uint16), is_fenced=is_fenced)
    bench.load(bench.tensor_map(numbered(4, 16), "u16", (16, 4)), 0, 0)
    assert bench.findings == findings


def test_a_store_of_what_another_warp_wrote() -> None:
    bench = Bench()
    bench.fill(np.zeros((4, 16), np.uint16))
    other = bench.f.part(bench.f.lanes == 32)
    bench.store(bench.tensor_map(numbered(4, 16), "u16", (16, 4)), 0, 0, f=other)
    assert "race" in bench.findings


def test_a_load_over_a_box_that_is_still_stored() -> None:
    bench = Bench()
    address = bench.tensor_map(numbered(4, 16), "u16", (16, 4))
    bench.barrier()
    bench.fill(np.zeros((4, 16), np.uint16))
    bench.store(address, 0, 0)
    bench.load(address, 0, 0)
    assert bench.findings == ["race"]


def test_two_loads_of_one_box_in_one_phase_are_not_told_apart() -> None:
    """Both belong to the barrier's agent and phase: only who reads too early is found."""
    bench = Bench()
    address = bench.tensor_map(numbered(4, 16), "u16", (16, 4))
    bench.barrier()
    bench.load(address, 0, 0)
    shared, other = bench.f.cta.shared, bench.f.part(bench.f.lanes == 32)
    shared.generic_read(other, 0, np.array([BOX]), 4, np.array([0]))
    assert bench.findings == ["race"]
