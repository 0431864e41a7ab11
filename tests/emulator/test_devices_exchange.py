# SPDX-License-Identifier: Apache-2.0
"""
Dispatch and combine of expert parallel on 2, 4 and 8 devices: right as they are, and found without
any one of their fences, flags, waits and banks.
"""

from __future__ import annotations

import pytest

from jitgen.errors import MachineFault
from tests.emulator.exchange import (
    END,
    FLAGS,
    GRID,
    LL,
    LL_READ,
    PUSH,
    ROUNDS,
    Exchange,
    layer,
)
from tests.emulator.mutation import WRONG, Mutation, assert_found, by_name, text_of

RANKS = [2, *(pytest.param(ranks, marks=pytest.mark.nightly) for ranks in (4, 8))]
PROTOCOLS = [pytest.param(PUSH, id="push"), pytest.param(LL, id="LL")]


def found_in(exchange: Exchange, modes: str) -> list[str]:
    """Run a layer and return what is found."""
    try:
        report = exchange.host.run(modes, replays=ROUNDS)
    except MachineFault as fault:
        return [text_of(fault)]
    found = [str(finding) for _, finding in report.findings]
    differs = any(text.startswith("result:") for text in found)
    return [*found, WRONG] if differs or not exchange.is_right else found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("ranks", "modes"), [(2, "quick"), (2, "late-device-1"), (4, "eager,late-links"), (8, "eager")]
)
def test_it_is_right(ranks: int, modes: str, protocol: tuple[str, str]) -> None:
    assert found_in(layer(ranks, *protocol), modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_it_is_right_in_all_modes(ranks: int, protocol: tuple[str, str]) -> None:
    assert found_in(layer(ranks, *protocol), "all") == []


WAIT = FLAGS[FLAGS.index("mov.u64 %rd20") : FLAGS.rindex("$FLAGGED")]
FLAG = "st.release.sys.global.b32 [%rd15], %r6;\n"
POLL = "ld.acquire.sys.global.b32 %r16, [%rd16];\n"
RACE = ("race", "not ordered after the", "device")
INBOX = ("race", "inbox", "not ordered after the")

PUSH_MISTAKES = [
    # scopes and orders of the flag; PTX ISA, "Morally strong operations", "Release and Acquire"
    Mutation("flag released at .gpu", "st.release.sys", "st.release.gpu", INBOX),
    Mutation("flag released at .cta", "st.release.sys", "st.release.cta", INBOX),
    Mutation("flag acquired at .gpu", "ld.acquire.sys", "ld.acquire.gpu", INBOX),
    Mutation("flag acquired at .cta", "ld.acquire.sys", "ld.acquire.cta", INBOX),
    Mutation("flag without release", "st.release.sys", "st.relaxed.sys", INBOX),
    Mutation("flag without acquire", "ld.acquire.sys", "ld.relaxed.sys", INBOX),
    Mutation("volatile flag", "st.release.sys.global", "st.volatile.global", INBOX),
    Mutation("volatile poll", "ld.acquire.sys.global", "ld.volatile.global", INBOX),
    Mutation("weak flag", "st.release.sys.global", "st.global", ("race", "flags")),
    Mutation("weak poll", "ld.acquire.sys.global", "ld.global", ("race", "flags")),
    Mutation(
        "fence of the device", FLAG, f"fence.acq_rel.gpu;\n{FLAG.replace('release', 'relaxed')}",
        INBOX,
    ),
    Mutation("membar.gl", FLAG, f"membar.gl;\n{FLAG.replace('release', 'relaxed')}", INBOX),
    Mutation(
        "fence behind the flag", FLAG, f"{FLAG.replace('release', 'relaxed')}fence.sc.sys;\n", INBOX
    ),
    Mutation(
        "fence of the device behind the poll", WAIT,
        f"{WAIT.replace('acquire', 'relaxed')}fence.acq_rel.gpu;\n", INBOX,
    ),
    # what a CTA agrees on; "bar, barrier"
    Mutation("no barrier before the flag", f"bar.sync 0;\n{FLAGS[13:40]}", FLAGS[13:40], INBOX),
    Mutation(
        "no barrier behind the wait", "$FLAGGED:\nbar.sync 0;\n", "$FLAGGED:\n",
        ("race", "inbox 1", "ld.global.b32 %r23"),
    ),
    # waits and flags
    Mutation("no wait", WAIT, "", INBOX),
    Mutation("no flag", FLAG, "", (WRONG,)),
    Mutation("flag to the own device", "ld.global.b64 %rd15, [%rd14];",
             "add.u64 %rd14, %rd3, %rd8;\nld.global.b64 %rd15, [%rd14];", (WRONG,)),
    Mutation("wait for the own flag", f"mad.lo.u32 %r15, %r3, {GRID}, %r4;",
             f"mad.lo.u32 %r15, %r1, {GRID}, %r4;", INBOX),
    Mutation("wait for the flag of CTA 0", f"mad.lo.u32 %r15, %r3, {GRID}, %r4;",
             f"mul.lo.u32 %r15, %r3, {GRID};", INBOX),
    Mutation("one flag for all CTAs", f"{GRID}, %r4;\nmad.wide.u32 %rd1",
             f"{GRID}, 0;\nmad.wide.u32 %rd1", INBOX),
    Mutation("wait for half of the ranks", "setp.ge.u32 %p4, %r3, %r2;",
             "shr.u32 %r39, %r2, 1;\nsetp.ge.u32 %p4, %r3, %r39;", RACE),
    Mutation("any round will do", "setp.ne.u32 %p5, %r16, %r6;", "setp.eq.u32 %p5, %r16, 0;",
             INBOX),
    # rounds
    Mutation("the round is that of the host", "ld.global.b32 %r6, [%rd4];", "mov.u32 %r6, 0;",
             INBOX),
    Mutation("the round is not counted", "@%p1 st.global.b32 [%rd4], %r6;", "", INBOX),
    # places
    Mutation("a place for all sources", "mad.lo.u32 %r13, %r1, 160, %r11;", "mov.u32 %r13, %r11;",
             INBOX),
    Mutation("beyond the window", "mad.wide.u32 %rd13, %r13, 4, %rd11;",
             "mad.wide.u32 %rd13, %r13, 16, %rd11;", ("fault", "out of bounds", "inbox")),
    Mutation("read as if it were constant", "ld.global.b32 %r23", "ld.global.nc.b32 %r23",
             ("race", "non-coherent read", "inbox 1")),
]  # fmt: skip


@pytest.mark.parametrize("mistake", PUSH_MISTAKES, ids=by_name)
@pytest.mark.parametrize("ranks", RANKS)
def test_mistakes_of_push(mistake: Mutation, ranks: int) -> None:
    edited = [mistake.edit(text) if mistake.old in text else text for text in PUSH]
    assert edited != list(PUSH)
    assert_found(found_in(layer(ranks, *edited), "eager"), mistake.found)


RELAXED, RELAXED_POLL = FLAG.replace("release", "relaxed"), WAIT.replace("acquire", "relaxed")
RIGHT = {
    "a fence before the flag": (FLAG, f"fence.acq_rel.sys;\n{RELAXED}"),
    "membar.sys and a volatile flag": (
        FLAG,
        f"membar.sys;\n{FLAG.replace('release.sys', 'volatile')}",
    ),
    "a fence behind the poll": (WAIT, f"{RELAXED_POLL}fence.acq_rel.sys;\n"),
    "a counter for a flag": (FLAG, "red.release.sys.global.add.u32 [%rd15], 1;\n"),
    "an exchange for a flag": (FLAG, "atom.exch.release.sys.global.b32 %r38, [%rd15], %r6;\n"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_other_flags_that_are_right(name: str) -> None:
    dispatch, combine = (text.replace(*RIGHT[name]) for text in PUSH)
    assert RIGHT[name][1] in dispatch
    assert found_in(layer(2, dispatch, combine), "quick") == []


TAKE = LL_READ[LL_READ.index("mov.u64 %rd20") :]
"""The wait for a word and its round."""

HALVES = "st.relaxed.sys.global.v2.b32 [%rd13], {%r12, %r6};"
BOTH = "st.relaxed.sys.global.b64 [%rd13], %rd22;"
LL_MISTAKES = [
    # "Vector Data-types": the elements of a vector are accessed each for itself, in any order
    Mutation("a vector of word and round", BOTH, HALVES, (WRONG,), is_late=True),
    Mutation("the round before the word", BOTH,
             "st.relaxed.sys.global.b32 [%rd13+4], %r6;\nst.relaxed.sys.global.b32 [%rd13], %r12;",
             (WRONG,), is_late=True),
    Mutation("the round behind the word, unordered", BOTH,
             "st.relaxed.sys.global.b32 [%rd13], %r12;\nst.relaxed.sys.global.b32 [%rd13+4], %r6;",
             (WRONG,), is_late=True),
    # "Morally strong operations", "Data races"
    Mutation("words stored at .gpu", "st.relaxed.sys", "st.relaxed.gpu", INBOX),
    Mutation("words polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu", INBOX),
    Mutation("words polled at .cta", "ld.relaxed.sys", "ld.relaxed.cta", INBOX),
    Mutation("weak words", "st.relaxed.sys.global", "st.global", INBOX),
    Mutation("weak polls", "ld.relaxed.sys.global", "ld.global", INBOX),
    # waits and rounds
    Mutation("no wait", "setp.ne.u32 %p5, %r24, %r6;", "setp.ne.u32 %p5, %r24, %r24;", (WRONG,)),
    Mutation("any round will do", "setp.ne.u32 %p5, %r24, %r6;", "setp.eq.u32 %p5, %r24, 0;",
             (WRONG,)),
    Mutation("the round is that of the host", "ld.global.b32 %r6, [%rd4];",
             "ld.global.b32 %r38, [%rd4];\nmov.u32 %r6, 0;", (WRONG,)),
    Mutation("the round is not counted", "@%p1 st.global.b32 [%rd4], %r6;", "", (WRONG,)),
    Mutation("a place for all sources", "mad.lo.u32 %r13, %r1, 160, %r11;", "mov.u32 %r13, %r11;",
             (WRONG,)),
    Mutation("the rounds of a CTA are counted before all have read them", END, END.replace(
        "bar.sync 0;", ""), ("race", "write of", "rounds", "the read by")),
]  # fmt: skip


@pytest.mark.parametrize("mistake", LL_MISTAKES, ids=by_name)
@pytest.mark.parametrize("ranks", RANKS)
def test_mistakes_of_ll(mistake: Mutation, ranks: int) -> None:
    edited = [mistake.edit(text) if mistake.old in text else text for text in LL]
    assert edited != list(LL)
    modes = "eager,slow-links,late-links" if mistake.is_late else "eager"
    assert_found(found_in(layer(ranks, *edited), modes), mistake.found)


def test_one_bank_of_ll_for_dispatch_and_combine() -> None:
    assert_found(found_in(layer(2, *LL, banks=1), "quick"), (WRONG,))


def test_one_bank_for_dispatch_and_combine() -> None:
    assert_found(found_in(layer(2, banks=1), "eager"), ("race", "write of", "inbox 0", "read by"))
