# SPDX-License-Identifier: Apache-2.0
"""Bulk copies of bytes, bulk groups, cluster launch control and kernels that write tensor maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitgen.emulator.formats.tensor_map import ELEMENT_TYPES, TensorMap, decode, encode
from jitgen.emulator.isa import bulk, launch_control, tensor_map_edit
from jitgen.emulator.isa.bulk_reduce import Reduction
from jitgen.emulator.isa.tensor_map_edit import FIELDS, Change
from jitgen.emulator.machine import exits
from jitgen.emulator.modes import LATE_READERS
from jitgen.emulator.program.translate import Program
from jitgen.errors import MachineFault, UnsupportedPtx
from tests.emulator.bulk import AT, BARRIER, BOX, Bench, aligned, numbered

KERNEL = """
.version 8.8
.target sm_100a
.visible .entry kernel()
{{
.reg .pred %p<4>;
.reg .b16 %rs<4>;
.reg .b32 %r<8>;
.reg .b64 %rd<8>;
.reg .b128 %rq<2>;
{text}
ret;
}}
"""


def places(to: int, origin: int, size: int) -> tuple[Any, Any, Any]:
    return np.uint64(to), np.uint64(origin), np.uint32(size)


# --- bytes ---


def test_load_of_bytes() -> None:
    bench = Bench()
    tensor = numbered(64)
    address = bench.tensor(tensor)
    bench.barrier()
    bench.expect(64)
    bulk.load_bytes(bench.one, AT, None, places(BOX, address + 16, 64), np.uint32(BARRIER), None)
    assert bench.wait()
    assert np.array_equal(bench.shared(64).view(np.uint16), tensor[8:40])
    assert bench.f.machine.counts["bulk_load_bytes"] == 64


@pytest.mark.parametrize("wrong", [0, 1, 2], ids=["destination", "source", "size"])
def test_all_of_a_copy_is_a_multiple_of_16_bytes(wrong: int) -> None:
    bench = Bench()
    bench.barrier()
    numbers = [BOX, bench.tensor(numbered(64)), 64]
    numbers[wrong] += 8
    with pytest.raises(MachineFault, match="not a multiple of 16"):
        bulk.load_bytes(bench.one, AT, None, places(*numbers), np.uint32(BARRIER), None)


def test_load_beyond_a_tensor() -> None:
    bench = Bench()
    bench.barrier()
    address = bench.tensor(numbered(64))
    with pytest.raises(MachineFault, match="out of bounds"):
        bulk.load_bytes(bench.one, AT, None, places(BOX, address, 144), np.uint32(BARRIER), None)


def test_store_and_reduction_of_bytes() -> None:
    bench = Bench()
    tensor = aligned(np.zeros(16, np.float32))
    address = bench.tensor(tensor)
    bench.fill(np.arange(8, dtype=np.float32))
    bulk.store_bytes(bench.one, AT, None, places(address + 32, BOX, 32), None)
    assert np.array_equal(tensor, [0] * 8 + list(range(8)))
    bulk.store_bytes(bench.one, AT, None, places(address + 32, BOX, 32), Reduction("add", "f32"))
    assert np.array_equal(tensor, [0] * 8 + [2 * number for number in range(8)])


def test_copy_and_reduction_to_another_cta() -> None:
    bench = Bench(cluster=2)
    barrier = bench.barrier(rank=1)
    bench.fill(numbered(16, dtype=np.uint32))
    to, signal = (1 << 24) + BOX, np.uint32((1 << 24) + BARRIER)
    bulk.share_bytes(bench.one, AT, None, places(to, BOX, 64), signal, None)
    addition = Reduction("add", "u32")
    bulk.share_bytes(bench.one, AT, None, places(to, BOX, 64), signal, addition)
    assert barrier.transactions == -128
    found = bench.shared(64, rank=1).view(np.uint32)
    assert np.array_equal(found, 2 * numbered(16, dtype=np.uint32))


# --- groups ---


def test_a_group_is_done_when_it_is_waited_for() -> None:
    bench = Bench(mode=LATE_READERS)
    tensor = aligned(np.zeros(24, np.uint32))
    address = bench.tensor(tensor)
    for number in range(2):
        bench.fill(np.full(8, number + 1, np.uint32), BOX + 128 * number)
        source = places(address + 32 * number, BOX + 128 * number, 32)
        bulk.store_bytes(bench.one, AT, None, source, None)
        bulk.commit_group(bench.one, AT, None)
    assert not tensor.any()
    bulk.wait_group(bench.one, AT, None, 1)
    assert tensor.tolist() == [1] * 8 + [0] * 16
    bulk.wait_group(bench.one, AT, None, 0)
    assert tensor.tolist() == [1] * 8 + [2] * 8 + [0] * 8


@pytest.mark.parametrize("commits", [0, 1])
@pytest.mark.parametrize("waits", [0, 1])
def test_a_box_is_free_after_commit_and_wait(commits: int, waits: int) -> None:
    bench = Bench()
    address = bench.tensor(numbered(16, dtype=np.uint32))
    bench.fill(numbered(16, dtype=np.uint32))
    bulk.store_bytes(bench.one, AT, None, places(address, BOX, 64), None)
    for _ in range(commits):
        bulk.commit_group(bench.one, AT, None)
    for _ in range(waits):
        bulk.wait_group(bench.one, AT, None, 0)
    bench.fill(numbered(16, dtype=np.uint32))
    assert bench.findings == ([] if commits and waits else ["race"])


def test_warps_that_never_stored_have_no_groups() -> None:
    bench = Bench()
    bulk.commit_group(bench.f, AT, None)
    bulk.wait_group(bench.f, AT, None, 0)
    exits.check(bench.f.cluster)
    assert not bench.findings


# --- cluster launch control ---


def test_clusters_are_cancelled_one_by_one() -> None:
    bench = Bench()
    bench.barrier()
    bench.f.machine.not_started.clear()
    bench.f.machine.not_started.append((300, 70, 5))
    for number, expected in enumerate([((300, 70, 5), 1), ((0, 0, 0), 0)]):
        bench.expect(16)
        launch_control.cancel(bench.one, AT, None, np.uint32(BOX), np.uint32(BARRIER), False)
        assert bench.wait(parity=number)
        low, high = bench.shared(16).view(np.uint64)
        index = tuple(int(launch_control.index_along(low, axis)) for axis in "xyz")
        assert (index, high) == expected


def test_an_answer_for_every_cta() -> None:
    bench = Bench(cluster=2)
    barriers = [bench.barrier(rank=rank) for rank in range(2)]
    bench.f.machine.not_started.clear()
    bench.f.machine.not_started.append((2, 0, 0))
    launch_control.cancel(bench.one, AT, None, np.uint32(BOX), np.uint32(BARRIER), True)
    assert [barrier.transactions for barrier in barriers] == [-16, -16]
    assert np.array_equal(bench.shared(16), bench.shared(16, rank=1))
    assert not bench.f.machine.not_started


# --- tensor maps that a kernel writes ---

MAP = TensorMap(
    address=0x1000,
    element=ELEMENT_TYPES[0],
    sizes=(64, 32, 16),
    strides=(64, 2048),
    box=(16, 8, 4),
    element_strides=(1, 1, 1),
    swizzle=0,
    fills_nan=False,
    is_interleaved=False,
)


@pytest.mark.parametrize(
    ("name", "ordinal", "value", "attribute", "expected"),
    [
        ("global_address", 0, 0x7F12_3456_7890, "address", 0x7F12_3456_7890),
        ("global_dim", 1, 77, "sizes", (64, 77, 16)),
        ("global_stride", 1, 3 << 37, "strides", (64, 3 << 37)),
        ("box_dim", 0, 32, "box", (32, 8, 4)),
        ("box_dim", 2, 256, "box", (16, 8, 256)),
        ("element_stride", 2, 3, "element_strides", (1, 1, 3)),
        ("elemtype", 0, 10, "element", ELEMENT_TYPES[10]),
        ("elemtype", 0, 11, "element", ELEMENT_TYPES[14]),
        ("swizzle_mode", 0, 3, "swizzle", 3),
        ("fill_mode", 0, 1, "fills_nan", True),
    ],
)
@pytest.mark.parametrize("is_shared", [True, False])
def test_replaced_fields(
    name: str, ordinal: int, value: int, attribute: str, expected: object, is_shared: bool
) -> None:
    bench = Bench()
    address = BOX if is_shared else bench.place_map(encode(MAP))
    if is_shared:
        bench.fill(np.frombuffer(encode(MAP), np.uint8))
    field = FIELDS[name]
    change = Change(field.pieces(ordinal), field.encode, is_shared)
    tensor_map_edit.replace_field(bench.one, AT, None, np.uint64(address), np.uint64(value), change)
    data = bench.shared(128) if is_shared else bench.f.machine.memory.bytes(address, 128)
    found = decode(data.tobytes())
    assert getattr(found, attribute) == expected
    others = [
        other for other in vars(MAP) if other != attribute and other in TensorMap.__annotations__
    ]
    assert all(getattr(found, other) == getattr(MAP, other) for other in others)


def test_a_map_is_copied_to_global_memory() -> None:
    bench = Bench(threads=32)
    address = bench.place_map(bytes(128))
    bench.fill(np.frombuffer(encode(MAP), np.uint8))
    tensor_map_edit.copy_map(bench.f, AT, None, np.uint64(address), np.uint64(BOX))
    assert decode(bench.f.machine.memory.bytes(address, 128).tobytes()) == MAP


@pytest.mark.parametrize(("size", "findings"), [(64, []), (56, ["uninitialised"])])
def test_the_second_half_of_a_map_is_never_used(size: int, findings: list[str]) -> None:
    bench = Bench(threads=32)
    address = bench.place_map(bytes(128))
    bench.fill(np.frombuffer(encode(MAP), np.uint8)[:size])
    tensor_map_edit.copy_map(bench.f, AT, None, np.uint64(address), np.uint64(BOX))
    assert bench.findings == findings
    if not findings:
        assert decode(bench.f.machine.memory.bytes(address, 128).tobytes()) == MAP


# --- PTX ---

BULK = "cp.async.bulk"
REDUCE = "cp.reduce.async.bulk"
BYTES = "mbarrier::complete_tx::bytes"
CANCEL = "clusterlaunchcontrol"


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        (
            f"{BULK}.tensor.2d.shared::cta.global.tile.{BYTES}.L2::cache_hint",
            "[%r1+128], [%rd1, {%r2, %r3}], [%r4], %rd2",
        ),
        (
            f"{BULK}.tensor.3d.shared::cluster.global.tile.{BYTES}.multicast::cluster.cta_group::2",
            "[%r1], [%rd1, {%r2, 0, %r3}], [%r4+8], %rs1",
        ),
        (f"{BULK}.tensor.1d.global.shared::cta.bulk_group", "[%rd1, {%r2}], [%r1]"),
        (f"{REDUCE}.tensor.1d.global.shared::cta.add.tile.bulk_group", "[%rd1, {%r2}], [%r1]"),
        (f"{BULK}.prefetch.tensor.2d.L2.global.tile", "[%rd1, {%r2, %r3}]"),
        (f"{BULK}.shared::cluster.global.{BYTES}", "[%r1], [%rd1], %r2, [%r3]"),
        (
            f"{BULK}.shared::cluster.global.{BYTES}.multicast::cluster",
            "[%r1], [%rd1], 64, [%r3], %rs1",
        ),
        (f"{BULK}.shared::cluster.shared::cta.{BYTES}", "[%r1], [%r2], 64, [%r3]"),
        (f"{BULK}.global.shared::cta.bulk_group", "[%rd1], [%r1], %r2"),
        (f"{REDUCE}.global.shared::cta.bulk_group.add.noftz.bf16", "[%rd1], [%r1], %r2"),
        (f"{REDUCE}.shared::cluster.shared::cta.{BYTES}.add.u32", "[%r1], [%r2], 64, [%r3]"),
        (f"{BULK}.prefetch.L2.global", "[%rd1], %r2"),
        (f"{BULK}.commit_group", ""),
        (f"{BULK}.wait_group.read", "3"),
        (
            f"{CANCEL}.try_cancel.async.shared::cta.{BYTES}.multicast::cluster::all.b128",
            "[%r1], [%r2]",
        ),
        (f"{CANCEL}.query_cancel.is_canceled.pred.b128", "%p2, %rq1"),
        (f"{CANCEL}.query_cancel.get_first_ctaid::y.b32.b128", "%r1, %rq1"),
        (f"{CANCEL}.query_cancel.get_first_ctaid.v4.b32.b128", "{%r1, %r2, %r3, _}, %rq1"),
        ("tensormap.replace.tile.global_dim.shared::cta.b1024.b32", "[%rd1], 1, %r1"),
        ("tensormap.replace.tile.global_address.global.b1024.b64", "[%rd1], %rd2"),
        ("tensormap.replace.tile.swizzle_mode.global.b1024.b32", "[%rd1], 3"),
        (
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
            "[%rd1], [%rd2], 128",
        ),
    ],
)
@pytest.mark.parametrize("guard", ["", "@%p1 "])
def test_is_translated(guard: str, opcode: str, operands: str) -> None:
    Program(KERNEL.format(text=f"{guard}{opcode} {operands};"))


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [
        (
            f"{BULK}.tensor.3d.shared::cta.global.im2col.{BYTES}",
            "[%r1], [%rd1, {%r2, %r3, %r4}], [%r5], {%rs1}",
        ),
        (
            f"{BULK}.tensor.2d.shared::cta.global.tile::gather4.{BYTES}",
            "[%r1], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7]",
        ),
        (
            f"{BULK}.tensor.2d.shared::cta.global.{BYTES}",
            "[%r1], [%rd1, {%r2, %r3, %r4}], [%r5]",
        ),
        (f"{BULK}.global.shared::cta.bulk_group.cp_mask", "[%rd1], [%r1], %r2, %rs1"),
        (f"{REDUCE}.global.shared::cta.bulk_group.min.f32", "[%rd1], [%r1], %r2"),
        ("tensormap.replace.tile.swizzle_atomicity.global.b1024.b32", "[%rd1], 3"),
    ],
    ids=["im2col", "gather4", "rank", "mask", "reduction", "field"],
)
def test_is_refused_when_it_is_translated(opcode: str, operands: str) -> None:
    with pytest.raises(UnsupportedPtx):
        Program(KERNEL.format(text=f"{opcode} {operands};"))
