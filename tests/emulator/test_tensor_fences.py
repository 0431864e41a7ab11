# SPDX-License-Identifier: Apache-2.0
"""tcgen05.fence and tcgen05.wait: what is ordered with them, and what is not without one."""

from __future__ import annotations

import pytest

from jitgen.emulator.modes import EAGER, Mode
from tests.emulator.mutation import assert_found
from tests.emulator.tensor_core import (
    MODES,
    WAIT,
    A,
    B,
    Case,
    Kernel,
    commit,
    instruction_bits,
    mma,
    random_raw,
)

BEFORE, AFTER = "tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n"
WAIT_LD, WAIT_ST = "tcgen05.wait::ld.sync.aligned;\n", "tcgen05.wait::st.sync.aligned;\n"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [%r1];\n"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r1], {%r0};\n"

STEPS = [
    # the first warpgroup stores, the second loads, the first stores again, the second loads
    ("store", [STORE, WAIT_ST, BEFORE, "bar.sync 1, 256;\n"]),
    ("load", ["bar.sync 1, 256;\n", AFTER, LOAD, WAIT_LD, BEFORE, "bar.sync 2, 256;\n"]),
    ("store again", ["bar.sync 2, 256;\n", AFTER, STORE, WAIT_ST, BEFORE, "bar.sync 3, 256;\n"]),
    ("load again", ["bar.sync 3, 256;\n", AFTER, LOAD, WAIT_LD]),
]


def hand_over(*, without: tuple[str, str] = ("", ""), never: tuple[str, ...] = ()) -> str:
    """Return the kernel without one instruction of a step, and without some kinds at all."""
    parts = {
        name: "".join(x for x in lines if (name, x) != without and x not in never)
        for name, lines in STEPS
    }
    return f"""mov.u32 %r1, %warpid;
    and.b32 %r1, %r1, 3;
    shl.b32 %r1, %r1, 21;
    setp.ge.u32 %p1, %r0, 128;
    @%p1 bra $L_second;
    {parts["store"]}{parts["store again"]}bra $L_end;
    $L_second:
    {parts["load"]}{parts["load again"]}$L_end:"""


def findings(body: str, mode: Mode = EAGER) -> list[str]:
    return Kernel(body, threads=256, mode=mode).run().findings


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_whole_pattern(mode: Mode) -> None:
    assert findings(hand_over(), mode) == []


@pytest.mark.parametrize(
    ("step", "instruction", "race"),
    [
        ("store", BEFORE, ("read", "tcgen05.st")),
        ("store", WAIT_ST, ("read", "tcgen05.st")),
        ("load", AFTER, ("read", "tcgen05.st")),
        ("load", WAIT_LD, ("write", "tcgen05.ld")),
        ("load", BEFORE, ("write", "tcgen05.ld")),
        ("store again", AFTER, ("write", "tcgen05.ld")),
        ("store again", WAIT_ST, ("read", "tcgen05.st")),
        ("store again", BEFORE, ("read", "tcgen05.st")),
        ("load again", AFTER, ("read", "tcgen05.st")),
    ],
)
def test_one_is_missing(step: str, instruction: str, race: tuple[str, str]) -> None:
    kind, earlier = race
    found = findings(hand_over(without=(step, instruction)))
    assert_found(found, (f"race: {kind} of tensor memory", "is not ordered after", earlier))


@pytest.mark.parametrize(
    ("never", "without"),
    [
        ((BEFORE,), ("load", WAIT_LD)),
        ((AFTER,), ("load", BEFORE)),
        ((BEFORE, AFTER), ("load", WAIT_LD)),
    ],
)
def test_kernels_that_leave_all_fences_of_a_kind_out(
    never: tuple[str, ...], without: tuple[str, str]
) -> None:
    assert findings(hand_over(never=never)) == []
    assert_found(findings(hand_over(without=without, never=never)), ("race", "tcgen05.ld"))


@pytest.mark.parametrize("fences", [(), (BEFORE,), (AFTER,), (BEFORE, AFTER)])
@pytest.mark.parametrize(
    ("wait", "race"), [(WAIT_LD, ("write", "tcgen05.ld")), (WAIT_ST, ("read", "tcgen05.st"))]
)
def test_kernels_that_never_wait(wait: str, race: tuple[str, str], fences: tuple[str, ...]) -> None:
    """Whatever fences there are, and though no other wait of the kernel says that one is needed."""
    kind, earlier = race
    found = findings(hand_over(never=(wait, *fences)))
    assert_found(found, (f"race: {kind} of tensor memory", "is not ordered after", earlier))


def test_registers_may_be_used_before_the_wait() -> None:
    """PTX ISA, section "Register dependencies, same thread"."""
    body = hand_over().replace(LOAD, f"{LOAD}add.u32 %r101, %r100, 1;\n")
    assert "add.u32" in body
    assert findings(body) == []


def test_a_barrier_alone_is_not_enough_but_needed() -> None:
    no_barrier = hand_over().replace("bar.sync 2, 256;\n", "")
    assert_found(findings(no_barrier), ("race", "is not ordered after", "tcgen05"))


# --- products ------------------------------------------------------------------------------------

READ = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r100}, [0];\ntcgen05.wait::ld.sync.aligned;\n"
SECOND = WAIT.replace("$L_wait", "$L_again").replace("], 0;", "], 1;")


def product(after: str, wait: str = WAIT_LD, before: str = BEFORE) -> Case:
    """Multiply, load the sums, and multiply again, all in one warp."""
    multiply = mma("f16", instruction_bits(128, 16))
    load = READ.replace(WAIT_LD, wait)
    body = f"{multiply}\n{commit()}\n{WAIT.replace(AFTER, after)}{load}{before}{AFTER}{multiply}"
    return Case(body, random_raw(128, 1), random_raw(16, 2), a_at=A, b_at=B)


def run(case: Case) -> list[str]:
    """Run it; `Case` commits and waits once more, which is the second phase."""
    case.wait = SECOND
    return case.run().findings


def test_a_product_its_sums_and_another() -> None:
    assert run(product(AFTER)) == []


def test_no_fence_between_the_wait_for_a_product_and_the_load() -> None:
    assert_found(run(product("")), ("race: read of tensor memory", "tcgen05.mma"))


def test_a_product_that_races_ahead_of_a_load() -> None:
    """The example in "tcgen05.wait": the load may not be complete."""
    case = product(AFTER, wait="")
    case.mma += f"\n{WAIT_LD}"
    assert_found(run(case), ("race: write of tensor memory", "tcgen05.ld"))
