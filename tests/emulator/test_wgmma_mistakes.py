# SPDX-License-Identifier: Apache-2.0
"""Mistakes around wgmma: each is found in every mode."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.modes import Mode
from jitgen.errors import Deadlock, MachineFault, UnsupportedPtx
from tests.emulator.wgmma import (
    A_START,
    B_START,
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

# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("lacks", [COMMIT, WAIT])
def test_a_result_without_a_wait(lacks: str, mode: Mode) -> None:
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
    """The wait of one warp covers the parts of the others, as no warp starts before all four."""
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


def test_unwritten_operands() -> None:
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
