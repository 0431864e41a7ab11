# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in the protocol of ranks, each one edit of a generated kernel, and by what they are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig
from jitgen.config.format import Format
from tests.compile.ranks import ROUNDS, WRONG, Kernels, Layer, Stall, Whom

MASKING = Kernels(DispatchConfig(can_mask=True), CombineRanksConfig(can_mask=True))
"""Kernels that mask ranks which are late."""


def of_devices(counts: tuple[int, ...], devices: int) -> tuple[int, ...]:
    """Return tokens of so many devices: a token of each one more."""
    return counts + (1,) * (devices - len(counts))


def one_is_late(devices: int, number: int = 2) -> dict[str, Any]:
    """Device 1 comes to a round when the others have masked it."""
    told = Whom("combine_ranks", number, was_told=True)
    expected: list[dict[int, Whom]] = [{1: Whom("dispatch", number)} for _ in range(devices)]
    expected[1] = {each: told for each in range(devices) if each != 1}
    return {
        "counts": of_devices((2, 2, 1), devices),
        "kernels": MASKING,
        "limit_ms": 1,
        "stalls": {1: [Stall(number, 3)]},
        "expected": expected,
    }


def one_ends_late(devices: int) -> dict[str, Any]:
    """Device 1 comes to the last round when the others have ended it."""
    return one_is_late(devices, ROUNDS)


def one_waits(devices: int) -> dict[str, Any]:
    """
    Device 2 comes to the first round too late for all but device 1, which was late itself, and
    still later to the second: device 1 waits for it longer than others may wait for device 1.
    """
    expected: list[dict[int, Whom]] = [{2: Whom("dispatch", 1)} for _ in range(devices)]
    expected[1] = {2: Whom("dispatch", 2)}
    expected[2] = {
        each: Whom("combine_ranks", 1 + (each == 1), was_told=True)
        for each in range(devices)
        if each != 2
    }
    return {
        "counts": of_devices((2, 2, 1), devices),
        "kernels": MASKING,
        "limit_ms": 1,
        "stalls": {1: [Stall(1, 0.5)], 2: [Stall(1, 1.2), Stall(2, 5)]},
        "expected": expected,
    }


def two_are_late(devices: int) -> dict[str, Any]:
    """Devices 1 and 3 come late in different rounds."""
    here = {1: Whom("dispatch", 2), 3: Whom("dispatch", 1)}
    expected: list[dict[int, Whom]] = [here for _ in range(devices)]
    expected[1] = {
        each: Whom("combine_ranks", 2, was_told=True) for each in range(devices) if each not in here
    }
    expected[1] |= {3: Whom("dispatch", 1)}
    expected[3] = {
        each: Whom("combine_ranks", 1, was_told=True) for each in range(devices) if each != 3
    }
    return {
        "counts": of_devices((2, 1, 0, 2), devices),
        "kernels": MASKING,
        "limit_ms": 1,
        "stalls": {1: [Stall(2, 3)], 3: [Stall(1, 1.3)]},
        "expected": [dict(sorted(each.items())) for each in expected],
    }


def chain(devices: int) -> dict[str, Any]:
    """
    Device 2 waits for device 3, device 1 for device 2 and all others for device 1, longer than the
    limit: signs of life pass on from one to the next.
    """
    expected: list[dict[int, Whom]] = [
        {2: Whom("dispatch", 1), 3: Whom("dispatch", 1)} for _ in range(devices)
    ]
    told = {each: Whom("combine_ranks", 1, was_told=True) for each in range(devices)}
    expected[1] = {3: Whom("dispatch", 1)}
    expected[2] = {each: told[each] for each in told if each not in {1, 2, 3}}
    expected[2] |= {3: Whom("dispatch", 2)}
    expected[3] = {each: told[each] for each in told if each not in {2, 3}}
    expected[3] |= {2: Whom("combine_ranks", 2, was_told=True)}
    return {
        "counts": of_devices((1, 2, 1, 2), devices),
        "kernels": MASKING,
        "limit_ms": 1,
        "stalls": {
            1: [Stall(1, 0.5)],
            2: [Stall(1, 1.2), Stall(2, 0.7)],
            3: [Stall(1, 1.8), Stall(2, 6)],
        },
        "expected": expected,
    }


