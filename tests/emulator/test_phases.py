# SPDX-License-Identifier: Apache-2.0
"""
Phases of mbarriers: each is seen complete before the next one is signalled, none passes a wait by,
and a barrier ends after all that uses it.

What is found does not depend on which warp runs first: every mistake is found in every mode.
"""

from __future__ import annotations

import pytest

from jitgen.emulator.findings import Severity, severity_of
from jitgen.emulator.modes import Mode
from tests.emulator.mutation import Mutation, assert_found, by_name
from tests.emulator.program import EVERY_MODE, found_by


def wait(barrier: str, parity: int, name: str) -> str:
    """Return a loop that waits for a parity."""
    poll = f"mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity};\n"
    return f"${name}:\n{poll}@!%p9 bra ${name};\n"


MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def arrive(barrier: str) -> str:
    """Return the arrival of the first thread of a warp."""
    return f"@%p1 mbarrier.arrive.shared::cta.b64 _, [{barrier}];\n"


FULL, EMPTY = "%r5", "%r6"
HEAD = f"""
mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 31;
shr.u32 %r3, %r1, 5;
setp.eq.u32 %p1, %r2, 0;
setp.eq.u32 %p2, %r1, 0;
setp.ne.u32 %p3, %r3, 0;
mov.u32 {FULL}, 2048;
mov.u32 {EMPTY}, 2056;
"""
INIT = f"""
@%p2 mbarrier.init.shared::cta.b64 [{FULL}], 1;
@%p2 mbarrier.init.shared::cta.b64 [{EMPTY}], 2;
@%p2 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
WAIT_EMPTY = wait(EMPTY, 0, "E0")
SEE_FIRST, SEE_SECOND = wait(FULL, 0, "F0"), wait(FULL, 1, "F1")
GIVE_BACK = arrive(EMPTY)
RING = f"""{HEAD}{INIT}
@%p3 bra $CONSUMER;
{arrive(FULL)}{WAIT_EMPTY}{arrive(FULL)}
bra $END;
$CONSUMER:
{SEE_FIRST}{GIVE_BACK}{SEE_SECOND}
$END:
bar.sync 0;
@%p2 mbarrier.inval.shared::cta.b64 [{FULL}];
@%p2 mbarrier.inval.shared::cta.b64 [{EMPTY}];
"""
"""Warp 0 signals two phases, warps 1 and 2 wait for both and give the first one back."""

UNSEEN = (
    "phase: phase ",
    "of mbarrier 0x800",
    "nothing orders that after a successful wait for phase",
)
PASSED = ("mbarrier 0x800",)
ENDED = ("mbarrier 0x800 of CTA (0, 0, 0) ends, and nothing orders that after its use",)
ONE_GIVES_BACK = f"setp.eq.u32 %p4, %r1, 32;\n@%p4 mbarrier.arrive.shared::cta.b64 _, [{EMPTY}];\n"

MISTAKES = (
    Mutation("the first phase is not seen", WAIT_EMPTY, "", UNSEEN),
    Mutation(
        "given back before it is seen", SEE_FIRST + GIVE_BACK, GIVE_BACK + SEE_FIRST, UNSEEN
    ),
    Mutation(
        "one of two waits is not counted", f"[{EMPTY}], 2;\n", f"[{EMPTY}], 1;\n", PASSED
    ),
    Mutation("the wait for the last time", WAIT_EMPTY, wait(EMPTY, 1, "E0"), ("0x80",)),
    Mutation("signalled twice at once", arrive(FULL) + WAIT_EMPTY, arrive(FULL) * 2 + WAIT_EMPTY,
             UNSEEN),
)  # fmt: skip


def errors(found: list[str]) -> list[str]:
    """Return what makes a kernel wrong; warnings do not."""
    return [text for text in found if severity_of(text.partition(":")[0]) is Severity.ERROR]


def edit(mutation: Mutation) -> str:
    """Return the ring with a mistake; where one wait is not counted, one warp gives back."""
    text = mutation.edit(RING)
    if mutation.name == "one of two waits is not counted":
        text = text.replace(GIVE_BACK, ONE_GIVES_BACK)
    return text


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_ring_that_is_right(mode: Mode) -> None:
    assert found_by(RING, mode, threads=96) == []


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("mutation", MISTAKES, ids=by_name)
def test_mistakes_in_a_ring(mutation: Mutation, mode: Mode) -> None:
    assert_found(errors(found_by(edit(mutation), mode, threads=96)), mutation.found)


PAIR = f"""
mov.u32 %r1, %tid.x;
mov.u32 %r4, %cluster_ctarank;
setp.eq.u32 %p1, %r1, 0;
setp.eq.u32 %p4, %r4, 0;
mapa.shared::cluster.u32 {EMPTY}, 2056, %r4;
mapa.shared::cluster.u32 %r7, 2056, 0;
@%p1 mbarrier.init.shared::cta.b64 [{EMPTY}], 2;
@%p1 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed.aligned;
barrier.cluster.wait.acquire.aligned;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
EARLY
@!%p4 bra $OTHER;
{wait(EMPTY, 0, "FIRST")}
$OTHER:
LATE
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
@!%p4 bra $END;
{wait(EMPTY, 1, "SECOND")}
$END:
{MEET}"""
"""Both CTAs arrive at CTA 0's barrier, which waits for that, and once more."""


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_an_arrival_before_the_wait_that_the_phase_needs(mode: Mode) -> None:
    """CTA 1 may be early by an arrival; phase 1 needs that of CTA 0, which has waited."""
    right = PAIR.replace("EARLY", "").replace("LATE", MEET)
    early = PAIR.replace("EARLY", MEET).replace("LATE", "")

    assert found_by(right, mode, cluster=2) == []
    found = found_by(early, mode, cluster=2)
    assert {text.partition(":")[0] for text in found} == {"early arrival"}
    assert severity_of("early arrival") is Severity.WARNING


