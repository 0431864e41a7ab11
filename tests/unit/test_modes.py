# SPDX-License-Identifier: Apache-2.0
"""Rules of choosing beside measurements and the model, and what the least latency asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.config import Arch, Layout
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError, SettingError
from jitgen.runtime.session import select
from jitgen.selection.choice import bucket
from jitgen.selection.measurements import Source
from jitgen.settings import settings
from jitgen.targets.legality import rules


def problem(rows: int, **more: Any) -> GroupedGemmProblem:
    return GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=8 * rows, n=4096, k=7168, **more)


class TestPasses:
    @pytest.mark.parametrize(
        ("rows", "height"), [(1, 64), (64, 64), (65, 128), (128, 128), (200, 256), (4000, 256)]
    )
    def test_the_smallest_tile_with_the_fewest_passes(self, rows: int, height: int) -> None:
        """Of a bucket's edge of rows, whatever the model predicts."""
        choice = select(problem(rows), Arch.SM_90A, mode="passes")

        assert choice.config.tile.m == height
        assert choice.source is Source.PASSES
        assert "passes over" in choice.why

    def test_candidates_are_those_of_the_model(self) -> None:
        by_rule, by_model = (
            select(problem(512), Arch.SM_90A, mode=mode) for mode in ("passes", "dynamic")
        )

        assert {x.config for x in by_rule.candidates} == {x.config for x in by_model.candidates}

    def test_it_holds_for_a_process_too(self) -> None:
        with settings.scope(select="passes"):
            assert select(problem(4000), Arch.SM_90A).source is Source.PASSES
            assert select(problem(4000), Arch.SM_90A, mode="dynamic").source is not Source.PASSES
        assert select(problem(4000), Arch.SM_90A).source is not Source.PASSES

    def test_other_operations_have_no_tiles_to_choose_among(self) -> None:
        other = ActivationQuantizeProblem(layout=Layout.RAGGED, groups=8, m=64, n=512)
        with settings.scope(select="passes"):
            assert select(other, Arch.SM_90A).source is Source.MODEL


def test_a_target_without_a_table_has_no_static_choice() -> None:
    with pytest.raises(ConfigError, match=r"sm_90a has no table .* allowed: dynamic, passes"):
        select(problem(8), Arch.SM_90A, mode="static")


def test_modes_are_checked() -> None:
    with pytest.raises(ConfigError, match="mode must be one of dynamic, static, passes"):
        select(problem(8), Arch.CPU, mode="waste")
    with pytest.raises(SettingError, match="dynamic or static or passes"):
        settings.select = "waste"
    with pytest.raises(SettingError, match="must be 0 or 1"):
        settings.min_latency = "soon"


class TestMinLatency:
    @pytest.mark.parametrize("arch", Arch)
    def test_few_rows_are_chosen_for_as_one(self, arch: Arch) -> None:
        """By the least predicted time, unless the target has a kernel for it."""
        choices = {id(select(problem(rows, min_latency=True), arch)) for rows in range(1, 9)}
        choice = select(problem(1, min_latency=True), arch)
        one = problem(1, min_latency=True)
        device = rules(arch, "grouped_gemm")

        assert len(choices) == 1
        assert bucket(problem(7, min_latency=True), arch) == one
        assert {x.config for x in choice.candidates} == set(device.candidates(one))
        assert choice.candidates[0].cost == min(x.cost for x in choice.candidates)

    @pytest.mark.parametrize("arch", Arch)
    def test_more_rows_are_chosen_for_as_ever(self, arch: Arch) -> None:
        for rows in (9, 64, 4000):
            assert select(problem(rows, min_latency=True), arch) is select(problem(rows), arch)

    def test_a_process_may_ask_and_a_problem_may_decline(self) -> None:
        asked = select(problem(3, min_latency=True), Arch.CPU)
        plain = select(problem(3), Arch.CPU)
        with settings.scope(min_latency="1"):
            assert select(problem(3), Arch.CPU) is asked
            assert select(problem(3, min_latency=False), Arch.CPU) is plain

    def test_problems_read_as_they_were_written(self) -> None:
        """Those that do not ask are spelled as ever: measurements of them hold."""
        asked = problem(3, min_latency=True)

        assert GroupedGemmProblem.from_json(asked.to_json()) == asked
        assert asked.slug == f"{problem(3).slug}_minlatency"
        assert "min_latency" not in problem(3).to_json()

    def test_a_plan_may_ask(self, tmp_path: Path) -> None:
        """All buckets of few rows are one then, and those of more are as ever."""
        text = (
            '[[problems]]\nlayout = "ragged"\ngroups = 8\nmatrix = { n = 512, k = 256 }\n'
            "rows_per_group = { min = 1, max = 100 }\n"
        )
        path = tmp_path / "mine.toml"
        path.write_text(text + "min_latency = true\n")
        asked = list(plans.load(path).problems(Arch.CPU))
        path.write_text(text)
        plain = list(plans.load(path).problems(Arch.CPU))

        assert [each.min_latency for each in asked] == [True, *[None] * (len(asked) - 1)]
        assert asked[0].rows_per_group == 1
        assert asked[1:] == [each for each in plain if each.rows_per_group > 8]
        with settings.scope(min_latency="1"):
            assert list(plans.load(path).problems(Arch.CPU)) == asked
