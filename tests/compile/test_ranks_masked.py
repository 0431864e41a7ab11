# SPDX-License-Identifier: Apache-2.0
"""
`dispatch` and `combine_ranks` that mask ranks which are late, on 2, 4 and 8 emulated devices: no
device waits for ever, none has a result that is wrong without a word, and none masks another one
that only waits, itself, for a third.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jitgen.ops.dispatch import rounds
from tests import needs
from tests.compile.mistakes import (
    MASKING,
    MASKING_MISTAKES,
    Mistake,
    cases_of,
    cases_on_more,
    chain,
    one_ends_late,
    one_is_late,
    one_waits,
    two_are_late,
)
from tests.compile.ranks import Kernels, Layer

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

Scenario = Callable[[int], dict[str, Any]]

MODES = (
    *("eager", "slow-links", "late-device-1", "random-1", "deferred", "late-links", "reversed"),
    *("random-0", "random-2", "random-3", "late-device-0", "late-device-2"),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("counts", "modes"),
    [((3, 1, 0, 2), "eager"), ((3, 2), "quick"), ((2, 1, 0, 2, 1, 1, 2, 0), "eager")],
    ids=str,
)
def test_it_is_right_where_none_is_late(counts: tuple[int, ...], modes: str) -> None:
    assert Layer(counts, MASKING, expected=[{}] * len(counts)).found(modes) == []


@pytest.mark.sampled(16)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", [one_is_late, one_waits])
def test_one_comes_late_and_writes_while_others_go_on(scenario: Scenario, mode: str) -> None:
    """
    What it writes is of no use to any. It reads that it was masked, and has its own share. One that
    waits for it longer than the others, which masked it before, is not masked.
    """
    assert Layer(**scenario(3)).found(mode) == []


@pytest.mark.sampled(10)
@pytest.mark.parametrize("mode", ["eager", pytest.param("slow-links", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("devices", [4, pytest.param(8, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("scenario", [one_is_late, one_ends_late, one_waits, two_are_late, chain])
def test_so_it_is_on_more_devices(scenario: Scenario, devices: int, mode: str) -> None:
    assert Layer(**scenario(devices)).found(mode) == []


@pytest.mark.parametrize("scenario", [one_is_late, one_waits, chain])
@pytest.mark.parametrize("begin", [2**30, -(2**31)])
def test_late_ranks_are_masked_after_many_rounds(scenario: Any, begin: int) -> None:
    """Twice the number of a round, which signs of life carry, has overflowed then."""
    given = scenario(4)
    stalls = {
        device: [each._replace(number=begin + each.number) for each in late]
        for device, late in given["stalls"].items()
    }
    layer = Layer(**{**given, "stalls": stalls})
    for state in layer.states:
        state[rounds.DISPATCHED] = state[rounds.COMBINED] = begin

    assert layer.found("eager") == []


@pytest.mark.parametrize("mode", ["lost-device-1", "lost-device-1-from-2", "lost-device-1-from-4"])
def test_one_that_is_lost_is_masked(mode: str) -> None:
    """It begins a launch when the others have ended."""
    layer = Layer((2, 2, 1), MASKING, limit_ms=1)

    assert layer.found(mode) == []
    assert [{*each} for each in layer.masked()] == [{1}, {0, 2}, {1}]


@pytest.mark.parametrize(
    ("op", "sends", "number"),
    [
        ("dispatch", "    elif not is_masked(wait, (rank + distance) % ranks):\n", "item"),
        ("combine_ranks", "    if not is_masked(wait, peer):\n", "vector"),
    ],
)
def test_one_that_sends_some_vectors_is_masked(op: str, sends: str, number: str) -> None:
    """Of a token of the round a column may have its share, and another not; of later ones none."""
    some = sends.partition("not is_masked")[0] + f"{number} % 2 == 0:\n"
    kernels = Kernels(MASKING.dispatch, MASKING.combine_ranks, {op: (sends, some)}, edited=1)
    layer = Layer((2, 2, 1), kernels, limit_ms=1)

    assert layer.found("eager", time_limit_s=60) == []
    assert {*layer.masked()[0]} == {1}


@pytest.mark.sampled(28)
@pytest.mark.parametrize(("mistake", "op"), cases_of(MASKING_MISTAKES), ids=str)
def test_a_mistake_is_found(mistake: Mistake, op: str) -> None:
    found = mistake.found_in(op)

    assert mistake.is_in(found), found


@pytest.mark.nightly
@pytest.mark.parametrize(("mistake", "op", "devices"), cases_on_more(MASKING_MISTAKES), ids=str)
def test_a_mistake_is_found_on_more_devices(mistake: Mistake, op: str, devices: int) -> None:
    found = mistake.found_in(op, devices)

    assert mistake.is_in(found), found