@dataclass(frozen=True)
class Mistake:
    """
    A mistake in the source of one kernel or both.

    Attributes:
        name: Description of the mistake.
        old, new: The text, and what stands there instead.
        found: What must be found: the beginning of a finding, and a part of it.
        modes: Modes of the emulator that find it.
        counts: Tokens of the devices.
        ops: Operations in whose kernel it is made, one after the other.
        scenario: Returns the arguments of `Layer` for a number of devices, some of which are late;
            None: none is late.
        hidden: Columns of a token.
        pauses: A device that takes tokens late; None: none does.
        of_experts: Whether rows of experts travel.
        form: Format in which tokens travel.
        by_flags: Whether flags say that data has come.
        sms: Numbers of SMs of the devices, in turn.
        sorts: Whether `dispatch` sorts the pairs.
        leaves: Whether it leaves rows in the inbox.
        replays: Number of rounds.
        most_devices: Most devices: on more it is no mistake, or the emulator takes minutes.
    """

    name: str
    old: str
    new: str
    found: tuple[str, str] = ("race", "inbox")
    modes: str = "eager"
    counts: tuple[int, ...] = (2, 1)
    ops: tuple[str, ...] = ("dispatch", "combine_ranks")
    scenario: Callable[[int], dict[str, Any]] | None = None
    hidden: int = 64
    pauses: int | None = None
    of_experts: bool = False
    form: str = "none"
    by_flags: bool = False
    sms: tuple[int, ...] = (2,)
    sorts: bool = False
    leaves: bool = False
    replays: int = ROUNDS
    most_devices: int = 8

    def __str__(self) -> str:
        return self.name

    def found_in(self, op: str, devices: int | None = None) -> list[str]:
        """
        Make the mistake in the kernel of `op`, and return what is found on `devices` devices, or if
        None on as few as show it.
        """
        edits = {op: (self.old, self.new)}
        if self.scenario is None:
            counts = of_devices(self.counts, devices or len(self.counts))
            kind = {"by_flags": self.by_flags, "sorts": self.sorts, "leaves": self.leaves}
            first = DispatchConfig(format=Format(self.form), **kind)
            second = CombineRanksConfig(of_experts=self.of_experts, by_flags=self.by_flags)
            kernels = Kernels(first, second, edits=edits, pauses=self.pauses, sms=self.sms)
            layer = Layer(counts, kernels, limit_ms=1, hidden=self.hidden, replays=self.replays)
            return layer.found(self.modes)
        given = self.scenario(max(devices or 0, 4 if self.scenario in {two_are_late, chain} else 3))
        first = DispatchConfig(format=Format(self.form), can_mask=True, sorts=self.sorts)
        kernels = Kernels(first, MASKING.combine_ranks, edits)
        layer = Layer(**{**given, "kernels": kernels, "hidden": self.hidden})
        return layer.found(self.modes, time_limit_s=20 if self.found[0] == "fault" else 120)

    def is_in(self, found: list[str]) -> bool:
        """Return whether `found` has the finding that the mistake must have."""
        kind, part = self.found
        return any(text.startswith(kind) and part in text for text in found)


def cases_of(mistakes: Iterable[Mistake]) -> list[tuple[Mistake, str]]:
    """Return each mistake with each of its kernels."""
    return [(mistake, op) for mistake in mistakes for op in mistake.ops]


def cases_on_more(mistakes: Iterable[Mistake]) -> list[tuple[Mistake, str, int]]:
    """Return each mistake with each of its kernels, on 4 and on 8 devices."""
    return [
        (mistake, op, devices)
        for mistake, op in cases_of(mistakes)
        for devices in (4, 8)
        if devices <= mistake.most_devices
    ]


LATE = "late"

