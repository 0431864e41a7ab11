# SPDX-License-Identifier: Apache-2.0
"""
`dispatch` and `combine_ranks` on 2, 4 and 8 emulated devices that replay at their own pace: right
as they are, and wrong without any one of their scopes, waits, rounds and places.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import DispatchConfig, Tiling
from jitgen.ops.dispatch import rounds
from tests import needs
from tests.compile.ranks import WRONG, Kernels, Layer

pytestmark = [needs.compiler, needs.linker]

LATE = "late"


@pytest.mark.parametrize(
    ("counts", "modes"),
    [
        ((3, 3), "quick"),
        ((0, 2), "quick"),  # a rank without tokens sends rows of none
        ((3, 1, 0, 2), "eager,late-links"),
        ((2, 1, 0, 2, 1, 1, 2, 0), "eager"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_it_is_right(counts: tuple[int, ...], modes: str) -> None:
    assert Layer(counts).found(modes) == []


@pytest.mark.nightly
@pytest.mark.parametrize("counts", [(3, 1), (3, 1, 0, 2), (2, 1, 0, 2, 1, 1, 2, 0)], ids=str)
def test_it_is_right_in_all_modes(counts: tuple[int, ...]) -> None:
    assert Layer(counts).found("all") == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "tiling", [Tiling(threads=512), Tiling(threads=128), Tiling(use_pdl=False)], ids=str
)
def test_other_tilings_are_right(tiling: Tiling) -> None:
    kernels = Kernels(DispatchConfig(tiling=tiling), CombineRanksConfig(tiling=tiling))

    assert Layer((4, 3), kernels, hidden=320).found("quick") == []


def test_ctas_that_take_several_vectors() -> None:
    assert Layer((4, 4), hidden=320).found("eager,reversed") == []


@pytest.mark.parametrize(
    ("mode", "step"),
    [("lost-device-1", "dispatch"), ("lost-device-1-from-3", "combine_ranks")],
)
def test_a_wait_comes_to_its_limit(mode: str, step: str) -> None:
    """Nothing hangs: the state says who did not send what in which round."""
    layer = Layer((2, 2), limit_ms=1)
    layer.found(mode)

    assert rounds.late(layer.states[0]) == rounds.Late(step, 1, 1)


@dataclass(frozen=True)
class Mistake:
    """
    A mistake in the source of one kernel or both.

    Attributes:
        name: What it is.
        old, new: The text, and what stands there instead.
        found: What must be found: the beginning of a finding, and a part of it.
        modes: That find it.
        counts: Tokens of the devices.
        ops: The kernels, one after the other.
    """

    name: str
    old: str
    new: str
    found: tuple[str, str] = ("race", "inbox")
    modes: str = "eager"
    counts: tuple[int, ...] = (2, 1)
    ops: tuple[str, ...] = ("dispatch", "combine_ranks")

    def __str__(self) -> str:
        return self.name


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

MISTAKES = [
    # PTX ISA, "Morally strong operations", "Data races"
    Mistake("sent at .gpu", "st.relaxed.sys", "st.relaxed.gpu"),
    Mistake("sent at .cta", "st.relaxed.sys", "st.relaxed.cta"),
    Mistake("polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu"),
    Mistake("weak stores", "st.relaxed.sys.global", "st.global"),
    Mistake("weak polls", "ld.relaxed.sys.global", "ld.global"),
    # "Vector Data-types": elements are accessed each for itself, in any order
    Mistake("a vector of words and rounds", _SENT, _FOUR, _WRONG, "slow-links,late-links"),
    Mistake("the first element's round alone", _TAGGED, "Int32(elements[0] >> 32) == number",
            _WRONG, "slow-links"),
    Mistake("the second element's round alone", _TAGGED, "Int32(elements[1] >> 32) == number",
            _WRONG, "late-links"),
    # waits and rounds
    Mistake("no wait", "    return over\n", "    return True\n", _WRONG, "eager,slow-links"),
    Mistake("any round will do", "== number) & (", "!= 0) | (", _WRONG),
    Mistake("older rounds will do", "== number", "<= number", _WRONG, "eager,slow-links"),
    Mistake("no round is counted", "number = state[COMBINED] + 1", "number = Int32(1)", _WRONG,
            ops=("dispatch",)),
    Mistake("dispatch is not counted", "state[DISPATCHED] = number", "pass", _WRONG,
            ops=("dispatch",)),
    Mistake("combine is not counted", "state[COMBINED] = number", "pass", _WRONG,
            ops=("combine_ranks",)),
    Mistake("a number that its own kernel writes", "number = state[COMBINED] + 1",
            "number = state[DISPATCHED] + 1", ("race", "state"), counts=(4, 4),
            ops=("dispatch",)),
    Mistake("combine counts for itself", "number = state[DISPATCHED]",
            "number = state[COMBINED] + 1", ("race", "state"), counts=(40, 40),
            ops=("combine_ranks",)),
    # places
    Mistake("one place for all sources", "(Int64(source) * places + place)", "Int64(place)",
            _WRONG, counts=(2, 1, 2)),
    Mistake("beyond the inbox", "VECTOR_BYTES = 16", "VECTOR_BYTES = 32", ("fault", "inbox")),
    Mistake("all is sent to the next rank", "peers[(rank + distance) % ranks]",
            "peers[(rank + 1) % ranks]", _HANGS, counts=(1, 1, 1), ops=("dispatch",)),
    Mistake("all sums are sent to the next rank", "peers[peer]", "peers[(rank + 1) % ranks]",
            _HANGS, counts=(1, 1, 1), ops=("combine_ranks",)),
    Mistake("a word with its sign", "tag | Int64(words[0])", "tag | Int64(Int32(words[0]))",
            _HANGS, ops=("dispatch",)),
    # the kernel before
    Mistake("no wait for the kernel before", "    cute.arch.griddepcontrol_wait()", "    pass",
            ("race", "")),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("mistake", "op"), [(one, op) for one in MISTAKES for op in one.ops], ids=str
)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    kernels = Kernels(edits={op: (mistake.old, mistake.new)})
    found = Layer(mistake.counts, kernels, limit_ms=1).found(mistake.modes)
    kind, part = mistake.found

    assert any(text.startswith(kind) and part in text for text in found), found


def test_one_inbox_for_tokens_and_sums() -> None:
    found = Layer((2, 1), banks=1).found("quick")

    assert any(text.startswith((WRONG, "result")) for text in found), found
