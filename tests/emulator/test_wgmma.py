# SPDX-License-Identifier: Apache-2.0
"""wgmma: a warpgroup's products against numpy, and the mistakes that can be made around them."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import fragments
from jitgen.emulator.modes import Mode
from tests.emulator.wgmma import (
    A_START,
    B_START,
    BYTES,
    COMMIT,
    FENCE,
    MODES,
    WAIT,
    Kernel,
    Matrix,
    descriptors,
    product,
    vector,
)

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