_SENT = (
    '"st.relaxed.sys.global.v2.b64 [{$r0}], { {$r1}, {$r2} };",\n'
    "        read_only_args=[address, tag | Int64(words[0]), tag | Int64(words[1])],"
)
_FOUR = (
    '"st.relaxed.sys.global.v4.b32 [{$r0}], { {$r1}, {$r2}, {$r3}, {$r2} };",\n'
    "        read_only_args=[address, words[0], Uint32(number), words[1]],"
)
_TAGGED = "(Int32(elements[0] >> 32) == number) & (Int32(elements[1] >> 32) == number)"
_WRONG = (WRONG, "")
_HANGS = (WRONG, LATE)
_DISPATCH, _COMBINE = ("dispatch",), ("combine_ranks",)
_WAIT = (
    "    cute.arch.griddepcontrol_wait()"
    "  # before the first read of what an earlier kernel wrote\n"
    "    cute.arch.griddepcontrol_launch_dependents()  # they run up to their own wait\n"
    "    rank, ranks = state[RANK], cute.size(peers)\n"
)

_TAKES = """        elements = take(rows, inbox, state, wait, (rank, ranks), (token, column))
        if token < out.shape[0]:
"""
_TAKES_FOR_TOKENS = """        if token < out.shape[0]:
            elements = take(rows, inbox, state, wait, (rank, ranks), (token, column))
"""

_NO_ROW = "found.fill(-1)\n"
_BEHIND = "distance, token, column = behind(rows, (distance, token, column), step)\n"
_SENDS = f"""    while distance < ranks - 1:
        send(rows, inbox, peers, (rank, wait), (distance, token, column))
        {_BEHIND}"""

