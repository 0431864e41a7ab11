# SPDX-License-Identifier: Apache-2.0
"""
Atomic operations and relaxed accesses at scopes that do not include each other's threads, and
ordinary stores to one place by threads of one instruction; each beside what is right.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.scopes import Scope, are_morally_strong, scope_in
from jitgen.emulator.modes import EAGER, Mode
from tests.emulator.mutation import assert_found
from tests.emulator.program import EVERY_MODE, found_by, run_grid
from tests.emulator.test_scopes import SYNC
from tests.emulator.test_scopes import run as run_cluster

MODES = pytest.mark.parametrize("mode", EVERY_MODE)
RACE = ("race: ", "global memory", "neither makes the other atomic")
ADD = "red.relaxed.{}.global.add.u32 [%rd1], 1;\n"
LOAD = "ld.relaxed.cta.global.b32 %r2, [%rd1];\n"


def in_grid(body: str, mode: Mode) -> list[str]:
    """Return what is found in a kernel of two clusters of one CTA each."""
    machine = run_grid(body, np.zeros(4, np.uint32), 2, mode=mode)
    return [str(finding) for finding in machine.findings.values()]


def by_cta(first: str, second: str) -> str:
    """Return a kernel whose CTAs execute different code."""
    which = "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 bra $SECOND;\n"
    return f"{which}{first}bra $END;\n$SECOND:\n{second}$END:\n"


# --- global memory, CTAs of different clusters ----------------------------------------------------

STRANGERS = {
    "both at .cta": (ADD.format("cta"), ADD.format("cta")),
    "one at .cta": (ADD.format("gpu"), ADD.format("cta")),
    "the other at .cta": (ADD.format("cta"), ADD.format("sys")),
    "at .cluster": (ADD.format("cluster"), ADD.format("gpu")),
    "an exchange": ("atom.relaxed.cta.global.exch.b32 %r2, [%rd1], 1;\n", ADD.format("gpu")),
    "a store": ("st.relaxed.cta.global.b32 [%rd1], 1;\n", ADD.format("gpu")),
    "a load": ("ld.relaxed.cta.global.b32 %r2, [%rd1];\n", ADD.format("gpu")),
    "a load of what is stored at .cta": (
        "ld.relaxed.gpu.global.b32 %r2, [%rd1];\n",
        "st.relaxed.cta.global.b32 [%rd1], 1;\n",
    ),
    "another one in between": (ADD.format("gpu"), ADD.format("gpu") + ADD.format("cta")),
    "one of several": (ADD.format("cta") + ADD.format("gpu"), ADD.format("gpu")),
}


@MODES
@pytest.mark.parametrize("name", STRANGERS)
def test_scopes_that_leave_the_other_cta_out(name: str, mode: Mode) -> None:
    one, other = STRANGERS[name]

    assert_found(in_grid(by_cta(one, other), mode), RACE)
    assert_found(in_grid(by_cta(other, one), mode), RACE)
    wide = by_cta(one, other).replace(".cta.", ".gpu.").replace(".cluster.", ".sys.")
    assert in_grid(wide, mode) == []


@MODES
@pytest.mark.parametrize(
    "body",
    [
        "red.global.add.u32 [%rd1], 1;\n",
        "atom.global.add.u32 %r2, [%rd1], 1;\n",
        "ld.volatile.global.b32 %r2, [%rd1];\nst.volatile.global.b32 [%rd1], 1;\n",
        by_cta(ADD.format("cta"), ADD.format("cta").replace("[%rd1]", "[%rd1+4]")),
        by_cta(ADD.format("cta") * 2, ""),
        by_cta(LOAD, LOAD),
    ],
    ids=["red is .gpu", "atom is .gpu", "volatile is .sys", "other words", "one CTA", "loads"],
)  # fmt: skip
def test_scopes_that_do(body: str, mode: Mode) -> None:
    assert in_grid(body, mode) == []


ORDERED = by_cta(
    f"{ADD.format('cta')}st.release.gpu.global.b32 [%rd1+8], 1;\n",
    "$POLL:\nld.acquire.gpu.global.b32 %r2, [%rd1+8];\nsetp.eq.u32 %p2, %r2, 0;\n@%p2 bra $POLL;\n"
    + ADD.format("cta"),
)


@MODES
def test_narrow_scopes_one_after_the_other(mode: Mode) -> None:
    assert in_grid(ORDERED, mode) == []
    at_cluster = ORDERED.replace("release.gpu", "release.cluster")
    assert_found(in_grid(at_cluster, mode), RACE)


# --- a cluster ------------------------------------------------------------------------------------

SHARED_ADD = "red.relaxed.{}.shared::cluster.add.u32 [%r3], 1;\n"
BEGIN = f"st.shared::cta.b32 [%r2], 0;\n{SYNC}"


@MODES
@pytest.mark.parametrize("scope", ["cluster", "gpu", "sys"])
def test_the_shared_memory_of_a_cluster(scope: str, mode: Mode) -> None:
    right = BEGIN + SHARED_ADD.format(scope) + SYNC
    assert run_cluster(right, mode) == []
    found = run_cluster(right.replace(f".{scope}.sh", ".cta.sh"), mode)
    assert_found(found, ("race: relaxed", "shared memory 0x500 of CTA (0, 0, 0)", "at .cta"))


@MODES
def test_one_of_the_cluster_at_its_own_scope(mode: Mode) -> None:
    near, far = SHARED_ADD.format("cta"), SHARED_ADD.format("cluster")
    mixed = f"{BEGIN}@%p1 bra $FAR;\n{near}bra $END;\n$FAR:\n{far}$END:\n{SYNC}"
    assert_found(run_cluster(mixed, mode), ("race: relaxed", "shared memory 0x500"))
    assert run_cluster(f"{BEGIN}@!%p1 {near}{SYNC}", mode) == []
    assert run_cluster(f"{BEGIN}@!%p1 {near}{SYNC}@%p1 {near}{SYNC}", mode) == []


@MODES
@pytest.mark.parametrize("scope", ["cta", "cluster"])
def test_global_memory_of_a_cluster(scope: str, mode: Mode) -> None:
    found = run_cluster(SYNC + ADD.format(scope), mode)
    if scope == "cta":
        assert_found(found, RACE)
    else:
        assert found == []


# --- stores to one place --------------------------------------------------------------------------

HEAD = """mov.u32 %r1, %tid.x;
setp.eq.u32 %p1, %r1, 5;
shr.u32 %r4, %r1, 1;
mad.lo.u32 %r5, %r4, 16, 1024;
mov.u32 %r6, 0x500;
"""
DIFFERENT = ("race: threads ", "store different values to", "by one instruction")
EXCHANGE = """
@%p1 st.shared.b32 [%r6], 0;
bar.warp.sync -1;
atom.shared.exch.b32 %r2, [%r6], %r1;
"""
STORES = {
    "all to one word": ("st.shared.b32 [%r6], %r1;\n", "st.shared.b32 [%r6], 7;\n"),
    "two to each": ("st.shared.b32 [%r5], %r1;\n", "st.shared.b32 [%r5], %r4;\n"),
    "vectors": (
        "st.shared.v2.b32 [%r5], {%r4, %r1};\n",
        "st.shared.v2.b32 [%r5], {%r4, %r5};\n",
    ),
    "bytes": (
        "cvt.u16.u32 %rs1, %r1;\nst.shared.b8 [%r6+3], %rs1;\n",
        "cvt.u16.u32 %rs1, %r5;\nst.shared.b8 [%r6+3], 1;\n",
    ),
    "one lane is meant": ("st.shared.b32 [%r6], %r1;\n", "@%p1 st.shared.b32 [%r6], %r1;\n"),
    "relaxed stores": ("st.shared.b32 [%r6], %r1;\n", "st.volatile.shared.b32 [%r6], %r1;\n"),
    "an exchange": ("st.shared.b32 [%r6], %r1;\n", EXCHANGE),
}


@MODES
@pytest.mark.parametrize("name", STORES)
def test_stores_to_one_place_of_shared_memory(name: str, mode: Mode) -> None:
    wrong, right = STORES[name]
    assert_found(found_by(HEAD + wrong, mode), DIFFERENT)
    assert found_by(HEAD + right, mode) == []


FOURTH = "and.b32 %r7, %r1, 3;\nmul.wide.u32 %rd2, %r7, 4;\nadd.u64 %rd2, %rd1, %rd2;\n"
GLOBAL_STORES = {
    "all to one word": ("st.global.b32 [%rd1], %r1;\n", "st.global.b32 [%rd1], 7;\n"),
    "the last one is meant": ("st.global.b32 [%rd1], %r1;\n", "@%p1 st.global.b32 [%rd1], %r1;\n"),
    "halves": (
        "cvt.u16.u32 %rs1, %r1;\nst.global.b16 [%rd1+2], %rs1;\n",
        "st.global.b16 [%rd1+2], 9;\n",
    ),
    "by turns": (
        f"{FOURTH}st.global.b32 [%rd2], %r1;\n",
        f"{FOURTH}st.global.b32 [%rd2], %r7;\n",
    ),
    "relaxed stores": ("st.global.b32 [%rd1], %r1;\n", "st.relaxed.gpu.global.b32 [%rd1], %r1;\n"),
}


@MODES
@pytest.mark.parametrize("name", GLOBAL_STORES)
def test_stores_to_one_place_of_global_memory(name: str, mode: Mode) -> None:
    def found(body: str) -> list[str]:
        machine = run_grid(HEAD + body, np.zeros(4, np.uint32), 1, mode=mode)
        return [str(finding) for finding in machine.findings.values()]

    wrong, right = GLOBAL_STORES[name]
    assert_found(found(wrong), DIFFERENT)
    assert found(right) == []


@MODES
def test_asynchronous_stores_to_one_place(mode: Mode) -> None:
    text = f"""{HEAD}
    setp.eq.u32 %p2, %r1, 0;
    mov.u32 %r8, 2048;
    @%p2 mbarrier.init.shared::cta.b64 [%r8], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 128;
    mad.lo.u32 %r9, %r1, 4, 1024;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r1, [%r8];
    $WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r8], 0;
    @!%p3 bra $WAIT;
    """
    assert found_by(text, mode) == []
    assert_found(found_by(text.replace("%r1, 4, 1024;", "0, 4, 1024;"), mode), DIFFERENT)


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same_cta", "same_cluster", "expected"),
    [
        (Scope.CTA, Scope.CTA, True, True, True),
        (Scope.CTA, Scope.SYS, False, True, False),
        (Scope.CLUSTER, Scope.CLUSTER, False, True, True),
        (Scope.CLUSTER, Scope.SYS, False, False, False),
        (Scope.GPU, Scope.SYS, False, False, True),
    ],
)
def test_morally_strong(
    one: Scope, other: Scope, same_cta: bool, same_cluster: bool, expected: bool
) -> None:
    for pair in ((one, other), (other, one)):
        assert are_morally_strong(*pair, same_cta=same_cta, same_cluster=same_cluster) is expected


def test_the_scope_is_that_of_the_opcode() -> None:
    assert scope_in(["atom", "relaxed", "cluster", "global"]) is Scope.CLUSTER
    assert scope_in(["membar", "gl"]) is Scope.GPU
    assert scope_in(["ld", "volatile"]) is Scope.SYS
    assert scope_in(["red", "add"], Scope.GPU) is Scope.GPU
    assert [str(scope) for scope in Scope] == [".cta", ".cluster", ".gpu", ".sys"]


def test_what_one_mode_finds_names_both() -> None:
    one, other = STRANGERS["one at .cta"]
    (text,) = in_grid(by_cta(one, other), EAGER)
    assert text.count("red.relaxed") == 2
    assert "at .cta and .gpu neither" in text
