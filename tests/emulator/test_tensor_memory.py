# SPDX-License-Identifier: Apache-2.0
"""Tensor memory: allocation, loads, stores, copies, and who must know of whom."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats.descriptors import Descriptor, Operand
from jitgen.errors import MachineFault, UnsupportedPtx
from tests.emulator.tensor_core import BARRIER, WAIT, Kernel, bits_of

LANES = np.arange(128, dtype=np.uint32)[:, None]
NUMBERED = LANES << np.uint32(16) | np.arange(64, dtype=np.uint32)

OWN_LANES = """
mov.u32 %r1, %warpid;
and.b32 %r1, %r1, 3;
shl.b32 %r1, %r1, 21;
"""


def vector(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%r{prefix}{number}" for number in range(count)) + "}"


def test_what_a_warp_stores_it_loads() -> None:
    kernel = Kernel(
        f"""{OWN_LANES}
        tcgen05.st.sync.aligned.32x32b.x2.b32 [%r1+8], {{%r0, %r1}};
        tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r100, %r101}}, [%r1+8];
        tcgen05.wait::ld.sync.aligned;""",
        threads=128,
    ).run()
    assert kernel.words()[:, 8].tolist() == [*range(128)]
    assert (kernel.registers("r10", 2)[0] == np.arange(128)).all()
    assert not kernel.findings


def test_two_warpgroups_that_store_to_the_same_lanes_race() -> None:
    store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r0};\ntcgen05.wait::st.sync.aligned;"
    assert not Kernel(OWN_LANES + store, threads=128).run().findings
    assert "race" in Kernel(OWN_LANES + store, threads=256).run().findings[0]


@pytest.mark.parametrize(
    ("shape", "registers", "thread", "expected"),
    [
        ("32x32b.x2", 2, 33, [(33, 0), (33, 1)]),
        ("16x64b.x2", 2, 37, [(32 + 9, 0), (32 + 9, 2)]),
        ("16x128b.x1", 2, 37, [(32 + 1, 1), (32 + 9, 1)]),
        ("16x256b.x1", 4, 37, [(33, 2), (33, 3), (41, 2), (41, 3)]),
    ],
)
def test_shapes_of_loads(
    shape: str, registers: int, thread: int, expected: list[tuple[int, int]]
) -> None:
    names = vector("10", registers)
    load = f"tcgen05.ld.sync.aligned.{shape}.b32 {names}, [%r1+3];"
    kernel = Kernel(OWN_LANES + load, threads=64)
    kernel.fill(3, NUMBERED)
    found = kernel.run().registers("r10", registers)[:, thread]
    assert [(int(word) >> 16, int(word) & 0xFFFF) for word in found] == expected
    assert not kernel.findings


def test_16_lanes_in_the_upper_half() -> None:
    kernel = Kernel("tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r100}, [0x100003];")
    kernel.fill(3, NUMBERED)
    assert kernel.run().registers("r10", 1)[0, 1] == (16 + 8) << 16


def test_16x32bx2_has_a_second_column() -> None:
    load = "tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r100, %r101}, [2], 16;"
    kernel = Kernel(load)
    kernel.fill(2, NUMBERED)
    found = kernel.run().registers("r10", 2)
    assert found[:, 1].tolist() == [1 << 16, 1 << 16 | 1]
    assert found[:, 17].tolist() == [1 << 16 | 16, 1 << 16 | 17]


def test_packed_loads_and_stores() -> None:
    kernel = Kernel(
        """tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r100}, [2];
        tcgen05.st.sync.aligned.32x32b.x1.unpack::16b.b32 [100], {%r100};
        tcgen05.wait::st.sync.aligned;"""
    )
    kernel.fill(2, NUMBERED + np.uint32(7))
    assert kernel.run().registers("r10", 1)[0, 3] == 8 << 16 | 7
    assert kernel.words()[3, 100:102].tolist() == [7, 8]
    assert not kernel.findings


def test_lanes_of_another_warp() -> None:
    kernel = Kernel("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [2];", threads=64)
    kernel.fill(2, NUMBERED)
    with pytest.raises(MachineFault, match="warp 1 accesses lanes from 0 on; its own begin at 32"):
        kernel.run()


def test_columns_that_are_not_allocated() -> None:
    kernel = Kernel("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r100, %r101}, [31];", columns=32)
    with pytest.raises(MachineFault, match=r"columns 31\.\.32 .* allocated, which are 0\.\.31"):
        kernel.run()


def test_poison_is_found() -> None:
    kernel = Kernel("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [5];").run()
    assert "lane 0, column 5" in kernel.findings[0]


def test_a_load_after_a_store_without_a_wait() -> None:
    kernel = Kernel(
        """tcgen05.st.sync.aligned.32x32b.x1.b32 [8], {%r0};
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [8];"""
    ).run()
    assert kernel.findings[0].startswith("race: read of tensor memory")


def test_stores_to_the_same_words_are_in_order() -> None:
    store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [8], {%r0};\n"
    wait = "tcgen05.wait::st.sync.aligned;\n"
    assert not Kernel(store * 2 + wait + store * 2 + wait).run().findings


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1}, [%r2];", "1 registers"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];", r"\.red"),
        ("tcgen05.shift.cta_group::1.down [%r1];", "shift"),
        ("tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;", "copy .4x256b"),
        ("tcgen05.cp.cta_group::1.128x256b.b8x16 [%r1], %rd1;", "copy .128x256b.b8x16"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, %p1;", r"\.ws"),
        ("tcgen05.mma.cta_group::1.kind::f64 [%r1], %rd1, %rd2, %r3, %p1;", "kind::f64"),
        ("tcgen05.mma.cta_group::1.kind::mxf4 [%r1], %rd1, %rd2, %r3, %p1;", "block_scale"),
    ],
)
def test_what_is_not_emulated_is_refused_at_once(instruction: str, reason: str) -> None:
    with pytest.raises(UnsupportedPtx, match=reason):
        Kernel(instruction)


# --- copies --------------------------------------------------------------------------------------


def _copied(shape: str, rows: int, row_bytes: int, cluster: int = 1) -> Kernel:
    descriptor = Descriptor(start=0x1000, leading=0x800, stride=128, swizzle=0)
    body = f"""mov.b64 %rd1, {bits_of(descriptor)};
    mov.u32 %r1, %cluster_ctarank;
    setp.ne.and.u32 %p1, %r1, 1, %p0;
    @%p1 tcgen05.cp.cta_group::{cluster}.{shape} [4], %rd1;
    @%p1 tcgen05.commit.cta_group::{cluster}.mbarrier::arrive::one.shared::cluster.b64 [{BARRIER}];
    @!%p1 bra $L_end;
    {WAIT}
    $L_end:"""
    kernel = Kernel(body, cluster=cluster)
    for rank in range(cluster):
        raw = np.arange(rows * row_bytes, dtype=np.uint32).astype(np.uint8) + np.uint8(rank)
        operand = Operand(rows, row_bytes)
        kernel.put(raw.reshape(rows, row_bytes), descriptor, operand, rank)
    return kernel.run()


@pytest.mark.parametrize("ctas", [1, 2])
def test_copy_to_all_four_quarters(ctas: int) -> None:
    kernel = _copied("32x128b.warpx4", 32, 16, cluster=ctas)
    assert not kernel.findings
    for rank in range(ctas):
        words = kernel.words(rank)[:, 4:8]
        first = np.arange(4, dtype=np.uint8) + np.uint8(rank)
        assert words[0, 0] == first.view(np.uint32)[0]
        assert (words.reshape(4, 32, 4) == words[:32]).all()


@pytest.mark.parametrize(
    ("shape", "quarters"),
    [("64x128b.warpx2::02_13", [0, 1, 0, 1]), ("64x128b.warpx2::01_23", [0, 0, 1, 1])],
)
def test_copy_to_two_quarters_each(shape: str, quarters: list[int]) -> None:
    kernel = _copied(shape, 64, 16)
    first = kernel.words()[::32, 4] & np.uint32(0xFF)
    assert first.tolist() == [quarter * 32 * 16 % 256 for quarter in quarters]
    assert kernel.words()[1, 4] & 0xFF == 16


@pytest.mark.parametrize(("shape", "row_bytes"), [("128x128b", 16), ("128x256b", 32)])
def test_copy_of_all_lanes(shape: str, row_bytes: int) -> None:
    words = _copied(shape, 128, row_bytes).words()
    raw = np.arange(128 * row_bytes, dtype=np.uint32).astype(np.uint8).reshape(128, -1)
    assert (words[:, 4 : 4 + row_bytes // 4] == raw.view(np.uint32)).all()


@pytest.mark.parametrize(("source", "bits", "shift"), [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 0)])
def test_copy_of_packed_elements(source: str, bits: int, shift: int) -> None:
    """Of 16 bytes in shared memory the first 8 or 12 count; each element gets a byte."""
    words = _copied(f"128x256b.b8x16.{source}", 128, 32).words()[:, 4:12]
    raw = np.arange(128 * 32, dtype=np.uint32).astype(np.uint8).reshape(128, 2, 16)
    for lane, unit, element in ((0, 0, 0), (0, 1, 3), (77, 1, 15), (127, 0, 8)):
        packed = int.from_bytes(raw[lane, unit].tobytes(), "little")
        code = packed >> bits * element & (1 << bits) - 1
        found = words[lane].view(np.uint8)[16 * unit + element]
        assert found == code << shift
