# SPDX-License-Identifier: Apache-2.0
"""
Who may have which columns of tensor memory, and until when: one CTA, a pair, two CTAs of one SM.
"""

from __future__ import annotations

import numpy as np
import pytest

from jitgen.emulator.machine.machine import Launch, Machine
from jitgen.emulator.machine.tensor_columns import choose
from jitgen.emulator.modes import DEFERRED, EAGER, LATE_READERS, Mode, random_mode
from jitgen.emulator.program.translate import Program
from jitgen.errors import Deadlock, MachineFault
from tests.emulator.mutation import text_of
from tests.emulator.tensor_core import Kernel

OWN_LANES = """
mov.u32 %r1, %warpid;
and.b32 %r1, %r1, 3;
shl.b32 %r1, %r1, 21;
"""
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r9+{}], {};\n"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 {}, {};\n"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
BASE = "bar.warp.sync -1;\nld.shared.b32 %r100, [%r9+256];\n"
SYNC = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def pair(text: str) -> str:
    return text.replace("cta_group::1", "cta_group::2")


def found(body: str, **options: object) -> list[str]:
    """Return what is found in a kernel, a fault as well."""
    try:
        kernel = Kernel(body, columns=0, **options)  # type: ignore[arg-type]
        kernel.machine.run()
    except MachineFault as fault:
        return [text_of(fault)]
    return kernel.findings


# --- one CTA -------------------------------------------------------------------------------------


def test_allocation_writes_the_first_column() -> None:
    body = ALLOC.format(256, 128) + ALLOC.format(260, 64)
    body += BASE + "ld.shared.b32 %r101, [%r9+260];\n"
    body += DEALLOC.format("%r100", 128) + DEALLOC.format("%r101", 64) + RELINQUISH
    kernel = Kernel(body, columns=0).run()
    first, second = kernel.registers("r10", 2)[:, 0].tolist()
    assert first % 128 == second % 64 == 0
    assert second not in range(first, first + 128)
    assert not kernel.findings
    assert not kernel.cta.tensor.is_allocated.any()


def test_what_is_not_freed_is_found() -> None:
    (message,) = found(ALLOC.format(256, 64))
    assert "64 columns of tensor memory from column 64 on are not freed" in message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ALLOC.format(256, 48), "48 columns, which is not a power of two"),
        (ALLOC.format(256, 256) * 3, "deadlock"),
        (
            ALLOC.format(256, 32) + BASE + DEALLOC.format("%r100", 64),
            "64 columns from column 32 on are not an alloc",
        ),
        (RELINQUISH + ALLOC.format(256, 32), "relinquished"),
        (
            ALLOC.format(256, 32) + BASE + DEALLOC.format("%r100", 32) + ALLOC.format(260, 64),
            "64 columns after 32",
        ),
    ],
)
def test_wrong_allocations(body: str, message: str) -> None:
    assert message in found(body)[0]


def test_memory_is_freed_while_another_warp_uses_it() -> None:
    body = f"""{OWN_LANES}
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $L_free;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r100}}, [%r1];
    WAIT
    SYNC
    bra $L_end;
    $L_free:
    SYNC
    {DEALLOC.format(0, 512)}
    $L_end:"""
    wait, barrier = "tcgen05.wait::ld.sync.aligned;", "bar.sync 1, 64;"
    for end, sync, wanted in (
        ("", "", ["race: write of tensor memory"]),
        (wait, "", ["race: write of tensor memory"]),
        ("", barrier, ["tensor load: no tcgen05.wait::ld of CTA (0, 0, 0) warp 1"]),
        (wait, barrier, []),
    ):
        kernel = Kernel(body.replace("WAIT", end).replace("SYNC", sync), threads=64)
        kernel.fill(0, np.zeros((128, 1), np.uint32))
        found = kernel.run().findings
        assert [text[: len(start)] for text, start in zip(found, wanted, strict=True)] == wanted


def test_two_warps_allocate_on_their_own() -> None:
    own = "mov.u32 %r2, %warpid;\nshl.b32 %r2, %r2, 2;\nadd.u32 %r9, %r9, %r2;\n"
    body = own + ALLOC.format(256, 64) + BASE + DEALLOC.format("%r100", 64)
    kernel = Kernel(body, threads=64, columns=0).run()
    assert len(set(kernel.registers("r10", 1)[0].tolist())) == 2
    assert not kernel.findings


# --- where the columns are -----------------------------------------------------------------------

USE = """tcgen05.st.sync.aligned.32x32b.x1.b32 [{}], {{%r0}};
tcgen05.wait::st.sync.aligned;
"""


