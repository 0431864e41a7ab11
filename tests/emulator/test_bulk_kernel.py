# SPDX-License-Identifier: Apache-2.0
"""A kernel that loads a box and stores it: right in every mode, and wrong in many ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import ALL, Mode
from jitgen.emulator.program.translate import Program
from jitgen.errors import Deadlock, MachineFault
from tests.emulator.bulk import Bench, aligned, numbered

COPY = """
.version 8.8
.target sm_90a
.visible .entry copy(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{
.reg .pred %p<4>;
.reg .b32 %r<4>;
.reg .b64 %rd<2>;
.shared .align 128 .b8 box[256];
.shared .align 8 .b8 barrier[8];
mov.u32 %r1, %tid.x;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra $WAIT;
mbarrier.init.shared::cta.b64 [barrier], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 256;
mov.b64 %rd1, from;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    [box], [%rd1, {0, %r1}], [barrier];
$WAIT:
bar.sync 0;
$LOOP:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [barrier], 0;
@!%p2 bra $LOOP;
@%p1 bra $END;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [to, {8, 4}], [box];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
$END:
ret;
}
"""


def run(text: str, mode: Mode) -> tuple[Machine, NDArray[Any], NDArray[Any]]:
    """Run a kernel of 64 threads; return the machine, the source and the target."""
    bench = Bench()
    source, target = numbered(8, 16), aligned(np.zeros((16, 32), np.uint16))
    maps = [bench.tensor_map(tensor, "u16", (16, 8)) for tensor in (source, target)]
    memory = bench.f.machine.memory
    params = tuple(memory.bytes(address, 128).tobytes() for address in maps)
    launch = Launch(grid=(1, 1, 1), block=(64, 1, 1), params=params)
    machine = Machine(Program(text), memory, launch, mode)
    machine.run()
    return machine, source, target


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
def test_right_in_every_mode(mode: Mode) -> None:
    machine, source, target = run(COPY, mode)
    assert np.array_equal(target[4:12, 8:24], source)
    assert target.sum() == source.sum()
    assert not machine.findings
    assert machine.counts == {
        "bulk_loads": 1, "bulk_load_bytes": 256, "bulk_stores": 1, "bulk_store_bytes": 256,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("_, [barrier], 256", "_, [barrier], 128", Deadlock),
        ("_, [barrier], 256", "_, [barrier], 512", Deadlock),
        ("{0, %r1}", "{4, %r1}", MachineFault),
        ("[barrier], 1;", "[barrier], 2;", Deadlock),
    ],
    ids=["too few bytes", "too many bytes", "coordinate", "arrivals"],
)
def test_errors(mode: Mode, right: str, wrong: str, error: type[Exception]) -> None:
    assert right in COPY
    with pytest.raises(error):
        run(COPY.replace(right, wrong), mode)


WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [barrier], 0;\n@!%p2 bra $LOOP;"


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("left_out", "kind"),
    [("cp.async.bulk.wait_group.read 0;", "exit"), (WAIT, "race")],
    ids=["store", "load"],
)
def test_no_wait(mode: Mode, left_out: str, kind: str) -> None:
    assert left_out in COPY
    machine, _, _ = run(COPY.replace(left_out, ""), mode)
    assert kind in {finding.kind for finding in machine.findings.values()}


COMMIT = "cp.async.bulk.commit_group;"


@pytest.mark.parametrize("mode", ALL, ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    ("old", "new"),
    [(COMMIT, ""), (f"{COMMIT}\ncp.async.bulk.wait_group.read 0;", "")],
    ids=["no commit", "neither commit nor wait"],
)
def test_a_store_that_may_outlive_the_cta(mode: Mode, old: str, new: str) -> None:
    """Its shared memory goes to another CTA, and nothing says that it has been read."""
    assert old in COPY
    machine, _, _ = run(COPY.replace(old, new), mode)
    (finding,) = machine.findings.values()
    assert finding.kind == "exit"
    assert "never committed its last bulk copies" in str(finding)


@pytest.mark.parametrize("mode", ALL[:3], ids=lambda mode: mode.name)
def test_every_lane_stores_to_the_same_place(mode: Mode) -> None:
    """What is the same for all is one copy; lanes that differ in the source race."""
    together = COPY.replace("@%p1 bra $END;", "setp.gt.u32 %p3, %r1, 31;\n@%p3 bra $END;")
    machine, source, target = run(together, mode)
    assert np.array_equal(target[4:12, 8:24], source)
    assert not machine.findings

    apart = together.replace(
        "cp.async.bulk.tensor.2d.global",
        "mov.u32 %r2, box;\nshl.b32 %r3, %r1, 7;\nand.b32 %r3, %r3, 128;\n"
        "add.u32 %r2, %r2, %r3;\ncp.async.bulk.tensor.2d.global",
    ).replace("[to, {8, 4}], [box]", "[to, {8, 4}], [%r2]")
    machine, _, _ = run(apart.replace(".b8 box[256]", ".b8 box[512]"), mode)
    assert "race" in {finding.kind for finding in machine.findings.values()}