# --- the end of a barrier ------------------------------------------------------------------------

INVAL = f"@%p2 mbarrier.inval.shared::cta.b64 [{FULL}];\n"
POLL = f"mbarrier.test_wait.parity.shared::cta.b64 %p9, [{FULL}], 0;\n"
LIFE = f"""{HEAD}
@%p2 mbarrier.init.shared::cta.b64 [{FULL}], 1;
bar.sync 0;
@%p3 bra $OTHERS;
{arrive(FULL)}
$OTHERS:
{SEE_FIRST}
bar.sync 1;
{INVAL}
bar.sync 2;
@%p2 mbarrier.init.shared::cta.b64 [{FULL}], 1;
bar.sync 3;
@%p3 bra $AGAIN;
{arrive(FULL)}
$AGAIN:
{wait(FULL, 0, "L1")}
bar.sync 4;
{INVAL}
"""
"""A barrier that both warps wait for, and another one in its place."""

NOT_THERE = "no mbarrier was initialised at 0x800 since the last one ended"
ENDS = (
    Mutation("it ends while another warp waits", "bar.sync 1;\n", "", ("mbarrier", "end")),
    Mutation("it is made again while another warp waits",
             f"bar.sync 1;\n{INVAL}\nbar.sync 2;\n", "",
             ("mbarrier", "ends, and nothing orders that")),
    Mutation("it is used before it is made again", "bar.sync 3;\n", "", ("mbarrier", "init")),
    Mutation("the last wait may come after its end", "bar.sync 4;\n", "", ("mbarrier", "end")),
    Mutation("polled after its end", "bar.sync 2;\n", f"bar.sync 2;\n{POLL}bar.sync 5;\n",
             ("fault: ", NOT_THERE)),
    Mutation("a poll beside its end", "bar.sync 1;\n", f"bar.sync 1;\n{POLL}", ("mbarrier", "end")),
    Mutation("ended twice", "bar.sync 4;\n", f"bar.sync 4;\n{INVAL}", ("fault: ", NOT_THERE)),
)  # fmt: skip


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_life_that_is_right(mode: Mode) -> None:
    assert found_by(LIFE, mode, threads=64) == []
    polled = LIFE.replace("bar.sync 1;\n", f"{POLL}bar.sync 1;\n")
    assert found_by(polled, mode, threads=64) == []


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("mutation", ENDS, ids=by_name)
def test_mistakes_at_the_end(mutation: Mutation, mode: Mode) -> None:
    assert_found(errors(found_by(mutation.edit(LIFE), mode, threads=64)), mutation.found)


