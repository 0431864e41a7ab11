# SPDX-License-Identifier: Apache-2.0
"""
A layer of expert parallel in small: dispatch to all ranks, work, and combine, in rounds.

Two protocols. *Push*: plain stores to each peer, then a flag for each source and CTA. *LL*: each 8
bytes carry 4 of data and the number of the round, without a flag or a fence. Rounds are counted on
the device, and waits have a limit. One bank of each window is enough: the dispatch of the next
round comes after the rank's combine, which waited for the peer's, which came after the peer's work
had read the dispatch; and the next combine in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.emulator.devices import Host, kernel

GRID, BLOCK = 2, 64
WORDS = 160
"""Words of a rank's tokens, so many that two CTAs have unequal shares."""

LIMIT = 2_000_000_000
"""Nanoseconds that a wait lasts."""

PARAMS = [
    ".u64 mine", ".u64 inboxes", ".u64 flags", ".u64 rounds", ".u64 out", ".u64 error",
    ".u32 rank", ".u32 ranks",
]  # fmt: skip

START = f"""
.reg .pred %p<12>;
.reg .b32 %r<40>;
.reg .b64 %rd<40>;
ld.param.b64 %rd1, [mine];
ld.param.b64 %rd2, [inboxes];
ld.param.b64 %rd3, [flags];
ld.param.b64 %rd4, [rounds];
ld.param.b64 %rd5, [out];
ld.param.b64 %rd6, [error];
ld.param.b32 %r1, [rank];
ld.param.b32 %r2, [ranks];
mov.u32 %r3, %tid.x;
mov.u32 %r4, %ctaid.x;
mad.lo.u32 %r5, %r4, {BLOCK}, %r3;
mul.wide.u32 %rd7, %r4, 4;
add.u64 %rd4, %rd4, %rd7;
ld.global.b32 %r6, [%rd4];
add.u32 %r6, %r6, 1;
mul.wide.u32 %rd8, %r1, 8;
add.u64 %rd9, %rd2, %rd8;
ld.global.b64 %rd10, [%rd9];
"""
"""
PTX that sets %r1: rank, %r2: ranks, %r3: thread, %r5: first word, %r6: round, %rd10: the own inbox.
"""

END = """
bar.sync 0;
setp.eq.u32 %p1, %r3, 0;
@%p1 st.global.b32 [%rd4], %r6;
"""


def to_each_rank(body: str) -> str:
    """Return a loop over ranks: %r10 is one, the own one last, and %rd11 its inbox."""
    return f"""
mov.u32 %r9, 1;
$RANK:
add.u32 %r10, %r1, %r9;
rem.u32 %r10, %r10, %r2;
mul.wide.u32 %rd12, %r10, 8;
add.u64 %rd12, %rd2, %rd12;
ld.global.b64 %rd11, [%rd12];
{body}
add.u32 %r9, %r9, 1;
setp.le.u32 %p2, %r9, %r2;
@%p2 bra $RANK;
"""


def each_word(name: str, body: str) -> str:
    """Return a loop over the thread's words: %r11 is one."""
    return f"""
mov.u32 %r11, %r5;
${name}:
setp.ge.u32 %p3, %r11, {WORDS};
@%p3 bra ${name}_END;
{body}
add.u32 %r11, %r11, {GRID * BLOCK};
bra ${name};
${name}_END:
"""


LOAD_ROW = """
mad.wide.u32 %rd13, %r11, 4, %rd1;
ld.global.b32 %r12, [%rd13];
add.u32 %r12, %r12, %r6;
"""
"""PTX that sets %r12: a word for all ranks, another one in each round."""

LOAD_PART = f"""
mad.lo.u32 %r13, %r10, {WORDS}, %r11;
mad.wide.u32 %rd13, %r13, 4, %rd1;
ld.global.b32 %r12, [%rd13];
"""
"""PTX that sets %r12: a word for rank %r10 alone."""


def started(name: str) -> str:
    """Return the start of a wait with a limit."""
    return f"mov.u64 %rd20, %globaltimer;\n${name}:\n"


