# SPDX-License-Identifier: Apache-2.0
"""Two CTAs of a cluster that speak through memory: scopes, and whether the other one is there."""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.modes import DEFERRED, EAGER, Mode, random_mode
from jitgen.emulator.program.translate import Program
from tests.emulator.mutation import assert_found

MODES = [EAGER, DEFERRED, random_mode(0), random_mode(1)]
SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
START = """ld.param.b64 %rd1, [flag];
mov.u32 %r1, %cluster_ctarank;
mov.u32 %r2, 0x500;
mapa.shared::cluster.u32 %r2, %r2, %r1;
mapa.shared::cluster.u32 %r3, %r2, 0;
mapa.shared::cluster.u32 %r4, %r2, 1;
setp.eq.u32 %p1, %r1, 1;
"""


def run(body: str, mode: Mode = EAGER, threads: int = 32, cluster: int = 2) -> list[str]:
    """Return what is found in a kernel of one cluster; %rd1 is the address of a flag."""
    flag = np.zeros(1, np.uint32)
    text = f".version 8.8\n.target sm_100a\n.visible .entry kernel(.param .u64 flag)\n{{\n{START}"
    memory = GlobalMemory()
    memory.add(flag.ctypes.data, flag.nbytes, "flag")
    launch = Launch(
        grid=(cluster, 1, 1),
        block=(threads, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=4096,
        params=(flag.ctypes.data.to_bytes(8, "little"),),
    )
    machine = Machine(Program(f"{text}{body}\nret;\n}}\n"), memory, launch, mode)
    machine.run()
    return [str(finding) for finding in machine.findings.values()]


# --- scopes --------------------------------------------------------------------------------------

FENCES = f"""{SYNC}
@%p1 bra $L_reader;
st.shared::cta.b32 [%r2], 7;
fence.acq_rel.cluster;
st.relaxed.gpu.global.b32 [%rd1], 1;
bra $L_end;
$L_reader:
ld.relaxed.gpu.global.b32 %r5, [%rd1];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra $L_reader;
fence.acq_rel.gpu;
ld.shared::cluster.b32 %r6, [%r3];
$L_end:
{SYNC}"""

RELEASE = (
    FENCES.replace("fence.acq_rel.cluster;", "")
    .replace("st.relaxed.gpu", "st.release.gpu")
    .replace("ld.relaxed.gpu", "ld.acquire.gpu")
    .replace("fence.acq_rel.gpu;", "")
)
UPDATE = RELEASE.replace("st.release.gpu.global.b32", "red.release.gpu.global.add.u32")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("body", [FENCES, RELEASE, UPDATE], ids=["fences", "release", "update"])
def test_scopes_that_hold_the_other(body: str, mode: Mode) -> None:
    assert run(body, mode) == []


@pytest.mark.parametrize(
    ("body", "old", "new"),
    [
        (FENCES, "fence.acq_rel.cluster", "fence.acq_rel.cta"),
        (FENCES, "fence.acq_rel.gpu", "fence.acq_rel.cta"),
        (FENCES, "fence.acq_rel.cluster", "membar.cta"),
        (FENCES, "fence.acq_rel.gpu", "fence.sc.cta"),
        (FENCES, "st.relaxed.gpu", "st.relaxed.cta"),
        (FENCES, "ld.relaxed.gpu", "ld.relaxed.cta"),
        (RELEASE, "st.release.gpu", "st.release.cta"),
        (RELEASE, "ld.acquire.gpu", "ld.acquire.cta"),
        (UPDATE, "red.release.gpu", "red.release.cta"),
    ],
)
def test_a_scope_that_does_not(body: str, old: str, new: str) -> None:
    assert old in body
    assert_found(run(body.replace(old, new)), ("race: read of shared memory 0x500", "st.shared"))


WARPS = """setp.ge.u32 %p1, %r0, 32;
@%p1 bra $L_reader;
st.shared::cta.b32 [%r2], 7;
fence.acq_rel.cta;
st.relaxed.cta.global.b32 [%rd1], 1;
bra $L_end;
$L_reader:
ld.relaxed.cta.global.b32 %r5, [%rd1];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra $L_reader;
fence.acq_rel.cta;
ld.shared::cta.b32 %r6, [%r2];
$L_end:
"""


def test_within_a_cta_its_scope_is_enough() -> None:
    body = "mov.u32 %r0, %tid.x;\n" + WARPS
    assert run(body, threads=64, cluster=1) == []
    assert run(body.replace("fence.acq_rel.cta;", "", 1), threads=64, cluster=1)


# --- is the other CTA there? ---------------------------------------------------------------------

READ = "st.shared.b32 [%r2], 1;\n{}@%p1 ld.shared::cluster.b32 %r6, [%r3];\n{}"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_barriers_before_and_after(mode: Mode) -> None:
    assert run(READ.format(SYNC, SYNC), mode) == []


REMOTE = {
    "load": "@%p1 ld.shared::cluster.b32 %r6, [%r3];\n",
    "store": "@%p1 st.shared::cluster.b32 [%r3], 5;\n",
    "update": "@%p1 red.shared::cluster.add.u32 [%r3], 5;\n",
}


@pytest.mark.parametrize("name", REMOTE)
def test_an_access_before_the_other_cta_is_known_to_run(name: str) -> None:
    found = run(REMOTE[name] + SYNC)
    message = (
        "start: access to the shared memory of CTA (0, 0, 0) rank 0, which may not have started"
    )
    assert_found(found, (message, "::cluster"))
    assert not any("started" in text for text in run(SYNC + REMOTE[name] + SYNC))


@pytest.mark.parametrize("name", REMOTE)
def test_an_access_after_the_other_cta_may_have_exited(name: str) -> None:
    first = "st.shared.b32 [%r2], 1;\n" + SYNC
    assert_found(run(first + REMOTE[name]), ("exit", "CTA (0, 0, 0) rank 0", "exit"))
    assert run(first + REMOTE[name] + SYNC) == []