def test_the_first_column_differs_between_ctas_and_modes() -> None:
    body = ALLOC.format(256, 128) + BASE + USE.format("%r100") + DEALLOC.format("%r100", 128)
    bases = {}
    for mode in (EAGER, DEFERRED, LATE_READERS, *map(random_mode, range(4))):
        kernel = Kernel(body, columns=0, cluster=2, mode=mode).run()
        assert not kernel.findings
        row = kernel.program.row("%r100")[1]
        bases[mode.name] = [int(cta.r[row, 0]) for cta in kernel.cluster.ctas]
        again = Kernel(body, columns=0, cluster=2, mode=mode).run()
        assert [int(cta.r[row, 0]) for cta in again.cluster.ctas] == bases[mode.name]
    assert all(one != other for one, other in bases.values())
    assert 0 not in bases["eager"]
    assert {first for first, _ in bases.values()} == {0, 128, 256, 384}


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (USE.format("0"), "fault: columns 0..0 .* are not all allocated, which are 128..255"),
        (USE.format("%r100+128"), "fault: columns 256..256"),
        (USE.format("%r100") + DEALLOC.format(0, 128), "from column 0 on are not an allocation"),
        (USE.format("%r101"), "fault: columns 0..0"),
    ],
    ids=["column 0", "one column too far", "column 0 is freed", "another word than was written"],
)
def test_columns_that_are_taken_for_granted(use: str, message: str) -> None:
    body = ALLOC.format(256, 128) + BASE + "mov.b32 %r101, 0;\n" + use
    with pytest.raises(MachineFault, match=message.removeprefix("fault: ")):
        Kernel(body, columns=0).run()


@pytest.mark.parametrize("numbers", [(64, 256, 128, 64), (256, 128, 64, 32, 32), (32,) * 16])
@pytest.mark.parametrize("turn", range(7))
def test_what_fits_is_never_kept_apart(numbers: tuple[int, ...], turn: int) -> None:
    is_taken = np.zeros(512, np.bool_)
    for number in numbers:
        first = choose(is_taken, number, turn)
        assert first is not None
        assert first % number == 0
        assert not is_taken[first : first + number].any()
        is_taken[first : first + number] = True
    assert choose(is_taken, 32, turn) is None


# --- two CTAs of one SM --------------------------------------------------------------------------


def run_grid(
    body: str,
    clusters: int,
    num_sms: int,
    shared_bytes: int = 0x8000,
    mode: Mode = EAGER,
    cluster: int = 1,
    registers: int = 0,
) -> Machine:
    own = "mov.u32 %r8, %cluster_ctarank;\nmapa.shared::cluster.u32 %r9, %r9, %r8;\n"
    text = f"mov.b32 %r9, 0x400;\n{own}{body}\nret;"
    text = f".version 8.8\n.target sm_100a\n.visible .entry kernel()\n{{\n{text}\n}}\n"
    launch = Launch(
        grid=(clusters * cluster, 1, 1),
        block=(32, 1, 1),
        cluster=(cluster, 1, 1),
        shared_bytes=shared_bytes,
        registers=registers,
    )
    machine = Machine(Program(text), None, launch, mode, num_sms=num_sms)  # type: ignore[arg-type]
    machine.run()
    return machine


WHOLE = ALLOC.format(256, 512) + BASE


@pytest.mark.parametrize("mode", [EAGER, DEFERRED, random_mode(3), random_mode(4)])
def test_an_allocation_waits_for_the_other_cta_of_the_sm(mode: Mode) -> None:
    machine = run_grid(WHOLE + DEALLOC.format("%r100", 512), 4, 1, mode=mode)
    assert not machine.findings
    assert machine.sms.resident == 6


def test_columns_that_are_never_freed_stop_the_next_cta_of_the_sm() -> None:
    with pytest.raises(Deadlock, match=r"512 columns .*tcgen05.alloc.*, of which 0 are free"):
        run_grid(WHOLE, 2, 1)
    assert run_grid(WHOLE, 2, 2).findings  # each on an SM of its own


def test_ctas_that_fill_their_sm_are_alone() -> None:
    body = WHOLE + DEALLOC.format("%r100", 512)
    assert run_grid(body, 2, 2, 0x30000).sms.resident == 2
    assert run_grid(body, 2, 1, registers=248).sms.resident == 2  # of 31744 registers each


# --- pairs ---------------------------------------------------------------------------------------

PAIR = pair(ALLOC.format(256, 64)) + BASE + "WORK\n" + SYNC + pair(DEALLOC.format("%r100", 64))
PAIR += pair(RELINQUISH)
ODD = "mov.u32 %r2, %cluster_ctarank;\nsetp.eq.u32 %p1, %r2, 1;\n"


