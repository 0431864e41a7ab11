# SPDX-License-Identifier: Apache-2.0
"""Modes and reports."""

from __future__ import annotations

import json

import pytest

from jitgen.emulator.modes import (
    ALL,
    DEFERRED,
    EAGER,
    LATE_LINKS,
    QUICK,
    REVERSED,
    SLOW_LINKS,
    WORK,
    Mode,
    late_device,
    modes_of_devices,
    parse_modes,
    random_mode,
)
from jitgen.emulator.report import Finding, Report, Run
from jitgen.errors import InputError

# --- modes ----------------------------------------------------------------------------------------


def test_names_stand_for_modes() -> None:
    assert parse_modes("quick") == QUICK == (EAGER, DEFERRED, random_mode(3))
    assert parse_modes("all") == ALL
    assert parse_modes("deferred, eager,deferred") == (DEFERRED, EAGER)
    assert parse_modes(["quick", random_mode(4)]) == (*QUICK, random_mode(4))
    assert parse_modes(EAGER) == (EAGER,)


def test_a_mode_is_known_by_its_name() -> None:
    assert all(parse_modes(mode.name) == (mode,) for mode in ALL)
    assert parse_modes("random-77")[0].seed == 77
    assert [mode.seed for mode in parse_modes("random-3..5,eager")] == [3, 4, 5, None]


def test_modes_of_several_devices() -> None:
    links, reversed_ = [SLOW_LINKS, LATE_LINKS], [REVERSED]
    assert modes_of_devices("quick", 2) == (*QUICK, *links, *reversed_)
    every = modes_of_devices("all", 3)
    assert every == (*ALL, *links, *reversed_, *(late_device(number) for number in range(3)))
    assert modes_of_devices("eager,late-device-1", 2) == (EAGER, late_device(1))
    assert parse_modes([mode.name for mode in every]) == every
    lost = parse_modes("lost-device-2,lost-device-2-from-5,late-device-2,eager")
    assert [mode.late_device for mode in lost] == [2, 2, 2, -1]
    assert [mode.lost_from for mode in lost] == [0, 5, -1, -1]
    assert [mode.is_lost for mode in lost] == [True, True, False, False]


def test_random_modes_differ_in_what_they_defer() -> None:
    modes = [random_mode(seed) for seed in range(6)]

    assert {mode.deferred for mode in modes} == {WORK, WORK - {"load"}, frozenset()}
    assert {mode.clusters for mode in modes} == {1, 2}
    assert all(mode.by_warp for mode in modes)


@pytest.mark.parametrize(
    "name",
    [
        "slow",
        "",
        "random-",
        "random--1",
        "quick;all",
        "random-5..3",
        "random-0..10000",
        "lost-device-1-from-",
    ],
)
def test_names_that_are_not_known(name: str) -> None:
    with pytest.raises(InputError, match="modes"):
        parse_modes(name)


def test_only_work_can_be_deferred() -> None:
    assert Mode(name="x", deferred=frozenset({"load"})).defers("load")
    with pytest.raises(InputError, match="'loads' cannot be deferred"):
        Mode(name="x", deferred=frozenset({"loads"}))


# --- reports --------------------------------------------------------------------------------------


def test_a_report_tells_all_it_knows() -> None:
    race = Finding(kind="race", message="two stores", place="ptx:7", who="CTA 0", count=3)
    report = Report(
        name="kernel",
        arch="sm_90a",
        runs=(
            Run(mode="eager", seconds=0.5, counts={"bulk_loads": 1234}),
            Run(mode="random-1", seconds=0.25, findings=(race,)),
        ),
    )

    assert not report.is_clean
    assert list(report.findings) == [("random-1", race)]
    assert json.loads(json.dumps(report.to_json()))["runs"][1]["findings"][0]["count"] == 3
    text = str(report)
    for words in ("NOT CLEAN", "1,234 bulk loads", "race: two stores (3 times)", "at ptx:7"):
        assert words in text
