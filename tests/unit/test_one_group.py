# SPDX-License-Identifier: Apache-2.0
"""Kernels for one group of few rows: who may ask, when they are chosen, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jitgen.codegen.parameters import template_of
from jitgen.codegen.render import render
from jitgen.config import Arch, Config, DType, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.grouped_gemm.cases import Sizes
from jitgen.runtime.session import select
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import check, require, rules
from jitgen.targets.sm_90a.devices import H100, H200
from jitgen.targets.sm_90a.one_group import MOST_K, MOST_N, SMEM_BYTES, TOKENS
from tests.refusals import WIDE

SCHEDULE = Schedule(stream_b=True, one_group=True)


def config(m: int = 8, n: int = 32, k: int = 256, **fields: Any) -> GroupedGemmConfig:
    found: dict[str, Any] = {"layout": "ragged", "schedule": SCHEDULE, **fields}
    return GroupedGemmConfig(tile=Tile(m=m, n=n, k=k), **found)


def problem(m: int = 8, n: int = 4096, k: int = 7168, **fields: Any) -> GroupedGemmProblem:
    found: dict[str, Any] = {"layout": "ragged", "groups": 1, **fields}
    return GroupedGemmProblem(m=m, n=n, k=k, **found)


class TestTheField:
    def test_a_name_says_it(self) -> None:
        name = config().name("sm_90a")

        assert name.endswith("_t8x32x256_c1x1_acc1_streamb_onegroup_sm_90a")
        assert "one group" in config().short
        assert Config.parse(name) == (config(), Arch.SM_90A)
        assert Config.from_json(config().to_json()) == config()

    def test_other_kernels_know_nothing_of_it(self) -> None:
        """Their names and JSON are what they were, and their template is another one."""
        usual = config(64, 64, 128, schedule=Schedule(raster=1, stream_b=True))

        assert "onegroup" not in usual.name("sm_90a")
        assert "one_group" not in canonical_json(usual.to_json())
        assert template_of(usual, Arch.SM_90A) != template_of(config(), Arch.SM_90A)


class TestLegality:
    @pytest.mark.parametrize("out_dtype", [DType.BF16, DType.F16, DType.F32])
    @pytest.mark.parametrize("schedule", [SCHEDULE, Schedule(one_group=True, use_pdl=False)])
    def test_legal(self, out_dtype: DType, schedule: Schedule) -> None:
        """Two CTAs fit on an SM."""
        found = config(operands=Operands(out_dtype=out_dtype), schedule=schedule)

        assert require(found, "sm_90a").numbers["smem_bytes"] <= SMEM_BYTES
        assert ("EVICT_FIRST)" in render(found, Arch.SM_90A).text) == schedule.stream_b

    @pytest.mark.parametrize(
        ("refused", "reason"),
        [
            (config(16), "allowed: 8x32x256"),
            (config(n=64), "allowed: 8x32x256"),
            (config(k=128), "allowed: 8x32x256"),
            (config(layout="masked"), "the masked layout"),
            (config(layout="contiguous"), "the contiguous layout"),
            (config(cluster=Cluster(n=2)), "it needs 1x1, 1 and 1"),
            (config(schedule=replace(SCHEDULE, split_k=2)), "it needs 1x1, 1 and 1"),
            (config(pipeline=Pipeline(num_acc_stage=2)), "it needs 1x1, 1 and 1"),
            (config(schedule=replace(SCHEDULE, raster=1)), "leave them out"),
            (config(schedule=replace(SCHEDULE, swap_tail=True)), "leave them out"),
            (config(schedule=replace(SCHEDULE, extra_rows=True)), "leave them out"),
            (
                config(operands=Operands(scale_granularity=ScaleGranularity.ROW)),
                "e4m3 operands with block128",
            ),
            (
                config(operands=Operands(a_dtype=DType.BF16, b_dtype=DType.BF16)),
                "e4m3 operands with block",
            ),
            (config(epilogue=Epilogue(bias=True)), "it needs no bias"),
        ],
    )
    def test_refused(self, refused: GroupedGemmConfig, reason: str) -> None:
        assert check(refused, "sm_90a").code == "E_ONE_GROUP"
        with pytest.raises(UnsupportedConfig, match=reason):
            require(refused, "sm_90a")

    @pytest.mark.parametrize(
        ("refused", "code"),
        [
            (config(schedule=replace(SCHEDULE, early_b=True)), "E_EARLY_B"),
            (config(pipeline=Pipeline(num_ab_stage=11)), "E_SMEM"),
            (config(pipeline=Pipeline(num_ab_stage=3)), "E_STAGES"),
        ],
    )
    def test_refused_by_other_rules(self, refused: GroupedGemmConfig, code: str) -> None:
        assert check(refused, "sm_90a").code == code

    def test_the_legal_config_is_proposed(self) -> None:
        assert check(config(16, 64, 128), "sm_90a").proposal == config()

    def test_prepacked_weights_have_none(self) -> None:
        assert check(config(16, 128, 128, operands=WIDE), "sm_90a").code == "E_ONE_GROUP"

    def test_experts_along_k_have_none(self) -> None:
        refused = MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128), schedule=SCHEDULE)

        assert check(refused, "sm_90a").code == "E_ONE_GROUP"


class TestChoice:
    @staticmethod
    def is_chosen(asked: GroupedGemmProblem, device: str = H200.name) -> bool:
        return select(asked, Arch.SM_90A, device=device).config == config()

    @pytest.mark.parametrize("device", [H200.name, H100.name])
    @pytest.mark.parametrize(("n", "k"), [(4096, 7168), (7168, 2048), (MOST_N, MOST_K), (512, 512)])
    def test_few_rows_of_one_group(self, n: int, k: int, device: str) -> None:
        """Also where a shipped table has older kernels for the problem."""
        for m in (1, 2, TOKENS):
            assert self.is_chosen(problem(m, n, k), device)
        assert not self.is_chosen(problem(TOKENS + 1, n, k), device)

    @pytest.mark.parametrize(
        "other",
        [
            problem(groups=2),
            problem(layout="masked"),
            problem(layout="contiguous"),
            problem(k=7168 - 64),
            problem(k=MOST_K + 128),
            problem(n=MOST_N + 128),
            problem(numerics="invariant"),
            problem(scale_granularity="row"),
            problem(a_dtype="bf16", scale_granularity="tensor"),
            problem(bias=True),
        ],
        ids=lambda other: other.slug,
    )
    def test_no_other_calls(self, other: GroupedGemmProblem) -> None:
        assert self.is_chosen(problem())
        assert not self.is_chosen(other)

    def test_another_order_of_sums_is_not_invariant(self) -> None:
        order = rules("sm_90a", "grouped_gemm").sums

        assert "schedule.one_group=True" in order.departure(config())

    @pytest.mark.parametrize(
        ("n", "k", "us"),
        [
            *((4096, 7168, 9.64), (7168, 2048, 5.94), (8448, 2048, 6.98)),
            *((256, 7168, 6.72), (2112, 7168, 7.1), (512, 512, 2.59), (18_432, 7168, 35.12)),
        ],
    )
    def test_the_model_has_the_measured_times(self, n: int, k: int, us: float) -> None:
        """Of 8 rows on an H200, 2026-11-29."""
        found = select(problem(n=n, k=k), Arch.SM_90A, device=H200.name, use_measured=False)

        assert found.config == config()
        assert found.candidates[0].cost == pytest.approx(us, rel=0.1)

    def test_fewer_ctas_read_no_faster_each(self) -> None:
        """So that half of the columns take as long where few CTAs read."""

        def us(n: int, num_sms: int | None = None) -> float:
            asked = problem(n=n)
            found = select(
                asked, Arch.SM_90A, device=H200.name, num_sms=num_sms, use_measured=False
            )
            return next(each.cost for each in found.candidates if each.config == config())

        assert us(1024) == pytest.approx(us(2048), rel=0.01)
        assert us(4096, num_sms=32) > 2 * us(4096)


class TestSizes:
    def test_problems_reach_every_part(self) -> None:
        """Rows in one round and in several, more stages and factors than there is room for."""
        sizes = Sizes.of(config(), Arch.SM_90A)
        numbers = require(config(), "sm_90a").numbers

        assert {len(each.rows) for each in sizes} == {1}
        assert {-(-each.rows[0] // TOKENS) for each in sizes} == {0, 1, 2, 3}
        assert any(each.k > 256 * numbers["scale_chunk"] for each in sizes)
        assert all(each.k % 128 == 0 for each in (*sizes, *Sizes.edges(config(), Arch.SM_90A)))

    @pytest.mark.parametrize("numbers", [(2, 8, 64, 256), (1, 8, 64, 272)])
    def test_others_are_refused(self, numbers: tuple[int, ...]) -> None:
        with pytest.raises(ConfigError, match="one group and K a multiple of 128"):
            Sizes.of_numbers(config(), *numbers)

        assert Sizes.of_numbers(config(), 1, 8, 64, 256).rows == (8,)