# --- states, and what flows without memory -------------------------------------------------------

STATES = f"""{HEAD}
@%p2 mbarrier.init.shared::cta.b64 [{FULL}], 64;
bar.sync 0;
mbarrier.arrive.shared::cta.b64 %rd1, [{FULL}];
$S0:
mbarrier.try_wait.shared::cta.b64 %p9, [{FULL}], %rd1;
@!%p9 bra $S0;
mbarrier.arrive.shared::cta.b64 %rd2, [{FULL}];
$S1:
mbarrier.try_wait.shared::cta.b64 %p9, [{FULL}], %rd2;
@!%p9 bra $S1;
mbarrier.arrive.shared::cta.b64 %rd3, [{FULL}];
$S2:
mbarrier.try_wait.shared::cta.b64 %p9, [{FULL}], %rd3;
@!%p9 bra $S2;
"""
FIRST_WAIT = STATES[STATES.index("$S0:") : STATES.index("mbarrier.arrive.shared::cta.b64 %rd2")]
WITH_STATES = (
    Mutation("no wait in between", FIRST_WAIT, "", ("mbarrier 0x800",)),
    Mutation("the state of two phases ago", f"[{FULL}], %rd3;\n", f"[{FULL}], %rd1;\n",
             ("phase: ", "warp", "phases have passed by")),
    Mutation("the state of the phase before the last", f"[{FULL}], %rd2;\n@!%p9 bra $S1;\n",
             f"[{FULL}], %rd1;\n@!%p9 bra $S1;\n", ("phase: ", "mbarrier 0x800")),
)  # fmt: skip


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_states_that_are_right(mode: Mode) -> None:
    assert found_by(STATES, mode, threads=64) == []


@pytest.mark.parametrize("mode", EVERY_MODE)
@pytest.mark.parametrize("mutation", WITH_STATES, ids=by_name)
def test_mistakes_with_states(mutation: Mutation, mode: Mode) -> None:
    assert_found(errors(found_by(mutation.edit(STATES), mode, threads=64)), mutation.found)


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_relaxed_arrivals_are_in_order_though_memory_is_not(mode: Mode) -> None:
    relaxed = RING.replace("mbarrier.arrive.", "mbarrier.arrive.relaxed.cta.").replace(
        "mbarrier.try_wait.parity.", "mbarrier.try_wait.parity.relaxed.cta."
    )
    assert found_by(relaxed, mode, threads=96) == []


SKIPPED = f"""{HEAD}
@%p2 mbarrier.init.shared::cta.b64 [{FULL}], 1;
bar.sync 0;
@%p3 bra $OTHERS;
{arrive(FULL)}{SEE_FIRST}{arrive(FULL)}
$OTHERS:
bar.sync 1;
{SEE_SECOND}
"""


@pytest.mark.parametrize("mode", EVERY_MODE)
def test_not_every_warp_needs_to_see_a_phase(mode: Mode) -> None:
    """Warp 1 waits for the second phase only, of which a barrier of the CTA tells it."""
    assert found_by(SKIPPED, mode, threads=64) == []
    unknown = SKIPPED.replace("bar.sync 1;\n", "")
    assert_found(found_by(unknown, mode, threads=64), ("mbarrier 0x800",))
