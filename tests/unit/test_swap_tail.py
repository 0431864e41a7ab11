# SPDX-License-Identifier: Apache-2.0
"""The last rows of groups multiplied with swapped operands: who may ask, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jitgen.codegen.render import render
from jitgen.config import Arch, Config, Layout
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Schedule,
    Tile,
)
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import UnsupportedConfig
from jitgen.ops.grouped_gemm.cases import Sizes
from jitgen.runtime.session import select
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import check, require, rules
from jitgen.targets.sm_90a import cost
from jitgen.targets.sm_90a.devices import H200, fit_of
from jitgen.targets.sm_90a.tails import EXTRA_M, TAIL_M
from tests.refusals import WIDE

SWAPPED = Schedule(swap_tail=True)
EXTRA = Schedule(swap_tail=True, extra_rows=True)


def config(m: int = 192, n: int = 128, **fields: Any) -> GroupedGemmConfig:
    found: dict[str, Any] = {"layout": "ragged", "schedule": SWAPPED, **fields}
    return GroupedGemmConfig(tile=Tile(m=m, n=n, k=128), **found)


class TestTheField:
    def test_a_name_says_it(self) -> None:
        name = config().name("sm_90a")

        assert "_swaptail_" in name
        assert "swapped tail" in config().short
        assert Config.parse(name) == (config(), Arch.SM_90A)
        assert Config.from_json(config().to_json()) == config()

    def test_other_kernels_know_nothing_of_it(self) -> None:
        """Their names and JSON are what they were, and so is their text."""
        usual = config(schedule=Schedule())

        assert "swap" not in usual.name("sm_90a")
        assert "swap" not in canonical_json(usual.to_json())
        assert "TAIL" not in render(usual, Arch.SM_90A).text


class TestLegality:
    @pytest.mark.parametrize("out_dtype", ["bf16", "f16"])
    @pytest.mark.parametrize("cluster", [Cluster(), Cluster(n=2), Cluster(m=2)])
    @pytest.mark.parametrize(
        ("layout", "m"),
        [("ragged", 128), ("ragged", 192), ("masked", 128), ("masked", 192), ("contiguous", 128)],
    )
    def test_legal(self, layout: str, m: int, cluster: Cluster, out_dtype: str) -> None:
        """Nothing else follows from it: no memory, no stage, no register."""
        found = config(m, layout=layout, cluster=cluster, operands=Operands(out_dtype=out_dtype))
        usual = replace(found, schedule=Schedule())

        derived = require(found, "sm_90a").derived
        assert derived.tail_m == TAIL_M
        assert replace(derived, tail_m=0) == require(usual, "sm_90a").derived

    def test_weights_may_be_loaded_early(self) -> None:
        assert check(config(128, schedule=replace(SWAPPED, early_b=True)), "sm_90a")

    @pytest.mark.parametrize(
        ("refused", "reason"),
        [
            (config(64), "allowed: 128x128, 192x128"),
            (config(256), "allowed: 128x128, 192x128"),
            (config(128, 64), "allowed: 128x128, 192x128"),
            (config(128, 192), "allowed: 128x128, 192x128"),
            (config(operands=Operands(scale_granularity="row")), "e4m3 operands and row scales"),
            (config(operands=Operands(out_dtype="f32")), "allowed: bf16, f16"),
            (config(128, schedule=replace(SWAPPED, split_k=2)), "split_k 1 and no bias"),
            (config(epilogue=Epilogue(bias=True)), "split_k 1 and no bias"),
        ],
    )
    def test_refused(self, refused: GroupedGemmConfig, reason: str) -> None:
        assert check(
            replace(refused, schedule=replace(refused.schedule, swap_tail=False)), "sm_90a"
        )
        assert check(refused, "sm_90a").code == "E_SWAP_TAIL"
        with pytest.raises(UnsupportedConfig, match=reason):
            require(refused, "sm_90a")

    def test_weights_that_do_not_lie_as_they_were_quantised(self) -> None:
        wide = config(16, operands=WIDE)

        assert check(replace(wide, schedule=Schedule()), "sm_90a")
        assert check(wide, "sm_90a").code == "E_SWAP_TAIL"

    def test_experts_along_k_have_none(self) -> None:
        refused = MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128), schedule=SWAPPED)

        assert check(refused, "sm_90a").code == "E_SWAP_TAIL"


class TestExtraRows:
    def test_a_name_says_it(self) -> None:
        asked = config(schedule=EXTRA)
        name = asked.name("sm_90a")

        assert "_swaptail_extrarows_" in name
        assert "swapped tail extra rows" in asked.short
        assert Config.parse(name) == (asked, Arch.SM_90A)
        assert Config.from_json(asked.to_json()) == asked

    def test_other_kernels_know_nothing_of_them(self) -> None:
        usual = config()

        assert "extra" not in usual.name("sm_90a")
        assert "extra" not in canonical_json(usual.to_json())
        assert "extra" not in render(usual, Arch.SM_90A).text.lower()

    @pytest.mark.parametrize("cluster", [Cluster(), Cluster(n=2)])
    @pytest.mark.parametrize("layout", ["ragged", "masked"])
    def test_legal(self, layout: str, cluster: Cluster) -> None:
        """With as many stages; of memory a CTA has what the rows take, of operands and results."""
        found = config(layout=layout, cluster=cluster, schedule=EXTRA)
        derived = require(found, "sm_90a").derived
        usual = require(replace(found, schedule=SWAPPED), "sm_90a").derived

        assert derived.extra_m == EXTRA_M
        assert derived.num_ab_stage == usual.num_ab_stage
        assert derived.scale_box == usual.scale_box + EXTRA_M
        rows = EXTRA_M * (128 * usual.num_ab_stage + 128 * 2)
        assert derived.smem_bytes - usual.smem_bytes >= rows

    @pytest.mark.parametrize(
        ("refused", "reason"),
        [
            (config(schedule=Schedule(extra_rows=True)), "it needs swap_tail"),
            (config(128, schedule=EXTRA), "allowed: 192x128"),
            (config(cluster=Cluster(m=2), schedule=EXTRA), "allowed: 1x1, 1x2"),
            (config(schedule=replace(EXTRA, early_b=True)), "it needs early_b off"),
        ],
    )
    def test_refused(self, refused: GroupedGemmConfig, reason: str) -> None:
        usual = replace(refused.schedule, extra_rows=False)

        assert check(replace(refused, schedule=usual), "sm_90a")
        assert check(refused, "sm_90a").code == "E_EXTRA_ROWS"
        with pytest.raises(UnsupportedConfig, match=reason):
            require(refused, "sm_90a")

    def test_problems_have_few_and_all_of_them_and_one_row_more(self) -> None:
        sizes = Sizes.of(config(schedule=EXTRA), Arch.SM_90A)
        rows = {each for size in sizes for each in size.rows}

        assert {192 + 3, 192 + EXTRA_M + 1, 2 * 192 + EXTRA_M} <= rows


@pytest.mark.parametrize("schedule", [SWAPPED, EXTRA])
def test_the_order_of_sums_is_kept(schedule: Schedule) -> None:
    assert not rules("sm_90a", "grouped_gemm").sums.departure(config(schedule=schedule))


@pytest.mark.parametrize("m", [128, 192])
def test_problems_reach_every_tail(m: int) -> None:
    """Every number of rows by eights, one more than a tail has, and an odd number of k-blocks."""
    sizes = Sizes.of(config(m), Arch.SM_90A)
    blocks = [(rows - 1) % 64 + 1 for each in sizes for rows in each.rows if rows]

    assert {-(-rows // 8) for rows in blocks if rows <= TAIL_M} == {1, 2, 3, 4, 5}
    assert TAIL_M + 1 in blocks
    assert any(-(-each.k // 128) % 2 == 1 for each in sizes)


class TestCost:
    """A tail takes less than a block of 64 rows, and the more the more rows it has."""

    @staticmethod
    def us(schedule: Schedule, rows: int, m: int = 192) -> float:
        problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=32, m=32 * rows, n=4096, k=7168)
        asked = config(m, cluster=Cluster(n=2), schedule=schedule)
        fit = fit_of(H200)
        rows_of_groups = cost.RowDistribution((float(rows),), 32)
        work = cost.work(problem, asked, H200.num_sms, rows_of_groups)
        return cost.cost(work, cost.speed_of(asked, fit), fit).all_us

    def test_whole_blocks_take_as_long(self) -> None:
        for rows in (64, 128, 169, 192, 256):
            assert self.us(SWAPPED, rows) == self.us(Schedule(), rows)

    def test_tails_take_less(self) -> None:
        """On an H200 10 % at 136 rows, 7 % at 152, and 4 % at 96 in tiles of 128."""
        assert self.us(Schedule(), 136) / self.us(SWAPPED, 136) == pytest.approx(1.10, abs=0.05)
        assert self.us(Schedule(), 152) / self.us(SWAPPED, 152) == pytest.approx(1.07, abs=0.04)
        assert self.us(Schedule(), 96, 128) / self.us(SWAPPED, 96, 128) == pytest.approx(
            1.04, abs=0.03
        )
        times = [self.us(SWAPPED, 128 + rows) for rows in range(8, TAIL_M + 1, 8)]
        assert times == sorted(set(times))

    def test_constants_come_from_the_fit(self) -> None:
        """So that a survey can put them right."""
        problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=32, m=32 * 136, n=4096, k=7168)
        slow = replace(fit_of(H200), tail=1.0)
        asked = config(cluster=Cluster(n=2))

        now = cost.predict(problem, asked, fit_of(H200), H200.num_sms).cost
        assert cost.predict(problem, asked, slow, H200.num_sms).cost > now

    @pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
    def test_the_selector_takes_them_for_few_rows_more_than_two_blocks(
        self, layout: Layout
    ) -> None:
        problem = GroupedGemmProblem(layout=layout, groups=32, m=32 * 136, n=4096, k=7168)
        found = select(problem, Arch.SM_90A, device=H200.name, use_measured=False)

        assert found.config == config(layout=layout, cluster=Cluster(n=2), schedule=EXTRA)

    def test_extra_rows_are_part_of_the_last_tile(self) -> None:
        """On an H200 193 rows took 9 % longer than 192, 208 rows 12 %, and 209 a second tile."""
        times = {rows: self.us(EXTRA, rows) for rows in (192, 193, 208, 209)}

        assert times[192] == self.us(SWAPPED, 192)
        assert times[193] / times[192] == pytest.approx(1.09, abs=0.03)
        assert times[208] / times[192] == pytest.approx(1.12, abs=0.04)
        assert times[209] == self.us(SWAPPED, 209)
        assert self.us(EXTRA, 2 * 192 + 16) < self.us(SWAPPED, 2 * 192 + 16)

    @pytest.mark.parametrize("layout", [Layout.RAGGED, Layout.MASKED])
    @pytest.mark.parametrize("rows", [1, 8, 32])
    def test_groups_without_a_whole_block_take_kernels_as_before(
        self, layout: Layout, rows: int
    ) -> None:
        """Their rows are all a tail, which was not measured; streamed weights decide there."""
        problem = GroupedGemmProblem(layout=layout, groups=64, m=64 * rows, n=2816, k=2048)
        found = select(problem, Arch.SM_90A, device=H200.name, use_measured=False)

        assert not found.config.schedule.swap_tail
