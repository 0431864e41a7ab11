# SPDX-License-Identifier: Apache-2.0
"""tcgen05.mma against numpy: types, accumulators, layouts, pairs of CTAs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jitgen.emulator.formats import numbers
from jitgen.emulator.modes import Mode
from jitgen.errors import MachineFault
from tests.emulator.tensor_core import (
    MODES,
    A,
    B,
    Case,
    Kernel,
    accumulators,
    assert_near,
    at,
    bits_of,
    commit,
    instruction_bits,
    mma,
    random_raw,
)

KINDS = {
    "f16": [("f16", 0), ("bf16", 1)],
    "tf32": [("tf32", 2)],
    "f8f6f4": [("e4m3", 0), ("e5m2", 1)],
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("kind", "name", "code"), [(kind, *each) for kind in KINDS for each in KINDS[kind]]
)
def test_types(kind: str, name: str, code: int, mode: Mode) -> None:
    a, b = random_raw(128, 1), random_raw(48, 2)
    case = Case(mma(kind, instruction_bits(128, 48, code, code)), a, b, mode=mode)
    kernel = case.run()
    with np.errstate(all="ignore"):
        expected = numbers.elements(a, name) @ numbers.elements(b, name).T
    assert_near(accumulators(kernel, 48), expected)
    assert not kernel.findings
    assert kernel.machine.counts["matrix_instructions"] == 1


def test_different_types_of_a_and_b() -> None:
    a, b = random_raw(128, 1), random_raw(16, 2)
    kernel = Case(mma("f8f6f4", instruction_bits(128, 16, 0, 1)), a, b).run()
    expected = numbers.elements(a, "e4m3") @ numbers.elements(b, "e5m2").T
    assert_near(accumulators(kernel, 16), expected)


def test_padded_e2m1() -> None:
    a, b = random_raw(128, 1), random_raw(16, 2)
    kernel = Case(mma("f8f6f4", instruction_bits(128, 16, 5, 0)), a, b).run()
    packed = a.reshape(128, 2, 16)[:, :, :8].reshape(128, 16)
    expected = numbers.elements(packed, "e2m1") @ numbers.elements(b, "e4m3").T
    assert_near(accumulators(kernel, 16), expected)


@pytest.mark.parametrize("saturates", [False, True])
def test_integers_are_exact(saturates: bool) -> None:
    a = np.random.default_rng(1).integers(0, 256, (64, 32), np.uint8)
    b = np.random.default_rng(2).integers(0, 256, (24, 32), np.uint8)
    idesc = instruction_bits(64, 24, 1, 0, 2, saturates << 3)

    def prepare(kernel: Kernel) -> None:
        kernel.fill(0, np.full((128, 24), 2**31 - 5, np.uint32))

    case = Case(mma("i8", idesc, tail="{0, 0, 0, 0}, %p1"), a, b, prepare=prepare)
    exact = a.view(np.int8).astype(np.int64) @ b.astype(np.int64).T + 2**31 - 5
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturates else exact
    lanes = np.arange(64) // 16 * 32 + np.arange(64) % 16
    found = case.run().words()[lanes, :24]
    assert (found == expected.astype(np.uint64).astype(np.uint32)).all()


def test_f16_accumulators_lie_in_the_lower_halves() -> None:
    a, b = np.zeros((128, 32), np.uint8), np.zeros((16, 32), np.uint8)
    a[:, 1], b[:, 1] = 0x3C, 0x3C  # 1.0
    kernel = Case(mma("f16", instruction_bits(128, 16, d=0)), a, b).run()
    assert (kernel.words()[:, :16] == 0x3C00).all()


def test_accumulation_and_scale_of_the_accumulator() -> None:
    a, b = random_raw(128, 1) & np.uint8(0x83), random_raw(16, 2) & np.uint8(0x83)
    idesc = instruction_bits(128, 16)
    instructions = "\n".join(
        [mma("f16", idesc), mma("f16", idesc, tail="%p1"), mma("f16", idesc, tail="%p1, 2")]
    )
    kernel = Case(instructions, a, b).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    assert_near(accumulators(kernel, 16), product * 1.5)
    assert not kernel.findings


def test_accumulating_on_nothing_is_found() -> None:
    instruction = mma("f16", instruction_bits(128, 16), tail="%p1")
    kernel = Case(instruction, random_raw(128, 1), random_raw(16, 2)).run()
    assert "never written" in kernel.findings[0]


def test_negated_operand() -> None:
    a, b = random_raw(128, 1), random_raw(16, 2)
    kernel = Case(mma("f16", instruction_bits(128, 16, more=1 << 13)), a, b).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    assert_near(accumulators(kernel, 16), -product)


def test_mn_major_operands() -> None:
    a, b = random_raw(128, 1), random_raw(64, 2)
    where = replace(A, leading=8192, stride=1024)
    idesc = instruction_bits(128, 64, more=3 << 15)
    case = Case(
        mma("f16", idesc), a, b, a_at=where, b_at=at(where, 0x8000),
        operand={"element_bytes": 2, "is_mn_major": True},
    )  # fmt: skip
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    assert_near(accumulators(case.run(), 64), product)


def test_disabled_lanes_keep_their_values() -> None:
    a, b = random_raw(128, 1), random_raw(16, 2)

    def prepare(kernel: Kernel) -> None:
        kernel.fill(0, np.full((128, 16), 7, np.uint32))

    instruction = mma("f16", instruction_bits(128, 16), tail="{1, 0, 0, 0x80000000}, %p2")
    kernel = Case(instruction, a, b, prepare=prepare).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    assert (kernel.words()[[0, 127], :16] == 7).all()
    assert_near(accumulators(kernel, 16)[1:127], product[1:127])


# --- layouts -------------------------------------------------------------------------------------


def test_64_rows_lie_in_16_lanes_of_each_warp() -> None:
    a, b = random_raw(64, 1), random_raw(16, 2)
    kernel = Case(mma("f16", instruction_bits(64, 16)), a, b).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    rows = accumulators(kernel, 16).reshape(4, 32, 16)[:, :16].reshape(64, 16)
    assert_near(rows, product)
    assert not kernel.cta.tensor.initialised[16:32].any()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_pair_of_ctas_with_256_rows(mode: Mode) -> None:
    a, b = random_raw(256, 1), random_raw(64, 2)
    idesc = instruction_bits(256, 64)
    kernel = Case(mma("f16", idesc, ctas=2), a, b, ctas=2, mode=mode).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    for rank in range(2):
        rows = product[128 * rank :][:128]
        assert_near(accumulators(kernel, 64, rank), rows)
    assert not kernel.findings


def test_a_pair_of_ctas_with_128_rows() -> None:
    a, b = random_raw(128, 1), random_raw(64, 2)
    kernel = Case(mma("f16", instruction_bits(128, 64), ctas=2), a, b, ctas=2).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    for rank in range(2):
        rows = product[64 * rank :][:64]
        found = accumulators(kernel, 32, rank)
        assert_near(found[:64], rows[:, :32])
        assert_near(found[64:], rows[:, 32:])


def test_no_peer() -> None:
    body = f"mov.b64 %rd1, {bits_of(A)};\nmov.b64 %rd2, {bits_of(B)};\n"
    kernel = Kernel(body + mma("f16", instruction_bits(256, 64), ctas=2))
    with pytest.raises(MachineFault, match="has no peer"):
        kernel.run()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_either_cta_of_a_pair_may_issue(mode: Mode) -> None:
    a, b = random_raw(256, 1), random_raw(64, 2)
    multiply = mma("f16", instruction_bits(256, 64), ctas=2)
    kernel = Case(multiply, a, b, ctas=2, mode=mode, issuer=1).run()
    product = numbers.elements(a, "f16") @ numbers.elements(b, "f16").T
    for rank in range(2):
        assert_near(accumulators(kernel, 64, rank), product[128 * rank :][:128])
    assert not kernel.findings


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("], 3;", "], 1;", "rank 1, threads 0..31 wait for parity 0 of mbarrier 0x400"),
        ("], 3;", "], 2;", "rank 0, threads 0..31 wait for parity 0 of mbarrier 0x400"),
        ("], 3;", "], 7;", "is of CTA 2 of 2"),
        (".multicast::cluster.b64 [%r9], 3;", ".b64 [%r9];", "rank 1, threads 0..31 wait for"),
        (".multicast::cluster.b64 [%r9], 3;", ".b64 [0x1000400];", "rank 0, threads 0..31 wait"),
        ("[%r9], 3;", "[%r9+8], 3;", "no mbarrier was initialised at 0x408"),
    ],
    ids=["own only", "peer only", "one too many", "no multicast", "the peer's", "another barrier"],
)
def test_a_commit_that_does_not_reach_both_ctas(old: str, new: str, message: str) -> None:
    multiply = mma("f16", instruction_bits(256, 64), ctas=2)
    wrong = commit(2).replace(old, new)
    assert wrong != commit(2)
    case = Case(multiply, random_raw(256, 1), random_raw(64, 2), ctas=2, commit=wrong)
    with pytest.raises(MachineFault, match=message):
        case.run()


def test_both_ctas_of_a_pair_issue_for_the_same_sums() -> None:
    a, b = random_raw(256, 1), random_raw(64, 2)
    multiply = mma("f16", instruction_bits(256, 64), ctas=2).replace("@%p0", "@%p3")
    kernel = Case(multiply, a, b, ctas=2).run()
    assert any("race: write of tensor memory" in finding for finding in kernel.findings)
