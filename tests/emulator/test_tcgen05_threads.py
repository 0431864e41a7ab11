# SPDX-License-Identifier: Apache-2.0
"""tcgen05 belongs to threads: commits of other lanes, products without an order between them."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.formats import numbers
from jitgen.emulator.formats.descriptors import Operand
from jitgen.emulator.modes import Mode
from tests.emulator.tensor_core import (
    MODES,
    SCALE_A,
    SCALE_B,
    WAIT,
    A,
    B,
    Kernel,
    accumulators,
    assert_near,
    bits_of,
    commit,
    instruction_bits,
    mma,
    random_raw,
)

START = f"""
mov.b64 %rd1, {bits_of(A)};
mov.b64 %rd2, {bits_of(B)};
setp.eq.u32 %p4, %r0, 5;
setp.eq.u32 %p5, %r0, 37;
setp.eq.u32 %p1, 0, 0;
setp.ne.u32 %p2, 0, 0;
"""

LOAD = """
mov.u32 %r1, %warpid;
shl.b32 %r1, %r1, 21;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [%r1];
tcgen05.wait::ld.sync.aligned;
"""

THEN = WAIT + "bar.sync 0;\n"
SECOND_WAIT = WAIT.replace("L_wait", "L_wait_2").replace("], 0;", "], 1;")

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)

PRODUCT = mma("f16", instruction_bits(128, 16)) + "\n"
SUM = mma("f16", instruction_bits(128, 16), tail="%p1") + "\n"
COMMIT = commit() + "\n"


def by(thread: str, text: str) -> str:
    """Let another thread execute it: 5, of the same warp, or 37."""
    return text.replace("@%p0", {"lane 5": "@%p4", "warp 1": "@%p5"}[thread])


def run(body: str, mode: Mode = MODES[0], threads: int = 64) -> Kernel:
    kernel = Kernel(START + body, threads=threads, mode=mode)
    for raw, where in ((random_raw(136, 1), A), (random_raw(64, 2), B)):
        kernel.put(raw, where, Operand(len(raw), 32))
    return kernel.run()


def kinds(kernel: Kernel) -> list[str]:
    return sorted({finding.kind for finding in kernel.machine.findings.values()})


# --- commits -------------------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("thread", ["lane 5", "warp 1"])
def test_a_commit_of_another_thread(thread: str, mode: Mode) -> None:
    kernel = run(PRODUCT + by(thread, COMMIT) + WAIT + LOAD, mode)
    assert kinds(kernel) == ["race"]
    assert "read of tensor memory of CTA (0, 0, 0), column 0" in kernel.findings[0]
    assert kinds(run(PRODUCT + COMMIT + WAIT + LOAD, mode)) == []


@every_mode
def test_operands_that_the_commit_of_another_lane_gives_back(mode: Mode) -> None:
    store = "@%p0 st.shared.b32 [0x2000], %r0;\n"
    assert kinds(run(PRODUCT + by("lane 5", COMMIT) + WAIT + store, mode)) == ["race"]
    assert kinds(run(PRODUCT + COMMIT + WAIT + store, mode)) == []


@every_mode
def test_a_commit_of_each_lane_tracks_its_own_product(mode: Mode) -> None:
    """The accumulators lie side by side, and the two commits end a phase each."""
    other = by("lane 5", PRODUCT.replace("[0]", "[64]"))
    both = PRODUCT + COMMIT + THEN + other + by("lane 5", COMMIT)
    read = LOAD + LOAD.replace("[%r1]", "[%r1+64]")
    assert kinds(run(both + SECOND_WAIT + read, mode)) == []
    early = PRODUCT + other + COMMIT + WAIT + read
    assert kinds(run(early, mode)) == ["race"]


# --- products ------------------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("thread", ["lane 5", "warp 1"])
def test_a_second_product_by_another_thread(thread: str, mode: Mode) -> None:
    kernel = run(PRODUCT + by(thread, SUM + COMMIT) + WAIT, mode)
    assert kinds(kernel) == ["race"]
    assert "write of tensor memory" in kernel.findings[0]
    assert kinds(run(PRODUCT + SUM + COMMIT + WAIT, mode)) == []
    again = by(thread, SUM + COMMIT) + SECOND_WAIT
    assert kinds(run(PRODUCT + COMMIT + THEN + again, mode)) == []


@every_mode
def test_every_lane_multiplies(mode: Mode) -> None:
    all_lanes = PRODUCT.replace("@%p0 ", "")
    assert kinds(run(all_lanes + COMMIT + WAIT, mode, threads=32)) == ["race"]
    elected = "elect.sync _|%p6, -1;\n" + PRODUCT.replace("@%p0", "@%p6")
    elected += "elect.sync _|%p7, -1;\n" + COMMIT.replace("@%p0", "@%p7")
    assert kinds(run(elected + WAIT, mode, threads=32)) == []


@every_mode
def test_scale_factors_that_another_lane_copies(mode: Mode) -> None:
    copies = "".join(
        f"@%p0 tcgen05.cp.cta_group::1.32x128b.warpx4 [{column}], %rd1;\n"
        for column in (SCALE_A, SCALE_B)
    )
    idesc = instruction_bits(128, 16, d=0, more=1 << 23)
    tail = f"[{SCALE_A}], [{SCALE_B}], %p2"
    end = mma("mxf8f6f4.block_scale", idesc, tail=tail) + COMMIT + WAIT
    assert kinds(run(by("lane 5", copies) + end, mode)) == ["race"]
    assert kinds(run(copies + end, mode)) == []


SHAPES = [
    mma("f16", instruction_bits(128, 32), tail="%p2"),
    mma("f16", instruction_bits(64, 16), tail="%p2"),
    mma("f8f6f4", instruction_bits(128, 16), tail="%p2"),
    PRODUCT.replace("[0]", "[8]"),
    mma("f16", instruction_bits(128, 16), a="[8]").replace("[0]", "[64]"),
    "@%p0 tcgen05.cp.cta_group::1.128x256b [8], %rd1;",
]


@every_mode
@pytest.mark.parametrize(
    "second", SHAPES, ids=["N", "M", "K", "accumulator", "A of the sums", "copy over them"]
)
def test_instructions_of_a_thread_that_are_no_pipeline(second: str, mode: Mode) -> None:
    kernel = run(PRODUCT + second + "\n" + COMMIT + WAIT, mode)
    assert kinds(kernel) == ["race"]
    assert "not ordered after a product of the same thread" in kernel.findings[0]
    waited = PRODUCT + COMMIT + THEN + second + "\n" + COMMIT
    assert kinds(run(waited + SECOND_WAIT, mode)) == []


def test_products_of_two_shapes_beside_each_other() -> None:
    second = SHAPES[0].replace("[0]", "[32]") + "\n"
    assert kinds(run(PRODUCT + second + SUM + COMMIT + WAIT)) == []


# --- collector buffers ---------------------------------------------------------------------------


def collected(how: str, text: str = PRODUCT) -> str:
    kind, rest = text.split("kind::", 1)
    name, operands = rest.split(" ", 1)
    return f"{kind}kind::{name}.collector::a::{how} {operands}"


FILL, USE, LAST_USE, DISCARD = map(collected, ("fill", "use", "lastuse", "discard"))
OTHER_A = "add.u64 %rd1, %rd1, 0x40;\n"

RIGHT = [
    FILL + USE + USE + LAST_USE,
    FILL + LAST_USE + FILL + LAST_USE + DISCARD + PRODUCT,
    FILL + OTHER_A + FILL + USE,
    FILL + collected("use", SUM),
    FILL + collected("use", PRODUCT.replace("[0]", "[64]").replace("%rd2", "%rd1")),
]


@every_mode
@pytest.mark.parametrize("products", RIGHT)
def test_collectors(products: str, mode: Mode) -> None:
    assert run(products + COMMIT + WAIT, mode).findings == []


def test_a_collector_changes_no_value() -> None:
    kernel = run(FILL + collected("lastuse", SUM) + COMMIT + WAIT)
    product = (
        numbers.elements(random_raw(128, 1), "f16")
        @ numbers.elements(random_raw(64, 2)[:16], "f16").T
    )
    assert_near(accumulators(kernel, 16), 2 * product)


WRONG = [
    (USE, "this thread never filled it"),
    (LAST_USE, "this thread never filled it"),
    (PRODUCT + USE, "this thread never filled it"),
    (FILL + by("lane 5", USE.replace("[0]", "[64]")), "this thread never filled it"),
    (FILL + LAST_USE + USE, "was discarded"),
    (FILL + DISCARD + USE, "was discarded"),
    (FILL + PRODUCT + LAST_USE, "was discarded"),
    (FILL + OTHER_A + USE, "for an A of another place"),
    (FILL + OTHER_A + FILL + OTHER_A.replace("add", "sub") + USE, "for an A of another place"),
    (
        FILL + collected("use", mma("f16", instruction_bits(64, 16)).replace("[0]", "[64]")),
        "for an A of another rows",
    ),
    (
        FILL
        + collected("use", mma("tf32", instruction_bits(128, 16, 2, 2)).replace("[0]", "[64]")),
        "for an A of another kind",
    ),
    (
        FILL + collected("use", mma("f16", instruction_bits(128, 16, 1)).replace("[0]", "[64]")),
        "for an A of another type",
    ),
]


@every_mode
@pytest.mark.parametrize(("products", "message"), WRONG)
def test_collectors_that_do_not_hold_a(products: str, message: str, mode: Mode) -> None:
    kernel = run(products + "\n" + COMMIT + WAIT, mode)
    assert "collector" in kinds(kernel)
    assert any(message in text for text in kernel.findings)


@every_mode
@pytest.mark.parametrize("refill", [USE, FILL])
def test_a_changes_between_the_fill_and_the_use(refill: str, mode: Mode) -> None:
    """The write is in order, so that it is no race; only the buffer holds what was there."""
    change = "@%p0 st.shared.b32 [0x2000], 0x3c003c00;\nfence.proxy.async.shared::cta;\n"
    body = FILL + COMMIT + THEN + change + refill + COMMIT
    kernel = run(body + SECOND_WAIT, mode, threads=32)
    assert kinds(kernel) == (["collector"] if refill == USE else [])
    assert np.isfinite(accumulators(kernel, 16)).all()
