# SPDX-License-Identifier: Apache-2.0
"""Modes, reports, and problems that put a kernel to the test."""

from __future__ import annotations

import json

import pytest
import torch

from jitgen import reference
from jitgen.config import Arch, Layout
from jitgen.emulator.modes import ALL, DEFERRED, EAGER, QUICK, WORK, Mode, parse, random_mode
from jitgen.emulator.problem import Sizes, make
from jitgen.emulator.report import Finding, Report, Run
from jitgen.errors import ConfigError, InputError
from jitgen.ops.grouped_gemm.config import KernelConfig

NAME = "grouped_gemm_{}_e4m3_e4m3_{}_bf16_t64x64x128_c1x2_acc1_sm_90a"
CONFIG = KernelConfig.parse(NAME.format("ragged", "block128"))[0]
SIZES = Sizes(rows=(5, 0, 130), n=72, k=272, num_sms=4)


def config(layout: str, scales: str) -> KernelConfig:
    return KernelConfig.parse(NAME.format(layout, scales))[0]


# --- modes ----------------------------------------------------------------------------------------


def test_names_stand_for_modes() -> None:
    assert parse("quick") == QUICK == (EAGER, DEFERRED)
    assert parse("all") == ALL
    assert parse("deferred, eager,deferred") == (DEFERRED, EAGER)
    assert parse(["quick", random_mode(4)]) == (*QUICK, random_mode(4))
    assert parse(EAGER) == (EAGER,)


def test_a_mode_is_known_by_its_name() -> None:
    assert all(parse(mode.name) == (mode,) for mode in ALL)
    assert parse("random-77")[0].seed == 77
    assert [mode.seed for mode in parse("random-3..5,eager")] == [3, 4, 5, None]


def test_random_modes_differ_in_what_they_defer() -> None:
    modes = [random_mode(seed) for seed in range(6)]

    assert {mode.deferred for mode in modes} == {WORK, WORK - {"load"}, frozenset()}
    assert {mode.clusters for mode in modes} == {1, 2}
    assert all(mode.by_warp for mode in modes)


@pytest.mark.parametrize("name", ["slow", "", "random-", "random--1", "quick;all", "random-5..3"])
def test_names_that_are_not_known(name: str) -> None:
    with pytest.raises(InputError, match="modes"):
        parse(name)


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


# --- problems -------------------------------------------------------------------------------------


def test_sizes_wrap_the_rings() -> None:
    sizes = Sizes.of(CONFIG, Arch.SM_90A)

    assert sizes.k > 10 * 128
    assert sizes.n > 2 * 64 * 2
    assert min(sizes.rows) == 0
    assert sizes.num_sms == 4


def test_sizes_of_a_text() -> None:
    sizes = Sizes.parse("3:1000:256:512", CONFIG)

    assert (sum(sizes.rows), len(sizes.rows), sizes.n, sizes.k) == (1000, 3, 256, 512)
    assert len(set(sizes.rows)) == 3


@pytest.mark.parametrize(
    "text", ["1:2:3", "0:1:2:3", "1:1:0:3", "a:b:c:d", "1:2:3:4:5", "-1:2:3:4"]
)
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="G:M:N:K"):
        Sizes.parse(text, CONFIG)


@pytest.mark.parametrize("scales", ["block128", "row", "tensor"])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("is_exact", [True, False])
def test_the_right_answer_is_right(layout: str, scales: str, is_exact: bool) -> None:
    problem = make(config(layout, scales), SIZES, is_exact=is_exact)
    a, b, a_scale, b_scale, groups, out = problem.arguments
    name = {"ragged": "offs", "contiguous": "m_indices", "masked": "masked_m"}[layout]

    assert problem.wrong() == int(problem.is_owned.sum())
    reference.grouped_gemm(a, b, a_scale, b_scale, **{name: groups}, out=out)
    assert problem.wrong() == 0
    frobenius, largest = problem.errors()
    assert frobenius < 2.0**-8
    assert largest < 2.0**-8


def test_one_wrong_bit_is_wrong() -> None:
    problem = make(CONFIG, SIZES, is_exact=True)
    problem.out.copy_(torch.where(problem.is_owned, problem.expected, float("nan")))
    assert problem.wrong() == 0

    problem.out.view(torch.int16)[3, 7] ^= 1
    assert problem.wrong() == 1


def test_a_row_that_nobody_owns_must_not_be_written() -> None:
    problem = make(CONFIG, SIZES, is_exact=True)
    problem.out.copy_(torch.where(problem.is_owned, problem.expected, float("nan")))

    problem.out[-1, 0] = 0
    assert problem.wrong() == 1