MISTAKES = [
    # PTX ISA, "Morally strong operations", "Data races"
    Mistake("sent at .gpu", "st.relaxed.sys", "st.relaxed.gpu"),
    Mistake("sent at .cta", "st.relaxed.sys", "st.relaxed.cta"),
    Mistake("polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu"),
    Mistake("polled at .cta", "ld.relaxed.sys", "ld.relaxed.cta"),
    Mistake("weak stores", "st.relaxed.sys.global", "st.global"),
    Mistake("weak polls", "ld.relaxed.sys.global", "ld.global", replays=1,
            most_devices=4),
    # "Vector Data-types": elements are accessed each for itself, in any order
    Mistake("a vector of words and rounds", _SENT, _FOUR, _WRONG, "slow-links,late-links"),
    Mistake("the first element's round alone", _TAGGED, "Int32(elements[0] >> 32) == number",
            _WRONG, "slow-links"),
    Mistake("the second element's round alone", _TAGGED, "Int32(elements[1] >> 32) == number",
            _WRONG, "late-links"),
    Mistake("one element's round is enough", "== number) & (", "== number) | (", _WRONG,
            "slow-links,late-links"),
    # waits and rounds
    Mistake("no wait", "    return over\n", "    return True\n", _WRONG, "eager,slow-links"),
    Mistake("any round will do", "== number) & (", "!= 0) | (", _WRONG,
            "eager,slow-links"),
    Mistake("older rounds will do", "== number", "<= number", _WRONG, "eager,slow-links"),
    Mistake("no round is counted", "number = state[COMBINED] + 1", "number = Int32(1)", _WRONG,
            ops=_DISPATCH),
    Mistake("dispatch is not counted", "state[DISPATCHED] = number", "pass", _WRONG,
            ops=_DISPATCH),
    Mistake("combine is not counted", "state[COMBINED] = number", "pass", _WRONG, ops=_COMBINE),
    Mistake("a number that its own kernel writes", "number = state[COMBINED] + 1",
            "number = state[DISPATCHED] + 1", ("race", "state"), counts=(4, 4), ops=_DISPATCH),
    Mistake("combine counts for itself", "number = state[DISPATCHED]",
            "number = state[COMBINED] + 1", ("race", "state"), counts=(40, 40), ops=_COMBINE),
    Mistake("each CTA counts tokens", "    if first == 0:", "    if thread == 0:",
            ("race", "state"), counts=(8, 8), ops=_DISPATCH),
    Mistake("each CTA counts sums", "    if first == 0:", "    if thread == 0:",
            ("race", "state"), counts=(40, 40), ops=_COMBINE),
    Mistake("each thread counts tokens", "    if first == 0:", "    if first >= 0:",
            ("race", "state"), ops=_DISPATCH),
    Mistake("each thread counts sums", "    if first == 0:", "    if first >= 0:",
            ("race", "state"), counts=(20, 20), ops=_COMBINE),
    Mistake("a round is skipped", "number = state[COMBINED] + 1", "number = state[COMBINED] + 2",
            _WRONG, ops=_DISPATCH),
    # places
    Mistake("one place for all sources", "(Int64(source) * places + place)", "Int64(place)",
            _WRONG, counts=(2, 1, 2)),
    Mistake("beyond the inbox", "VECTOR_BYTES = 16", "VECTOR_BYTES = 32", ("fault", "inbox")),
    Mistake("vectors that overlap", "VECTOR_BYTES = 16", "VECTOR_BYTES = 8", ("", "")),
    Mistake("all is sent to the next rank", "peers[(rank + distance) % ranks]",
            "peers[(rank + 1) % ranks]", _HANGS, counts=(1, 1, 1), ops=_DISPATCH),
    Mistake("all sums are sent to the next rank", "peers[peer]", "peers[(rank + 1) % ranks]",
            _HANGS, counts=(1, 1, 1), ops=_COMBINE),
    Mistake("tokens to one rank too few", "(first, every * ranks, step",
            "(first, every * (ranks - 1), step", _HANGS, ops=_DISPATCH),
    Mistake("sums to one rank too few", "while distance < ranks - 1", "while distance < ranks - 2",
            _HANGS, counts=(1, 1, 1), ops=_COMBINE),
    Mistake("tokens of one rank too few", "every + first, every * ranks",
            "every + first, every * (ranks - 1)", _WRONG, ops=_DISPATCH),
    Mistake("sent to the place of the reader", "inbox, mode=[1]), rank, vector)",
            "inbox, mode=[1]), (rank + 1) % ranks, vector)", _HANGS),
    Mistake("tokens stand where the next rank's should", "row = source * record.room",
            "row = (source + 1) % 2 * record.room", _WRONG, ops=_DISPATCH),
    Mistake("sums of another rank's tokens are sent", "peer * rows.room", "rank * rows.room",
            _WRONG, counts=(2, 1, 2), ops=_COMBINE),
    Mistake("the own sum is rank 0's", "(rows, rank * rows.room + token", "(rows, token", _WRONG,
            ops=_COMBINE),
    # data
    Mistake("a word with its sign", "tag | Int64(words[0])", "tag | Int64(Int32(words[0]))",
            _HANGS, ops=_DISPATCH),
    Mistake("one word twice", "tag | Int64(words[1])", "tag | Int64(words[0])", _WRONG),
    Mistake("words in another order", "tag | Int64(words[0]), tag | Int64(words[1])",
            "tag | Int64(words[1]), tag | Int64(words[0])", _WRONG),
    Mistake("rows without a token have expert 0", "is_row else Uint32(0xFFFFFFFF)",
            "is_row else Uint32(0)", _WRONG, ops=_DISPATCH),
    Mistake("rows without a token are not sent", "    words[1] = Uint32(0)\n",
            "    words[1] = Uint32(7)\n", _WRONG, ops=_DISPATCH),
    Mistake("weights as numbers", ".bitcast(Uint32)", ".to(Uint32)", _WRONG, ops=_DISPATCH),
    Mistake("a sum without the last rank", "if source < ranks:", "if source < ranks - 1:", _WRONG,
            counts=(6, 6),
            ops=_COMBINE),
    Mistake("a sum with the own rank's twice", "if source < ranks:", "if source <= ranks:", _WRONG,
            counts=(6, 6),
            ops=_COMBINE, most_devices=4),
    Mistake("the last rank's arrival alone", "                is_waiting = True\n",
            "                is_waiting = source == num_ranks - 1\n", _WRONG, "late-device-0",
            counts=(6, 6, 6), ops=_COMBINE),
    Mistake("a rank without tokens does not wait for sums", _TAKES, _TAKES_FOR_TOKENS, _HANGS,
            counts=(2, 0), ops=_COMBINE, pauses=0),
    # sums of rows of experts, and who sends and takes which
    Mistake("a place without a row is added", "if found[i] < rows.y.shape[0] else Int32(-1)",
            "if found[i] >= 0 else Int32(0)", ("fault", ""), ops=_COMBINE),
    Mistake("a row that y has not is added", "if found[i] < rows.y.shape[0] else",
            "if found[i] < 99999 else", ("fault", ""), ops=_COMBINE),
    Mistake("a place without a row is the first row", _NO_ROW, _NO_ROW.replace("-1", "0"),
            ("fault", ""), ops=_COMBINE),
    Mistake("places of the next token are added", "if first + i < rows.inverse.shape[1]",
            "if first + i <= rows.inverse.shape[1]", ("", ""), counts=(6, 6), ops=_COMBINE),
    Mistake("the last place is left out", "if first + i < rows.inverse.shape[1]",
            "if first + i < rows.inverse.shape[1] - 1", _WRONG, ops=_COMBINE),
    Mistake("places are added once more", "cutlass.range(0, rows.inverse.shape[1], LOADS",
            "cutlass.range(0, rows.inverse.shape[1], LOADS // 8", _WRONG, counts=(6, 6),
            ops=_COMBINE),
    Mistake("the first place's weight for all", "rows.weights[token, first + i]",
            "rows.weights[token, first]", _WRONG, counts=(6, 6), ops=_COMBINE),
    Mistake("the first place's row for all", "= rows.inverse[token, first + i]",
            "= rows.inverse[token, first]", _WRONG, counts=(6, 6), ops=_COMBINE),
    Mistake("weights of rank 0's tokens", "rows.weights[token, first + i]",
            "rows.weights[token % rows.room, first + i]", _WRONG, counts=(0, 3), ops=_COMBINE),
    Mistake("the first column's sums are sent", "peer * rows.room + token, column)",
            "peer * rows.room + token, 0)", _WRONG, ops=_COMBINE),
    Mistake("sums of the first token are sent", "peer * rows.room + token, column)",
            "peer * rows.room, column)", _WRONG, ops=_COMBINE),
    Mistake("the first column's sums are the own", "rank * rows.room + token, column)",
            "rank * rows.room + token, 0)", _WRONG, ops=_COMBINE),
    Mistake("sums are not sent", "        send(rows,", "        (lambda *_: None)(rows,", _HANGS,
            ops=_COMBINE),
    Mistake("the first vector of a thread is not taken", _TAKES, "        " + _BEHIND + _TAKES,
            ("", ""), counts=(20, 20), hidden=320, ops=_COMBINE),
    Mistake("items begin once more in each token", "column -= rows.y.shape[1]", "column = Int32(0)",
            ("", ""), counts=(20, 20), hidden=320, ops=_COMBINE),
    Mistake("a token too far", "row % rows.room, item", "row % rows.room + 1, item", ("", ""),
            ops=_COMBINE),
    Mistake("the next token is forgotten", "        token += 1\n", "", ("", ""), counts=(20, 20),
            hidden=320, ops=_COMBINE),
    Mistake("a rank too far", "        distance += 1\n", "        distance += 2\n", ("", ""),
            counts=(20, 20, 20), ops=_COMBINE),
    Mistake("all ranks have one token less", "token >= rows.room:", "token >= rows.room - 1:",
            ("", ""), counts=(20, 20), ops=_COMBINE),
    # limits
    Mistake("a weak note of late tokens", 'word, sem="relaxed", scope="gpu")', "word)",
            ("race", "state"), "lost-device-1", counts=(20, 20), ops=_DISPATCH),
    Mistake("a weak note of late sums", 'word, sem="relaxed", scope="gpu")', "word)",
            ("race", "state"), "lost-device-1-from-2", counts=(40, 40), ops=_COMBINE),
    Mistake("a weak note of their round", 'wait.number, sem="relaxed", scope="gpu")',
            "wait.number)", ("race", "state"), "lost-device-1", counts=(20, 20), ops=_DISPATCH),
    Mistake("a weak note of the round of sums", 'wait.number, sem="relaxed", scope="gpu")',
            "wait.number)", ("race", "state"), "lost-device-1-from-2", counts=(40, 40),
            ops=_COMBINE),
    Mistake("a failure is noted without its rank", "Int32(STEP) + source + 1", "Int32(STEP)",
            _WRONG, "lost-device-1", ops=_DISPATCH),
    # the kernel before
    Mistake("no wait for the kernel before", "    cute.arch.griddepcontrol_wait()", "    pass",
            ("race", "")),
    Mistake("the round is read before the wait", _WAIT + "    number = state[COMBINED] + 1\n",
            "    number = state[COMBINED] + 1\n" + _WAIT, ("race", ""), ops=_DISPATCH),
    Mistake("the round is read before the wait", _WAIT + "    number = state[DISPATCHED]\n",
            "    number = state[DISPATCHED]\n" + _WAIT, ("race", ""), ops=_COMBINE),
]  # fmt: skip