def limited(name: str, again: str) -> str:
    """Return the end of a wait: if `again` holds, back to its start until the limit."""
    return f"""
@!{again} bra ${name}_DONE;
mov.u64 %rd21, %globaltimer;
sub.u64 %rd21, %rd21, %rd20;
setp.lt.u64 %p7, %rd21, {LIMIT};
@%p7 bra ${name};
st.global.b32 [%rd6], 1;
${name}_DONE:
"""


PUSH_STORE = f"""
mad.lo.u32 %r13, %r1, {WORDS}, %r11;
mad.wide.u32 %rd13, %r13, 4, %rd11;
st.global.b32 [%rd13], %r12;
"""

FLAGS = f"""
bar.sync 0;
setp.ge.u32 %p4, %r3, %r2;
@%p4 bra $FLAGGED;
mul.wide.u32 %rd14, %r3, 8;
add.u64 %rd14, %rd3, %rd14;
ld.global.b64 %rd15, [%rd14];
mad.lo.u32 %r14, %r1, {GRID}, %r4;
mad.wide.u32 %rd15, %r14, 4, %rd15;
st.release.sys.global.b32 [%rd15], %r6;
add.u64 %rd16, %rd3, %rd8;
ld.global.b64 %rd16, [%rd16];
mad.lo.u32 %r15, %r3, {GRID}, %r4;
mad.wide.u32 %rd16, %r15, 4, %rd16;
{started("FLAG")}
ld.acquire.sys.global.b32 %r16, [%rd16];
setp.ne.u32 %p5, %r16, %r6;
{limited("FLAG", "%p5")}
$FLAGGED:
bar.sync 0;
"""

SUM_START = "mov.u32 %r20, 0;\nmov.u32 %r21, 0;\n"
SUM_END = """
mad.wide.u32 %rd18, %r11, 4, %rd5;
st.global.b32 [%rd18], %r20;
"""


def over_ranks(body: str, name: str = "FROM") -> str:
    """Return a loop over ranks in their order: %r21 is one, %r22 the word of it."""
    return f"""
${name}:
mad.lo.u32 %r22, %r21, {WORDS}, %r11;
{body}
add.u32 %r21, %r21, 1;
setp.lt.u32 %p6, %r21, %r2;
@%p6 bra ${name};
"""


PUSH_READ = """
mad.wide.u32 %rd17, %r22, 4, %rd10;
ld.global.b32 %r23, [%rd17];
add.u32 %r20, %r20, %r23;
"""

PUSH_DISPATCH = START + to_each_rank(each_word("SEND", LOAD_ROW + PUSH_STORE)) + FLAGS + END
PUSH_COMBINE = (
    START
    + to_each_rank(each_word("SEND", LOAD_PART + PUSH_STORE))
    + FLAGS
    + each_word("SUM", SUM_START + over_ranks(PUSH_READ) + SUM_END)
    + END
)

LL_STORE = f"""
mad.lo.u32 %r13, %r1, {WORDS}, %r11;
mad.wide.u32 %rd13, %r13, 8, %rd11;
mov.b64 %rd22, {{%r12, %r6}};
st.relaxed.sys.global.b64 [%rd13], %rd22;
"""
LL_READ = f"""
mad.wide.u32 %rd17, %r22, 8, %rd10;
{started("LL")}
ld.relaxed.sys.global.b64 %rd23, [%rd17];
mov.b64 {{%r23, %r24}}, %rd23;
setp.ne.u32 %p5, %r24, %r6;
{limited("LL", "%p5")}
"""
LL_KEEP = """
mad.wide.u32 %rd18, %r22, 4, %rd5;
st.global.b32 [%rd18], %r23;
"""
LL_DISPATCH = (
    START
    + to_each_rank(each_word("SEND", LOAD_ROW + LL_STORE))
    + each_word("TAKE", "mov.u32 %r21, 0;\n" + over_ranks(LL_READ + LL_KEEP))
    + END
)
LL_COMBINE = (
    START
    + to_each_rank(each_word("SEND", LOAD_PART + LL_STORE))
    + each_word("SUM", SUM_START + over_ranks(LL_READ + "add.u32 %r20, %r20, %r23;\n") + SUM_END)
    + END
)

