# SPDX-License-Identifier: Apache-2.0
"""Weights that are loaded before the kernel in front has ended: who may ask, and who does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jitgen.config import Arch, BLayout, Config
from jitgen.config.activation_quantize import ActivationQuantizeProblem
from jitgen.config.add_lora import AddLoraConfig
from jitgen.config.add_lora import Tiling as Adding
from jitgen.config.combine import CombineProblem
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Schedule,
    Tile,
)
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import UnsupportedConfig
from jitgen.plans import Plan, Sweep, configs, load, text
from jitgen.runtime.session import select
from jitgen.support.documents import canonical_json
from jitgen.targets.early import early
from jitgen.targets.legality import check, require
from tests.refusals import WIDE

EARLY = Schedule(early_b=True)


def config(m: int = 64, n: int = 128, **fields: Any) -> GroupedGemmConfig:
    found: dict[str, Any] = {"layout": "ragged", "schedule": EARLY, **fields}
    return GroupedGemmConfig(tile=Tile(m=m, n=n, k=128), **found)


class TestTheField:
    def test_a_name_says_it(self) -> None:
        name = config().name("sm_90a")

        assert "_earlyb_" in name
        assert Config.parse(name) == (config(), Arch.SM_90A)
        assert Config.from_json(config().to_json()) == config()

    def test_other_kernels_know_nothing_of_it(self) -> None:
        """Their names, JSON and so their keys are what they were."""
        usual = config(schedule=Schedule())

        assert "early" not in usual.name("sm_90a")
        assert "early" not in canonical_json(usual.to_json())
        assert usual.settled == ()

    def test_what_it_promises(self) -> None:
        assert set(config().settled) == {"b", "groups"} <= set(config().arguments)


class TestLegality:
    @pytest.mark.parametrize("layout", ["ragged", "masked"])
    @pytest.mark.parametrize("n", [64, 128])
    @pytest.mark.parametrize("m", [64, 128])
    def test_legal(self, layout: str, n: int, m: int) -> None:
        """Nothing else follows from it."""
        found = config(m, n, layout=layout)
        usual = replace(found, schedule=Schedule())

        assert require(found, "sm_90a").derived == require(usual, "sm_90a").derived

    @pytest.mark.parametrize(
        ("refused", "reason"),
        [
            (config(schedule=replace(EARLY, use_pdl=False)), "needs use_pdl"),
            (config(layout="contiguous"), "allowed: ragged, masked"),
            (config(cluster=Cluster(n=2)), "cluster 1x1 and split_k 1 .got 1x2 and 1"),
            (config(cluster=Cluster(m=2)), "cluster 1x1 and split_k 1 .got 2x1 and 1"),
            (config(schedule=replace(EARLY, split_k=2)), "got 1x1 and 2"),
        ],
    )
    def test_refused(self, refused: GroupedGemmConfig, reason: str) -> None:
        assert check(refused, "sm_90a").code == "E_EARLY_B"
        with pytest.raises(UnsupportedConfig, match=reason):
            require(refused, "sm_90a")

    def test_weights_that_do_not_lie_as_they_were_quantised(self) -> None:
        types = Operands(
            a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor", b_layout=BLayout.N_MAJOR
        )
        n_major = replace(config(operands=types), tile=Tile(m=64, n=128, k=64))
        wide = replace(config(operands=WIDE), tile=Tile(m=16, n=128, k=128))
        for refused in (n_major, wide):
            assert check(replace(refused, schedule=Schedule()), "sm_90a")
            assert check(refused, "sm_90a").code == "E_EARLY_B"

    def test_adapters_are_early_beside_a_kernel_that_runs(self) -> None:
        found = early(AddLoraConfig(tiling=Adding(use_pdl=False)), Arch.SM_90A)

        assert found == AddLoraConfig(tiling=Adding(early=True))
        assert set(found.arguments) - set(found.settled) == {"y", "out", "first_expert"}
        refused = AddLoraConfig(tiling=Adding(early=True, use_pdl=False))
        assert check(refused, "sm_90a").code == "E_EARLY"
        with pytest.raises(UnsupportedConfig, match="it needs use_pdl"):
            require(refused, "sm_90a")

    def test_experts_along_k_have_none(self) -> None:
        refused = MoEFc2DenseConfig(tile=Tile(m=64, n=128, k=128), schedule=EARLY)

        assert check(refused, "sm_90a").code == "E_EARLY_B"


class TestAChain:
    """What it asks for in the place of the selector's choice."""

    def test_products_of_few_rows(self) -> None:
        few = GroupedGemmProblem(layout="ragged", groups=32, m=32, n=4096, k=7168)
        usual = select(few, "sm_90a").config
        found = early(usual, Arch.SM_90A)

        assert not usual.schedule.early_b
        assert found == replace(usual, schedule=replace(usual.schedule, early_b=True))
        assert early(usual, Arch.CPU) == usual

    def test_products_of_many_rows_are_the_selectors(self) -> None:
        many = GroupedGemmProblem(layout="ragged", groups=8, m=8192, n=4096, k=7168)
        usual = select(many, "sm_90a").config

        assert early(usual, Arch.SM_90A) == usual
        assert early(config(cluster=Cluster(n=2), schedule=Schedule()), Arch.SM_90A) == config(
            cluster=Cluster(n=2), schedule=Schedule()
        )

    def test_small_launches(self) -> None:
        problem = ActivationQuantizeProblem(layout="ragged", groups=8, m=8, n=2048)
        usual = select(problem, "sm_90a").config
        found = early(usual, Arch.SM_90A)

        assert not usual.tiling.use_pdl
        assert found.tiling == replace(usual.tiling, use_pdl=True)
        combine = select(CombineProblem(m=1, n=7168, top_k=8), "sm_90a").config
        assert early(combine, Arch.SM_90A) == combine, "which starts early anyway"


class TestAPlan:
    def test_it_has_early_kernels_where_it_says_so(self, tmp_path: Any) -> None:
        problem = GroupedGemmProblem(layout="ragged", groups=32, m=32, n=4096, k=7168)
        sweep = Sweep(problem=problem, min_rows=1, max_rows=2, is_early=True)
        late = replace(sweep, is_early=False)
        plan = Plan(name="mine", description="", sweeps=(sweep, late))
        found = configs(plan, "sm_90a", devices=["NVIDIA H200"])
        names = [each.name("sm_90a") for each in found]
        path = tmp_path / "mine.toml"
        path.write_text(text(plan), encoding="utf-8")

        assert sum("_earlyb_" in name for name in names) == len(names) / 2 > 0
        assert load(path) == plan
        assert len([*plan.problems("sm_90a")]) == len({*plan.problems("sm_90a")})
