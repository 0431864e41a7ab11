# SPDX-License-Identifier: Apache-2.0
"""
A lane that arrives at an mbarrier alone: what it says of the other lanes of its warp.

Warp 0 uses a buffer and lane 0 of it arrives; warp 1 waits and uses the buffer as well.
"""

from __future__ import annotations

import pytest

from jitgen.emulator.modes import ALL, Mode
from tests.emulator.mutation import assert_found
from tests.emulator.test_lanes import findings

SYNC = "bar.warp.sync -1;"
ELECT = "elect.sync %r9|%p4, -1;"
WRITE = "st.shared.b32 [%r2], %r1;"
OTHERS = "xor.b32 %r4, %r1, 32;\nshl.b32 %r4, %r4, 2;\nadd.u32 %r4, %r4, %r20;"
"""%r4: the word of the same lane of the other warp."""

COPY = """@!%p2 bra $END;
fence.proxy.async.shared::cta;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [again], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
 [%r20], [%rd1], 128, [again];
$LAST:
mbarrier.try_wait.parity.shared::cta.b64 %p6, [again], 0;
@!%p6 bra $LAST;
"""


def hand_over(
    first: str, before: str, second: str, arrival: str = "@%p1 mbarrier.arrive", count: int = 1
) -> str:
    """Return a kernel: what both warps do with the buffer, and what precedes the arrival."""
    return f"""
    .shared .align 8 .b8 again[8];
    and.b32 %r5, %r1, 31;
    setp.eq.u32 %p2, %r1, 32;
    {OTHERS}
    @%p1 mbarrier.init.shared::cta.b64 [barrier], {count};
    @%p1 mbarrier.init.shared::cta.b64 [again], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    setp.ge.u32 %p5, %r1, 32;
    @%p5 bra $SECOND;
    {first}
    {before}
    {arrival}.shared::cta.b64 _, [barrier];
    bra.uni $END;
    $SECOND:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [barrier], 0;
    @!%p6 bra $SECOND;
    {second}
    $END:
    """


READ_OTHERS = "ld.shared.b32 %r6, [%r4];"
READ_ALL = "ld.shared.b32 %r6, [%r20];"
OWN = "@%p1 st.shared.b32 [%r2], %r1;"

RIGHT = {
    "writes, then a sync": hand_over(WRITE, SYNC, READ_OTHERS),
    "reads, then a sync": hand_over(f"{WRITE}{SYNC}{READ_ALL}", SYNC, COPY),
    "reads, then an election": hand_over(f"{WRITE}{SYNC}{READ_ALL}", ELECT, COPY),
    "only the lane itself": hand_over(OWN, "", READ_ALL),
    "all lanes arrive": hand_over(WRITE, "", READ_OTHERS, "mbarrier.arrive", 32),
    "all lanes, one by one": hand_over(
        WRITE, "", READ_OTHERS, "setp.lt.u32 %p3, %r1, 7;\n@%p3 mbarrier.arrive.shared::cta.b64 _,"
        " [barrier];\n@!%p3 mbarrier.arrive", 32),
    "a chain of two syncs": hand_over(
        "@!%p3 bra $ON;\nst.shared.b32 [%r2], %r1;\nbar.warp.sync 0xffff;\n$ON:\n", "",
        "setp.lt.u32 %p3, %r5, 16;\n@%p3 " + READ_OTHERS),
}  # fmt: skip


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, mode: Mode) -> None:
    assert findings(RIGHT[name], mode, threads=64) == []


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (hand_over(WRITE, "", READ_OTHERS), ("race: read", "write by lane", "lane 0 of that warp")),
        (hand_over(WRITE, ELECT, READ_OTHERS), ("convergence: read", "need not order memory")),
        (
            hand_over(f"{WRITE}{SYNC}{READ_ALL}", "", COPY),
            ("race: write", "read by several lanes", "alone"),
        ),
        (hand_over(WRITE, "bar.warp.sync 0x0000ffff;", READ_OTHERS), ("race: read", "lane 16")),
        (
            hand_over(WRITE, "", READ_OTHERS, "setp.lt.u32 %p3, %r1, 7;\n@%p3 mbarrier.arrive", 7),
            ("race: read", "write by lane 7", "7 lanes"),
        ),
    ],
    ids=["no sync", "an election", "reads", "half", "seven of them"],
)
def test_mistakes(body: str, wanted: tuple[str, ...]) -> None:
    body = body.replace(
        "bar.warp.sync 0x0000ffff;", "@!%p3 bra $H;\nbar.warp.sync 0x0000ffff;\n$H:"
    )
    assert_found(findings(body, threads=64), wanted)