WORK = f"""
ld.param.b64 %rd1, [tokens];
ld.param.b64 %rd2, [parts];
ld.param.b32 %r1, [rank];
ld.param.b32 %r2, [number];
mov.u32 %r3, %tid.x;
mov.u32 %r4, %ctaid.x;
mad.lo.u32 %r3, %r4, {BLOCK}, %r3;
add.u32 %r1, %r1, 2;
$NEXT:
setp.ge.u32 %p1, %r3, %r2;
@%p1 bra $END;
mad.wide.u32 %rd3, %r3, 4, %rd1;
ld.global.b32 %r5, [%rd3];
mul.lo.u32 %r5, %r5, %r1;
mad.wide.u32 %rd4, %r3, 4, %rd2;
st.global.b32 [%rd4], %r5;
add.u32 %r3, %r3, {GRID * BLOCK};
bra $NEXT;
$END:
"""
"""PTX of the kernel that computes a rank's experts: a token times the rank + 2."""


@dataclass
class Exchange:
    """
    A layer on some devices.

    Attributes:
        host: The devices.
        outs, errors: For each device its results, and whether a wait came to its limit.
        wanted: The right results of the last round.
    """

    host: Host
    outs: list[torch.Tensor]
    errors: list[torch.Tensor]
    wanted: list[torch.Tensor]

    @property
    def is_right(self) -> bool:
        """Whether the results are right and no wait came to its limit."""
        pairs = zip(self.outs, self.wanted, strict=True)
        return all(torch.equal(*pair) for pair in pairs) and not any(map(bool, self.errors))


ROUNDS = 3

PUSH, LL = (PUSH_DISPATCH, PUSH_COMBINE), (LL_DISPATCH, LL_COMBINE)


def layer(
    ranks: int, dispatch: str = PUSH_DISPATCH, combine: str = PUSH_COMBINE, *, banks: int = 2
) -> Exchange:
    """
    Return a layer that has not run, for `ROUNDS` replays.

    Args:
        ranks: Number of devices.
        dispatch: The first kernel; that of LL puts what it takes where work reads it.
        combine: The last one.
        banks: Inboxes: one for each of the two, or one for both.
    """
    host, is_ll = Host(ranks), "LL" in dispatch
    width = 2 if is_ll else 1
    inboxes = [host.window(f"inbox {bank}", ranks * WORDS * width) for bank in range(banks)]
    flags = [host.window(f"flags {step}", ranks * GRID) for step in range(2)]
    outs, errors = [], []
    texts = [
        kernel(text, name, PARAMS) for name, text in (("dispatch", dispatch), ("combine", combine))
    ]
    work = kernel(WORK, "work", [".u64 tokens", ".u64 parts", ".u32 rank", ".u32 number"])
    tokens = [torch.arange(WORDS, dtype=torch.int32) + 1000 * rank for rank in range(ranks)]
    for rank in range(ranks):
        taken, parts = (torch.zeros(ranks * WORDS, dtype=torch.int32) for _ in range(2))
        out, error = torch.zeros(WORDS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        tables = [[x.table(on=rank) for x in some] for some in (inboxes, flags)]
        rounds = [torch.zeros(GRID, dtype=torch.int32) for _ in range(2)]
        common = {"error": error, "rank": rank, "ranks": ranks}

        def arguments(step: int, mine: torch.Tensor, to: torch.Tensor) -> dict[str, object]:
            inbox, flag = tables[0][step % banks], tables[1][step]  # noqa: B023
            return {
                "mine": mine, "inboxes": inbox, "flags": flag, "rounds": rounds[step],  # noqa: B023
                "out": to, **common,  # noqa: B023
            }  # fmt: skip

        read = taken if is_ll else inboxes[0].tensors[rank]
        host.call(rank, texts[0], arguments(0, tokens[rank], taken), grid=GRID, block=BLOCK)
        host.call(
            rank,
            work,
            {"tokens": read, "parts": parts, "rank": rank, "number": ranks * WORDS},
            grid=GRID,
            block=BLOCK,
        )
        host.call(rank, texts[1], arguments(1, parts, out), grid=GRID, block=BLOCK)
        outs.append(out)
        errors.append(error)
    factor = sum(rank + 2 for rank in range(ranks))
    return Exchange(host, outs, errors, [factor * (mine + ROUNDS) for mine in tokens])