_NOTE = "now >= clock[1]"
_RELAXED = 'sem="relaxed", scope="gpu"'

MASKING_MISTAKES = [
    # notes
    Mistake("a note at .gpu", '"st.relaxed.sys.global.b64 [{$r0}], {$r1};",\n'
            "        read_only_args=[address + NOTE", '"st.relaxed.gpu.global.b64 [{$r0}], {$r1};",'
            "\n        read_only_args=[address + NOTE", ("race", "notes"), scenario=one_is_late,
            ops=_DISPATCH),
    Mistake("a weak note", '"st.relaxed.sys.global.b64 [{$r0}], {$r1};",\n'
            "        read_only_args=[address + NOTE", '"st.global.b64 [{$r0}], {$r1};",'
            "\n        read_only_args=[address + NOTE", ("race", "notes"), scenario=one_is_late,
            ops=_DISPATCH),
    Mistake("a sign at .gpu", "st.relaxed.sys.global.b64", "st.relaxed.gpu.global.b64",
            ("race", "notes"), scenario=one_waits),
    Mistake("a weak sign", "st.relaxed.sys.global.b64", "st.global.b64", ("race", "notes"),
            scenario=one_waits),
    Mistake("a masked rank is not told", "[address + NOTE_BYTES // 2, wait.step]",
            "[address + NOTE_BYTES // 2, Int64(0)]", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("a note where signs are", "address + NOTE_BYTES // 2", "address", _WRONG,
            scenario=one_is_late, ops=_DISPATCH),
    Mistake("a sign where notes are", "read_only_args=[address, wait.step <<",
            "read_only_args=[address + 8, wait.step <<", _WRONG, scenario=one_waits),
    Mistake("a note in the place of its reader", "notes[source] + rank * NOTE_BYTES",
            "notes[source] + source * NOTE_BYTES", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("a sign in the place of its reader", "notes[peer] + rank * NOTE_BYTES",
            "notes[peer] + peer * NOTE_BYTES", _WRONG, scenario=one_waits, ops=_DISPATCH),
    Mistake("what the reader itself noted is read", "notes[rank] + source * NOTE_BYTES",
            "notes[rank] + rank * NOTE_BYTES", _WRONG, scenario=one_is_late, ops=_COMBINE),
    # signs of life
    Mistake("signs are not heard", "clock[0], clock[2] = now + wait.limit, note[0]",
            "clock[2] = note[0]", _WRONG, scenario=one_waits, ops=_COMBINE),
    Mistake("no sign is given", "now >= clock[1]", "now < 0", _WRONG, scenario=one_waits,
            ops=_DISPATCH),
    Mistake("one sign alone", "clock[1] = now + wait.limit // 4", "clock[1] = Int64(1) << 62",
            _WRONG, scenario=chain, ops=_DISPATCH),
    Mistake("signs of a later step", "[address, wait.step << 32", "[address, (wait.step + 2) << 32",
            _WRONG, scenario=one_waits, ops=_DISPATCH),
    Mistake("signs come too seldom", "clock[1] = now + wait.limit // 4",
            "clock[1] = now + wait.limit * 4", _WRONG, scenario=chain, ops=_DISPATCH),
    Mistake("a sign is taken for a note", "is_told = note[1] != 0",
            "is_told = (note[0] | note[1]) != 0", _WRONG, scenario=one_waits, ops=_COMBINE),
    # limits
    Mistake("no limit", "over = is_told | (now >= clock[0])", "over = is_told", _WRONG,
            scenario=one_is_late, ops=_DISPATCH),
    Mistake("a limit that begins anew", "    is_told = note", "    clock[0] = now + wait.limit\n"
            "    is_told = note", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("a limit of nothing", "* 1_000_000", "* 0", _WRONG, scenario=one_is_late,
            ops=_DISPATCH),
    # whom a rank has masked
    Mistake("the mask is not kept", "    cute.arch.atomic_or(", "    (lambda *_, **__: None)(",
            _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("the mask is not read", "cute.arch.load(state.iterator + MASKED, Int32, " + _RELAXED
            + ")", "Int32(0)", _WRONG, scenario=one_is_late),
    Mistake("the mask is read weakly", "cute.arch.load(state.iterator + MASKED, Int32, " + _RELAXED
            + ")", "state[MASKED]", ("race", "state"), "reversed", scenario=one_is_late,
            ops=_DISPATCH, hidden=320),
    Mistake("the mask of one rank alone", "cute.arch.atomic_or(", "cute.arch.store(",
            _WRONG, scenario=two_are_late, ops=_DISPATCH),
    Mistake("the mask at .cta", "atomic_or(state.iterator + MASKED, Int32(1) << source, "
            + _RELAXED, "atomic_or(state.iterator + MASKED, Int32(1) << source, "
            + _RELAXED.replace("gpu", "cta"), ("race", "state"), scenario=one_is_late,
            ops=_DISPATCH, hidden=320),
    Mistake("a weak word of the round", "MASKED_AT + source, at, " + _RELAXED,
            "MASKED_AT + source, at", ("race", "state"), scenario=one_is_late, ops=_DISPATCH,
            hidden=320),
    Mistake("the next rank is masked", "Int32(1) << source, sem", "Int32(2) << source, sem", _WRONG,
            scenario=one_is_late, ops=_DISPATCH),
    Mistake("a thread forgets whom it masked", "    wait.masked[0] = wait.masked[0] |",
            "    _ = wait.masked[0] |", ("fault", ""), "lost-device-1-from-2",
            scenario=one_is_late, ops=_COMBINE),
    # what is masked
    Mistake("rows of a masked rank have expert 0", "Uint32(0) if is_row else Uint32(0xFFFFFFFF), ",
            "Uint32(0), ", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("rows of a masked rank stay", "    if not is_masked(wait, source):\n        words",
            "    if wait.number > 0:\n        words", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("one masked waits once more", "is_waiting = not is_masked(wait, source)",
            "is_waiting = wait.number > 0", _WRONG, scenario=one_is_late, ops=_DISPATCH),
    Mistake("sums of a masked rank are waited for",
            "(source != rank) & (not is_masked(wait, source))", "(source != rank)", ("fault", ""),
            scenario=one_is_late, ops=_COMBINE),
    Mistake("sums of a masked rank are added", "(source < ranks) & (not is_masked(wait, source))",
            "source < ranks", _WRONG, scenario=one_is_late, ops=_COMBINE),
    Mistake("sums are sent to a masked rank", "    if not is_masked(wait, peer):\n        send",
            "    if wait.number > 0:\n        send", _WRONG, scenario=one_ends_late, ops=_COMBINE),
]  # fmt: skip
"""
Mistakes in kernels that mask ranks. Left out are those that do no harm: tokens that are sent to a
masked rank, which has read its note before it takes them, and signs that are given to one.
"""

_HEADS = """        heads = take_heads(rows, inbox, state, wait, (rank, ranks), token)
        if token < out.shape[0]:
"""
_HEADS_OF_TOKENS = """        if token < out.shape[0]:
            heads = take_heads(rows, inbox, state, wait, (rank, ranks), token)
"""
_OF_EXPERTS: dict[str, Any] = {"ops": _COMBINE, "of_experts": True}

EXPERT_MISTAKES = [
    Mistake("sent at .gpu", "st.relaxed.sys", "st.relaxed.gpu", **_OF_EXPERTS),
    Mistake("polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu", **_OF_EXPERTS),
    Mistake("weak stores", "st.relaxed.sys.global", "st.global", **_OF_EXPERTS),
    Mistake("weak polls", "ld.relaxed.sys.global", "ld.global", replays=1, **_OF_EXPERTS),
    Mistake("a vector of words and rounds", _SENT, _FOUR, _WRONG, "slow-links,late-links",
            counts=(6, 6), **_OF_EXPERTS),
    Mistake("the second element's round alone", _TAGGED, "Int32(elements[1] >> 32) == number",
            _WRONG, "late-links", counts=(6, 6), **_OF_EXPERTS),
    Mistake("older rounds will do", "== number", "<= number", _WRONG, "eager,slow-links",
            **_OF_EXPERTS),
    Mistake("combine is not counted", "state[COMBINED] = number", "pass", _WRONG, **_OF_EXPERTS),
    # heads
    Mistake("no head is sent", "if column == 0:", "if column < 0:", _HANGS, **_OF_EXPERTS),
    Mistake("a head of the last place alone", "head = head | Uint32(1)", "head = Uint32(1)", _WRONG,
            counts=(6, 6), **_OF_EXPERTS),
    Mistake("own places but the last are forgotten", "own = own | Uint32(1)", "own = Uint32(1)",
            _WRONG, counts=(6, 6), **_OF_EXPERTS),
    Mistake("heads are not waited for", "                is_waiting = True\n"
            "                late = Int32(source)", "                late = Int32(source)", _WRONG,
            "slow-links", replays=1, **_OF_EXPERTS),
    Mistake("heads of tokens alone are waited for", _HEADS, _HEADS_OF_TOKENS, _HANGS, counts=(2, 0),
            pauses=0, **_OF_EXPERTS),
    Mistake("one head for all tokens", "places, rank, token), words", "places, rank, 0), words",
            _HANGS, **_OF_EXPERTS),
    # rows
    Mistake("rows are not waited for", "                is_waiting = True\n"
            "                late = sources[i]", "                late = sources[i]", _WRONG,
            "slow-links,late-links", counts=(6, 6), **_OF_EXPERTS),
    Mistake("rows lie over heads", "return rows.room + (token", "return (token", ("", ""),
            **_OF_EXPERTS),
    Mistake("one place for all rows of a token", "(token * top_k + place) * columns",
            "token * top_k * columns", ("", ""), counts=(6, 6), **_OF_EXPERTS),
    Mistake("one column for all", "* columns + column", "* columns", ("", ""), **_OF_EXPERTS),
    Mistake("a row is looked for at the own rank's place", "                    sources[i],\n",
            "                    rank,\n", _HANGS, **_OF_EXPERTS),
    Mistake("own rows of rank 0's tokens", "rows.inverse[rank * rows.room + token, first + i]",
            "rows.inverse[token, first + i]", ("", ""), counts=(6, 6), **_OF_EXPERTS),
    Mistake("rows of the next rank's tokens are sent", "peer * rows.room + token",
            "rank * rows.room + token", ("", ""), counts=(6, 6), **_OF_EXPERTS),
    Mistake("a row that is none is sent", "(row >= 0) & (row < rows.y.shape[0])", "row < 99999",
            ("", ""), **_OF_EXPERTS),
    Mistake("a place without a row is added", "        if sources[i] >= 0:\n            add(",
            "        if sources[i] >= -1:\n            add(", ("", ""), counts=(6, 6),
            most_devices=2, **_OF_EXPERTS),
    Mistake("rows are added once more", "place in cutlass.range(0, rows.inverse.shape[1], LOADS",
            "place in cutlass.range(0, rows.inverse.shape[1], LOADS // 4", _WRONG, counts=(6, 6),
            **_OF_EXPERTS),
]  # fmt: skip
"""Mistakes in `combine_ranks` of rows of experts, which has waits of its own."""
