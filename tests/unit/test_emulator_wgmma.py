# SPDX-License-Identifier: Apache-2.0
"""wgmma: a warpgroup's products against numpy, and the mistakes that can be made around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.emulator.formats import fragments, numbers
from jitgen.emulator.formats.descriptors import Descriptor, Operand, offsets
from jitgen.emulator.machine.cluster import Cluster
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import EAGER, LATE_READERS, Mode, random_mode
from jitgen.errors import Deadlock, MachineFault, UnsupportedPtx
from tests.unit.emulator_program import Watched

MODES = [EAGER, LATE_READERS, random_mode(0), random_mode(1), random_mode(2)]

A_START, B_START = 0x2000, 0x8000
SHARED_BYTES = 0x10000
CODES = {0: 0, 3: 1, 2: 2, 1: 3}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}

FENCE = "wgmma.fence.sync.aligned;\n"
COMMIT = "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"


# --- operands in shared memory, and kernels ------------------------------------------------------


class Matrix:
    """A random operand: its values [rows, K], where it is and what names it."""

    def __init__(
        self,
        start: int,
        rows: int,
        kind: str,
        *,
        swizzle: int = 3,
        is_mn_major: bool = False,
        seed: int = 0,
    ) -> None:
        size, width = BYTES[kind], 16 << swizzle
        self.operand = Operand(rows, 32, size, is_mn_major)
        descriptor = Descriptor(start, *self._strides(width), swizzle)
        self.where = offsets(descriptor, self.operand)
        self.raw = _random(kind, rows * 32 // size, seed).view(np.uint8).reshape(rows, 32)
        self.values = numbers.elements(self.raw, kind)
        fields = start // 16 | descriptor.leading // 16 << 16 | descriptor.stride // 16 << 32
        self.bits = fields | CODES[swizzle] << 62

    def _strides(self, width: int) -> tuple[int, int]:
        """Leading and stride offset of a dense operand."""
        if not self.operand.is_mn_major:
            return (self.operand.rows * 16, 128) if width == 16 else (16, 8 * width)
        if width == 16:
            return self.operand.rows * self.operand.element_bytes * 8, 128
        k = 32 // self.operand.element_bytes
        return k * width, 8 * width


def _random(kind: str, count: int, seed: int) -> NDArray[Any]:
    """Return codes of small numbers with a few bits, so that sums are exact."""
    chance = np.random.default_rng(seed)
    small = chance.integers(-4, 5, count).astype(np.float32)
    if kind in {"s8", "u8"}:
        return chance.integers(0, 256, count, np.uint8)
    return numbers.encode(small, kind)


class Kernel:
    """A kernel over operands that are in shared memory at its start."""

    def __init__(
        self, body: str, *matrices: Matrix, threads: int = 128, mode: Mode = EAGER
    ) -> None:
        text = f".version 8.8\n.target sm_90a\n.visible .entry kernel()\n{{\n{body}\nret;\n}}\n"
        self.program = Watched(text)
        launch = Launch(
            grid=(1, 1, 1), block=(threads, 1, 1), cluster=(1, 1, 1), shared_bytes=SHARED_BYTES
        )
        self.machine = Machine(self.program, GlobalMemory(), launch, mode)
        self.machine.not_started.clear()
        self.cta = self._start()
        for matrix in matrices:
            self.cta.shared.put(matrix.where, matrix.raw)
        self.machine.run()

    def _start(self) -> Any:
        cluster = Cluster(self.machine, (0, 0, 0))
        self.machine.running.append(cluster)
        return cluster.ctas[0]

    def registers(self, count: int, first: int = 0) -> NDArray[np.uint32]:
        rows = [self.program.row(f"%r{first + i}")[1] for i in range(count)]
        found: NDArray[np.uint32] = self.cta.r[rows]
        return found

    def result(self, columns: int) -> NDArray[np.float32]:
        return fragments.matrix_of(self.registers(columns // 2).view(np.float32))

    @property
    def findings(self) -> list[str]:
        return [finding.kind for finding in self.machine.findings.values()]


def vector(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def product(
    shape: str = "m64n16k16.f32.f16.f16",
    registers: int = 8,
    *,
    a: str = "%rd1",
    is_added: int = 0,
    rest: str = "1, 1, 0, 0",
    first: int = 0,
) -> str:
    name = f"wgmma.mma_async.sync.aligned.{shape}"
    rest = f", {rest}" if rest else ""
    return f"{name} {vector(registers, first)}, {a}, %rd2, {is_added}{rest};\n"


def descriptors(a: Matrix | None, b: Matrix) -> str:
    loads = f"mov.b64 %rd2, {b.bits:#x};\n"
    return loads if a is None else loads + f"mov.b64 %rd1, {a.bits:#x};\n"


# --- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_each_type(kind: str, mode: Mode) -> None:
    a, b = Matrix(A_START, 64, kind), Matrix(B_START, 24, kind, seed=1)
    rest = "1, 1, 0, 0" if BYTES[kind] == 2 else "1, 1"
    shape = f"m64n24k{32 // BYTES[kind]}.f32.{kind}.{kind}"
    body = descriptors(a, b) + FENCE + product(shape, 12, rest=rest) + COMMIT + WAIT
    done = Kernel(body, a, b, mode=mode)
    assert (done.result(24) == a.values @ b.values.T).all()
    assert done.findings == []


@pytest.mark.parametrize("columns", [8, 64, 128, 192, 256])
def test_each_width(columns: int) -> None:
    a, b = Matrix(A_START, 64, "e4m3"), Matrix(B_START, columns, "e5m2", seed=1)
    shape = f"m64n{columns}k32.f32.e4m3.e5m2"
    body = descriptors(a, b) + FENCE + product(shape, columns // 2, rest="1, 1") + COMMIT + WAIT
    done = Kernel(body, a, b)
    assert (done.result(columns) == a.values @ b.values.T).all()


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_each_layout(swizzle: int, transposed: tuple[int, int]) -> None:
    a_mn, b_mn = map(bool, transposed)
    a = Matrix(A_START, 64, "f16", swizzle=swizzle, is_mn_major=a_mn)
    b = Matrix(B_START, 64, "f16", swizzle=swizzle, is_mn_major=b_mn, seed=1)
    body = descriptors(a, b) + FENCE
    body += product("m64n64k16.f32.f16.f16", 32, rest=f"1, 1, {transposed[0]}, {transposed[1]}")
    done = Kernel(body + COMMIT + WAIT, a, b)
    assert (done.result(64) == a.values @ b.values.T).all()
    assert done.findings == []


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("is_added", [0, 1])
def test_signs_and_sums(signs: tuple[int, int], is_added: int) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = "".join(f"mov.b32 %r{i}, 0f40000000;\n" for i in range(8)) + descriptors(a, b) + FENCE
    body += product(is_added=is_added, rest=f"{signs[0]}, {signs[1]}, 0, 0") + COMMIT + WAIT
    done = Kernel(body, a, b)
    assert (done.result(16) == 2 * is_added + signs[0] * signs[1] * (a.values @ b.values.T)).all()


def test_a_group_of_two_shapes() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 32, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + product("m64n32k16.f32.f16.f16", 16, first=8)
    done = Kernel(body + COMMIT + WAIT, a, b)
    assert (done.result(16) == a.values @ b.values[:16].T).all()
    assert done.findings == []


def test_scale_d_in_a_predicate() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + "mov.pred %p1, 1;\n"
    body += product(is_added="%p1") + COMMIT + WAIT  # type: ignore[arg-type]
    assert (Kernel(body, a, b).result(16) == 2 * (a.values @ b.values.T)).all()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_chain_of_groups(mode: Mode) -> None:
    """Three groups in flight, two of which are waited for before the third."""
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + COMMIT + (product(is_added=1) + COMMIT) * 2
    body += "wgmma.wait_group.sync.aligned 1;\n" + FENCE + product(first=8) + COMMIT + WAIT
    done = Kernel(body, a, b, mode=mode)
    assert (done.result(16) == 3 * (a.values @ b.values.T)).all()
    assert (done.registers(8, 8) == Kernel(body, a, b).registers(8, 8)).all()
    assert done.findings == []


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("own_b", [False, True])
def test_two_warpgroups(mode: Mode, own_b: bool) -> None:
    """Each has its own A, and the same or its own B."""
    a = [Matrix(A_START + 0x2000 * group, 64, "f16", seed=group) for group in range(2)]
    b = [Matrix(B_START + 0x800 * group, 16, "f16", seed=2 + group) for group in range(2)]
    body = descriptors(a[0], b[0]) + (
        "mov.u32 %r50, %tid.x;\nshr.u32 %r51, %r50, 7;\nmul.lo.u32 %r52, %r51, 0x200;\n"
        "cvt.u64.u32 %rd3, %r52;\nadd.u64 %rd1, %rd1, %rd3;\n"
    )
    if own_b:
        body += "mul.lo.u32 %r52, %r51, 0x80;\ncvt.u64.u32 %rd3, %r52;\nadd.u64 %rd2, %rd2, %rd3;\n"
    done = Kernel(body + FENCE + product() + COMMIT + WAIT, *a, *b, threads=256, mode=mode)
    expected = [x.values @ y.values.T for x, y in zip(a, b if own_b else [b[0]] * 2, strict=True)]
    assert (done.result(16) == np.concatenate(expected)).all()
    assert done.machine.counts["matrix_instructions"] == 2
    assert done.findings == []


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("kind", "depth"), [("f16", 16), ("e4m3", 32), ("tf32", 8)])
def test_a_in_registers(kind: str, depth: int, mode: Mode) -> None:
    a, b = Matrix(A_START, 64, kind), Matrix(B_START, 16, kind, seed=1)
    body = "mov.u32 %r50, %tid.x;\n"
    for i in range(4):  # each thread loads its part of A, which is in shared memory as it happens
        body += _loads_of_a(i)
    rest = "1, 1, 0" if BYTES[kind] == 2 else "1, 1"
    shape = f"m64n16k{depth}.f32.{kind}.{kind}"
    body += descriptors(None, b) + FENCE
    body += product(shape, 8, a=vector(4, 20), rest=rest) + COMMIT + WAIT
    plain = Matrix(A_START, 64, kind, swizzle=1)
    plain.where = A_START + np.arange(64 * 32).reshape(64, 32)
    done = Kernel(body, plain, b, mode=mode)
    assert (done.result(16) == a.values @ b.values.T).all()
    assert done.findings == []


def _loads_of_a(i: int) -> str:
    """Load register i of A: row 16 w + l / 4 + 8 (i % 2), bytes 4 (l % 4) + 16 (i / 2)."""
    return (
        "shr.u32 %r60, %r50, 5;\nshl.b32 %r60, %r60, 4;\nand.b32 %r61, %r50, 31;\n"
        "shr.u32 %r62, %r61, 2;\nadd.u32 %r60, %r60, %r62;\nand.b32 %r63, %r61, 3;\n"
        f"add.u32 %r60, %r60, {8 * (i % 2)};\nshl.b32 %r60, %r60, 5;\nshl.b32 %r63, %r63, 2;\n"
        f"add.u32 %r60, %r60, %r63;\nld.shared.b32 %r{20 + i}, [%r60+{A_START + 16 * (i // 2)}];\n"
    )


def test_accumulators_of_16_bits() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product("m64n16k16.f16.f16.f16", 4)
    body += product("m64n16k16.f16.f16.f16", 4, is_added=1) + COMMIT + WAIT
    halves = fragments.unpack(Kernel(body, a, b).registers(4)).view(np.float16)
    assert (fragments.matrix_of(halves) == 2 * (a.values @ b.values.T)).all()


@pytest.mark.parametrize("types", ["s8.s8", "u8.s8", "u8.u8"])
def test_integers(types: str) -> None:
    a, b = Matrix(A_START, 64, types[:2]), Matrix(B_START, 16, types[3:], seed=1)
    body = "".join(f"mov.b32 %r{i}, -5;\n" for i in range(8)) + descriptors(a, b) + FENCE
    body += product(f"m64n16k32.s32.{types}", 8, is_added=1, rest="") + COMMIT + WAIT
    result = fragments.matrix_of(Kernel(body, a, b).registers(8).view(np.int32))
    assert (result == a.values.astype(int) @ b.values.astype(int).T - 5).all()


@pytest.mark.parametrize("is_saturating", [False, True])
def test_integers_at_the_end_of_their_range(is_saturating: bool) -> None:
    a, b = Matrix(A_START, 64, "u8"), Matrix(B_START, 16, "u8", seed=1)
    body = "".join(f"mov.b32 %r{i}, 0x7fffffff;\n" for i in range(8)) + descriptors(a, b) + FENCE
    shape = "m64n16k32" + (".satfinite" if is_saturating else "") + ".s32.u8.u8"
    body += product(shape, 8, is_added=1, rest="") + COMMIT + WAIT
    result = fragments.matrix_of(Kernel(body, a, b).registers(8).view(np.int32))
    exact = a.values.astype(np.int64) @ b.values.astype(np.int64).T + 0x7FFFFFFF
    assert (result == (np.clip(exact, None, 0x7FFFFFFF) if is_saturating else exact - 2**32)).all()


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("lacks", [COMMIT, WAIT])
def test_a_result_that_nobody_waited_for(lacks: str, mode: Mode) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + COMMIT + WAIT
    done = Kernel(body.replace(lacks, ""), a, b, mode=mode)
    assert np.isnan(done.result(16)).all()
    assert done.findings == ["exit"] * len(done.findings)
    assert done.findings


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_wait_that_keeps_too_many(mode: Mode) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + COMMIT + "wgmma.wait_group.sync.aligned 1;\n"
    assert np.isnan(Kernel(body, a, b, mode=mode).result(16)).all()


def test_a_fence_that_lacks() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    once = product() + COMMIT + WAIT
    assert Kernel(descriptors(a, b) + once, a, b).findings == ["fence"]
    assert Kernel(descriptors(a, b) + FENCE + once + once, a, b).findings == ["fence"]
    assert Kernel(descriptors(a, b) + (FENCE + once) * 2, a, b).findings == []


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_accumulators_written_in_flight(mode: Mode) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + COMMIT + "mov.b32 %r3, 0;\n" + WAIT
    assert Kernel(body, a, b, mode=mode).findings == ["register"]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_registers_of_a_written_in_flight(mode: Mode) -> None:
    b = Matrix(B_START, 16, "f16", seed=1)
    body = "".join(f"mov.b32 %r{20 + i}, {i};\n" for i in range(4)) + descriptors(None, b) + FENCE
    body += product(a=vector(4, 20), rest="1, 1, 0") + COMMIT + "mov.b32 %r22, 7;\n" + WAIT
    assert Kernel(body, b, mode=mode).findings == ["register"]


def test_accumulators_shared_by_two_in_flight() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + FENCE + product() + product(first=4) + COMMIT + WAIT
    assert "register" in Kernel(body, a, b).findings


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_operands_that_are_overwritten_before_the_wait(mode: Mode) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    store = f"st.shared.b32 [{B_START}], 0;\n"
    group = descriptors(a, b) + "mov.u32 %r50, %tid.x;\nsetp.ne.u32 %p1, %r50, 0;\n"
    group += FENCE + product() + COMMIT
    early = group + "@%p1 bra $DONE;\n" + store + "$DONE:\n" + WAIT
    assert "race" in Kernel(early, a, b, mode=mode).findings
    late = group + WAIT + "bar.sync 0;\n@%p1 bra $DONE;\n" + store + "$DONE:\n"
    assert Kernel(late, a, b, mode=mode).findings == []


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_one_warp_waits_for_all_four(mode: Mode) -> None:
    """The wait of one warp covers the parts of the others, as nobody starts before all four."""
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + "mov.u32 %r50, %tid.x;\nsetp.ne.u32 %p1, %r50, 64;\n"
    body += FENCE + product() + COMMIT + WAIT
    body += f"@%p1 bra $DONE;\nst.shared.b32 [{B_START}], 0;\n$DONE:\n"
    assert Kernel(body, a, b, mode=mode).findings == []


def test_operands_written_without_a_proxy_fence() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    begin = descriptors(a, b) + f"mov.u32 %r50, %tid.x;\nst.shared.b32 [{A_START}], 0;\n"
    begin = begin.replace("st.", "setp.ne.u32 %p1, %r50, 0;\n@!%p1 st.")
    end = "bar.sync 0;\n" + FENCE + product() + COMMIT + WAIT
    assert Kernel(begin + end, a, b).findings == ["proxy"]
    assert Kernel(begin + "fence.proxy.async.shared::cta;\n" + end, a, b).findings == []


def test_operands_that_nobody_wrote() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    done = Kernel(descriptors(a, b) + FENCE + product() + COMMIT + WAIT, a)
    assert done.findings == ["uninitialised"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (1 << 15, "reserved bits"),
        (1 << 49, "base offset"),
        (0x1000, "out of bounds"),
    ],
)
def test_descriptors_that_are_wrong(change: int, message: str) -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    b.bits += change
    with pytest.raises(MachineFault, match=message):
        Kernel(descriptors(a, b) + FENCE + product() + COMMIT + WAIT, a, b)


def test_threads_that_disagree() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = descriptors(a, b) + "mov.u32 %r50, %tid.x;\ncvt.u64.u32 %rd3, %r50;\n"
    body += "add.u64 %rd2, %rd2, %rd3;\n" + FENCE + product() + COMMIT + WAIT
    with pytest.raises(MachineFault, match="differs between threads"):
        Kernel(body, a, b)


def test_a_warpgroup_that_is_not_whole() -> None:
    with pytest.raises(MachineFault, match="not whole warpgroups"):
        Kernel(FENCE, threads=96)


def test_a_warp_that_does_not_take_part() -> None:
    a, b = Matrix(A_START, 64, "f16"), Matrix(B_START, 16, "f16", seed=1)
    body = (
        descriptors(a, b) + "mov.u32 %r50, %tid.x;\nsetp.lt.u32 %p1, %r50, 32;\n@%p1 bra $DONE;\n"
    )
    body += FENCE + product() + COMMIT + WAIT + "$DONE:\n"
    with pytest.raises(Deadlock, match="other warps of the warpgroup"):
        Kernel(body, a, b)


@pytest.mark.parametrize(
    "shape",
    [
        "m64n12k16.f32.f16.f16",
        "m64n16k8.f32.f16.f16",
        "m64n16k16.f16.bf16.bf16",
        "m64n16k16.f32.f16.bf16",
        "m64n16k256.s32.b1.b1.and.popc",
        "m64n32k16.f32.f16.f16",
    ],
)
def test_instructions_that_do_not_exist(shape: str) -> None:
    with pytest.raises(UnsupportedPtx):
        Kernel(product(shape))