def of_one(text: str) -> str:
    """Let only the odd CTA execute something."""
    return f"{ODD}@!%p1 bra $L_skip;\n{text}$L_skip:\n"


def test_a_pair_allocates_as_one() -> None:
    body = pair(ALLOC.format(256, 64)) + BASE + pair(ALLOC.format(260, 32))
    body += "bar.warp.sync -1;\nld.shared.b32 %r101, [%r9+260];\n" + SYNC
    body += pair(DEALLOC.format("%r100", 64) + DEALLOC.format("%r101", 32))
    kernel = Kernel(body, columns=0, cluster=2).run()
    assert not kernel.findings
    assert not any(cta.tensor.asking or cta.tensor.closing for cta in kernel.cluster.ctas)
    rows = [kernel.program.row(name)[1] for name in ("%r100", "%r101")]
    one, other = (cta.r[rows, 0].tolist() for cta in kernel.cluster.ctas)
    assert one == other


@pytest.mark.parametrize("mode", [EAGER, DEFERRED, *map(random_mode, range(6))])
def test_a_pair_that_synchronises_before_it_frees(mode: Mode) -> None:
    assert found(PAIR.replace("WORK", USE.format("%r100")), cluster=2, mode=mode) == []


@pytest.mark.parametrize("mode", [EAGER, DEFERRED, *map(random_mode, range(6))])
def test_warps_may_exit_at_once_after_they_freed(mode: Mode) -> None:
    """The example in "Issue Granularity": no synchronisation after the deallocation."""
    body = PAIR.replace("WORK\n", "").replace(pair(RELINQUISH), "")
    body = body.replace("bar.warp.sync", pair(RELINQUISH) + "bar.warp.sync")
    assert not run_grid(body, 3, 4, mode=mode, cluster=2).findings


def test_a_pair_that_frees_while_the_peer_works() -> None:
    late = "barrier.cluster.wait.aligned;\n" + of_one(USE.format("%r100"))
    body = PAIR.replace("WORK\n", "").replace("barrier.cluster.wait.aligned;\n", late)
    (message,) = found(body, cluster=2)
    assert "race: write of tensor memory" in message
    assert "tcgen05.dealloc" in message
    no_handshake = PAIR.replace("WORK", of_one(USE.format("%r100"))).replace(SYNC, "")
    assert any("race" in message for message in found(no_handshake, cluster=2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (of_one(pair(ALLOC.format(256, 64))), "the tcgen05.alloc of the peer of CTA (1, 0, 0)"),
        (
            PAIR.replace("WORK\n", "").replace(
                pair(DEALLOC.format("%r100", 64)), of_one(pair(DEALLOC.format("%r100", 64)))
            ),
            "the tcgen05.dealloc of the peer of CTA (1, 0, 0)",
        ),
        (
            # the example of the PTX ISA that "exhibits non-deterministic behavior"
            pair(ALLOC.format(256, 64)) + BASE + ODD + "@%p1 bra $L_odd;\n" + SYNC
            + pair(DEALLOC.format("%r100", 64)) + "bra $L_end;\n$L_odd:\n"
            + pair(DEALLOC.format("%r100", 64)) + SYNC + "$L_end:",
            "deadlock",
        ),
        (
            ODD + "selp.b32 %r3, 64, 32, %p1;\n" + pair(ALLOC.format(256, "%r3")),
            "the CTAs of a pair allocate 32 and 64 columns",
        ),
        (
            PAIR.replace("WORK\n", "").replace(pair(RELINQUISH), of_one(pair(RELINQUISH))),
            "exit: CTA (0, 0, 0) rank 0 keeps its permit to allocate, which its peer relinquished",
        ),
    ],
    ids=["one allocates", "one frees", "freed in another order", "sizes", "one relinquishes"],
)  # fmt: skip
def test_what_only_one_cta_of_a_pair_does(body: str, message: str) -> None:
    assert any(message in text for text in found(body, cluster=2))


def test_no_peer() -> None:
    assert "has no peer in its cluster" in found(PAIR.replace("WORK\n", ""))[0]


@pytest.mark.parametrize(
    "other",
    [
        RELINQUISH,
        "bra $L_end;\ntcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, %p1;\n$L_end:\n",
        "@%p1 tcgen05.cp.cta_group::1.128x128b [%r1], %rd1;\n",
        "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];\n",
    ],
    ids=["relinquish", "mma that is never executed", "cp", "commit"],
)
def test_one_cta_group_in_a_kernel(other: str) -> None:
    assert "must have the same .cta_group" in found(PAIR.replace("WORK", other), cluster=2)[0]
