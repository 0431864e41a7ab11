# SPDX-License-Identifier: Apache-2.0
"""Measurements decide before the model does: here, shipped, model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jitgen import templates
from jitgen.cache import Store
from jitgen.config import Layout
from jitgen.config.grouped_gemm import Epilogue, GroupedGemmConfig, GroupedGemmProblem
from jitgen.errors import UnsupportedConfig
from jitgen.runtime.session import select
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket
from jitgen.targets.legality import rules
from tests.unit.tuned_fakes import (
    BY_MODEL,
    GPU,
    NAMES,
    PROBLEM,
    forget,
    record,
    ship,
)

BIASED = replace(PROBLEM, bias=True)
H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"

pytestmark = pytest.mark.usefixtures("tables")


class TestOrder:
    """Here, shipped, model."""

    def test_nothing_is_known(self, cache_root: Path) -> None:
        choice = select(PROBLEM, GPU)

        assert choice.source == "model"
        assert choice is select(PROBLEM, GPU, use_measured=False)
        assert not cache_root.exists()

    def test_what_was_measured_here_wins(self, tables: Path) -> None:
        ship(tables, record(1))
        tuned.record(Store.open(), GPU, record(2))
        choice = select(PROBLEM, GPU)

        assert choice.source == "tuned"
        assert choice.config.name(GPU) == NAMES[2]
        assert choice.candidates[0].config == choice.config
        assert [c.config for c in choice.candidates[1:3]] == [
            BY_MODEL.candidates[1].config,
            BY_MODEL.candidates[3].config,
        ]
        assert choice.times_us[choice.config] == 100.0
        assert (
            "took 100.0 us on NVIDIA H200 on 2026-11-21, 2.0 % ahead of the model's" in choice.why
        )

    def test_then_what_is_shipped(self, tables: Path) -> None:
        ship(tables, record(1, apart=10.0))
        choice = select(PROBLEM, GPU)

        assert (choice.source, choice.config.name(GPU)) == ("shipped", NAMES[1])
        assert "shipped" in choice.why

    @pytest.mark.parametrize(("apart", "winner"), [(4.0, 0), (6.0, 1)])
    def test_what_is_shipped_puts_the_model_right_by_a_margin(
        self, tables: Path, apart: float, winner: int
    ) -> None:
        """Other rows undo what is less, which would count if it had been measured here."""
        ship(tables, record(1, apart=apart))
        choice = select(PROBLEM, GPU)

        assert (choice.source, choice.config.name(GPU)) == ("shipped", NAMES[winner])
        assert ("4.0 % behind the fastest" in choice.why) is (winner == 0)

        tuned.record(Store.open(), GPU, record(1, apart=apart))
        assert select(PROBLEM, GPU).config.name(GPU) == NAMES[1]

    @pytest.mark.parametrize(
        ("apart", "time", "winner"),
        [(2.9, "15:33", 0), (3.1, "15:33", 1), (1.4, "17:58", 0), (1.6, "17:58", 1)],
    )
    def test_a_record_of_more_kinds_of_rows_needs_a_smaller_lead(
        self, tables: Path, apart: float, time: str, winner: int
    ) -> None:
        """A kernel that is far behind with even rows or with a large group does not win in it."""
        ship(tables, record(1, apart=apart, date=f"2026-11-29T{time}:00+00:00"))

        assert select(PROBLEM, GPU).config.name(GPU) == NAMES[winner]

    @pytest.mark.parametrize(
        ("us", "source", "winner"), [(104.0, "model", 0), (106.0, "shipped", 2)]
    )
    def test_what_was_not_timed_stands_if_the_model_is_right_about_the_next(
        self, tables: Path, us: float, source: str, winner: int
    ) -> None:
        """A candidate may be younger than a table, which says nothing of it."""
        ship(tables, record(2, times_us=dict.fromkeys(NAMES[2:], 100.0) | {NAMES[1]: us}))
        choice = select(PROBLEM, GPU)

        assert (choice.source, choice.config.name(GPU)) == (source, NAMES[winner])

    @pytest.mark.parametrize(
        ("groups", "rows", "us", "is_taller"),
        [
            (64, 32, 102.0, True),
            (64, 32, 102.1, False),
            (32, 32, 102.0, False),
            (1, 32, 102.0, False),
            (32, 8, 102.0, False),
        ],
    )
    def test_a_taller_tile_that_is_about_as_fast_is_shipped_for_uneven_rows(
        self, tables: Path, groups: int, rows: int, us: float, is_taller: bool
    ) -> None:
        """One of 64 rows reads weights again where groups have more."""
        problem = bucket(replace(PROBLEM, groups=groups, m=groups * rows), GPU)
        by_model = select(problem, GPU, use_measured=False).candidates
        names = [each.config.name(GPU) for each in by_model]
        low, taller = (next(each for each in names if tile in each) for tile in ("_t64x", "_t192x"))
        times = dict.fromkeys(names, 150.0) | {low: 100.0, taller: us}
        found = record(problem=problem, winner=low, times_us=times)
        ship(tables, found)
        choice = select(problem, GPU)

        assert choice.config.name(GPU) == (taller if is_taller else low)
        is_behind = names[0] == low and is_taller
        assert ("2.0 % behind the model's choice" in choice.why) == is_behind

        tuned.record(Store.open(), GPU, found)
        assert select(problem, GPU).config.name(GPU) == low

    def test_a_bucket_has_one_answer(self) -> None:
        tuned.record(Store.open(), GPU, record(2))
        near = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=4095, n=4096, k=7168)
        other = GroupedGemmProblem(layout=Layout.RAGGED, groups=9, m=9 * 512, n=4096, k=7168)

        assert select(near, GPU) is select(PROBLEM, GPU)
        assert select(other, GPU).source == "model"

    def test_the_model_can_be_asked_alone(self) -> None:
        tuned.record(Store.open(), GPU, record(2))

        assert select(PROBLEM, GPU, use_measured=False).source == "model"
        assert select(PROBLEM, GPU, num_sms=66).source == "model"

    def test_agreement_with_the_model_is_said(self) -> None:
        tuned.record(Store.open(), GPU, record(0))

        assert select(PROBLEM, GPU).why.endswith("and is the model's choice too")

    def test_recording_counts_at_once(self) -> None:
        store = Store.open()
        for winner in (2, 1):
            tuned.record(store, GPU, record(winner))
            assert select(PROBLEM, GPU).config.name(GPU) == NAMES[winner]

    def test_plans_ask_for_what_was_measured(self) -> None:
        """
        So that prewarming compiles it. And for what is chosen without: it used to be left out, and
        a process with the same kernels below an empty root of its own missed it.
        """
        from jitgen.plans import Plan, Sweep, configs

        sweep = Sweep(problem=PROBLEM, min_rows=512, max_rows=512)
        plan = Plan(name="", description="", sweeps=(sweep,))
        before = configs(plan, GPU, devices=[H200])
        tuned.record(Store.open(), GPU, record(2))
        names = {config.name(GPU) for config in configs(plan, GPU, devices=[H200])}

        assert before == (BY_MODEL.config,)
        assert names == {NAMES[2], BY_MODEL.config.name(GPU)}

    def test_what_was_measured_counts_for_its_device(self) -> None:
        """And for no other, wherever it lies."""
        tuned.record(Store.open(), GPU, record(2), H100)

        assert select(PROBLEM, GPU, device=H100).config.name(GPU) == NAMES[2]
        assert select(PROBLEM, GPU, device=H200) == BY_MODEL


class TestWithABias:
    """What was measured without one stands in, where nothing was measured with one."""

    def test_times_without_one_decide(self, tables: Path) -> None:
        ship(tables, record(2, apart=10.0))
        choice = select(BIASED, GPU)

        assert choice.source == "shipped"
        assert choice.config == _biased(NAMES[2])
        assert choice.times_us[choice.config] == 100.0
        assert "took 100.0 us without the bias on NVIDIA H200" in choice.why

    def test_times_with_one_come_first(self, tables: Path) -> None:
        ship(tables, record(1))
        name = _biased(NAMES[2]).name(GPU)
        measured = record(problem=BIASED, winner=name, times_us={name: 90.0})
        tuned.record(Store.open(), GPU, measured)
        choice = select(BIASED, GPU)

        assert (choice.source, choice.config.name(GPU)) == ("tuned", name)
        assert "without the bias" not in choice.why

    def test_each_is_excluded_by_itself(self, tables: Path) -> None:
        ship(tables, record(2, excluded={NAMES[0]: "it was wrong"}))
        tuned.exclude(Store.open(), GPU, _biased(NAMES[2]).name(GPU), "it hung")
        choice = select(BIASED, GPU)

        assert choice.excluded == {_biased(NAMES[2]): "it hung"}
        assert choice.config != _biased(NAMES[2])
        assert select(PROBLEM, GPU).config.name(GPU) == NAMES[2]


def _biased(name: str) -> GroupedGemmConfig:
    return replace(GroupedGemmConfig.parse(name)[0], epilogue=Epilogue(bias=True))


class TestExclusions:
    """What failed once is not chosen again."""

    def test_the_next_best_is_chosen(self) -> None:
        tuned.exclude(Store.open(), GPU, NAMES[0], "it hung")
        choice = select(PROBLEM, GPU)

        assert choice.config == BY_MODEL.candidates[1].config
        assert choice.source == "model"
        assert choice.excluded == {BY_MODEL.config: "it hung"}
        assert BY_MODEL.config not in [candidate.config for candidate in choice.candidates]
        assert choice.why.endswith("is excluded: it hung")

    def test_in_every_bucket(self) -> None:
        tuned.exclude(Store.open(), GPU, NAMES[0], "it hung")
        for m in range(8, 80000, 999):
            problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=m, n=4096, k=7168)
            assert select(problem, GPU).config != BY_MODEL.config

    def test_a_record_may_not_choose_it(self, tables: Path) -> None:
        store = Store.open()
        ship(tables, record(0))
        tuned.record(store, GPU, record(2))
        tuned.exclude(store, GPU, NAMES[2], "wrong")

        choice = select(PROBLEM, GPU)
        assert choice.source == "tuned"
        assert choice.config.name(GPU) == NAMES[1]
        assert "took 101.0 us" in choice.why
        assert choice.times_us.keys() == {c.config for c in choice.candidates}

    def test_none_of_a_record_is_left(self, tables: Path) -> None:
        store = Store.open()
        ship(tables, record(1))
        tuned.record(store, GPU, record(2, times_us={NAMES[2]: 3.0, NAMES[0]: 4.0}))
        for name in (NAMES[2], NAMES[0]):
            tuned.exclude(store, GPU, name, "wrong")
        choice = select(PROBLEM, GPU)

        assert choice.source == "shipped"
        assert choice.config.name(GPU) == NAMES[1]

    def test_of_one_bucket(self) -> None:
        found = record(2, excluded={NAMES[0]: "wrong"}, times_us={NAMES[2]: 3.0})
        tuned.record(Store.open(), GPU, found)

        assert list(select(PROBLEM, GPU).excluded) == [BY_MODEL.config]

    def test_what_works_here_is_not_excluded_by_what_failed_elsewhere(self, tables: Path) -> None:
        ship(tables, record(1, excluded={NAMES[0]: "hung"}, times_us={NAMES[1]: 3.0}))
        assert list(select(PROBLEM, GPU).excluded) == [BY_MODEL.config]
        tuned.record(Store.open(), GPU, record(0))

        assert select(PROBLEM, GPU).config == BY_MODEL.config
        assert not select(PROBLEM, GPU).excluded

    def test_readmitted(self) -> None:
        store = Store.open()
        tuned.exclude(store, GPU, NAMES[0], "it hung")
        tuned.readmit(store, GPU, NAMES[0])

        assert select(PROBLEM, GPU) == BY_MODEL

    def test_nothing_is_left(self) -> None:
        store = Store.open()
        for name in NAMES:
            tuned.exclude(store, GPU, name, "it hung")

        with pytest.raises(UnsupportedConfig, match=r"it hung; .*jitgen tune --again"):
            select(PROBLEM, GPU)


class TestGenerations:
    """One rule for what was measured here and for what is shipped."""

    def test_of_other_kernels(self, monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
        """What changes speed raises a number; then neither counts any more."""
        kernels = type(rules(GPU, "grouped_gemm"))
        tuned.record(Store.open(), GPU, record(2))
        ship(tables, record(1), conditions={"kernels": '{"grouped_gemm":1}'})
        assert select(PROBLEM, GPU).source == "tuned"
        monkeypatch.setattr(kernels, "generation", 2)
        forget()

        assert select(PROBLEM, GPU).source == "model"

    def test_comments_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another digest of the templates is another key, but no other speed."""
        tuned.record(Store.open(), GPU, record(2))
        monkeypatch.setattr(templates, "digest", lambda _: "another")
        forget()

        assert select(PROBLEM, GPU).source == "tuned"
