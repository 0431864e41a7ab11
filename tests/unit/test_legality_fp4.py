# SPDX-License-Identifier: Apache-2.0
"""Prepacked MXFP4 weights on sm_90a: rules, derived numbers, candidates and predictions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from jitgen.config import Arch, BLayout, DType, Layout, ScaleGranularity
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
from jitgen.errors import UnsupportedConfig
from jitgen.targets.fp4_space import format_of
from jitgen.targets.legality import check, rules, rules_for
from jitgen.targets.sm_90a import fp4_cost
from jitgen.targets.sm_90a.devices import DEVICES, H200
from jitgen.targets.sm_90a.fp4 import LISTED_ROWS, OPERANDS, Fp4Derived
from jitgen.targets.sm_90a.rules import SMEM_BYTES
from tests.refusals import assert_refused
from tests.strategies import prepacked_sweep

OF_BF16 = [types for types in OPERANDS if types.out_dtype is DType.BF16]
ROW, BLOCK128, NONE = ScaleGranularity.ROW, ScaleGranularity.BLOCK128, ScaleGranularity.NONE


def operands(
    b_layout: str = "exact1", a_dtype: str = "e4m3", scales: str = "row", out_dtype: str = "bf16"
) -> Operands:
    return Operands(
        a_dtype=a_dtype,
        b_dtype="e2m1",
        out_dtype=out_dtype,
        scale_granularity="mx32",
        a_scale_granularity=scales,
        b_layout=b_layout,
    )


FOLDED, BLOCKS = operands("folded1"), operands(scales="block128")
WIDE, PAIRS = operands("wide1", "bf16", "none"), operands("folded1", "e4m3x2")


def config(
    m: int, n: int = 256, types: Operands | None = None, **changes: object
) -> GroupedGemmConfig:
    tile = Tile(m=m, n=n, k=changes.pop("k", 128))
    return GroupedGemmConfig(layout="ragged", operands=types or operands(), tile=tile, **changes)


def derived(config: GroupedGemmConfig) -> Fp4Derived:
    found = check(config, "sm_90a").derived
    assert isinstance(found, Fp4Derived)
    return found


class TestRules:
    @pytest.mark.parametrize(
        ("refused", "code", "number"),
        [
            (config(8, types=operands("wide1")), "E_MMA", "e4m3 with row scales"),
            (config(8, types=operands("exact1", "bf16", "none")), "E_MMA", "bf16 none wide1"),
            (config(8, types=operands(a_dtype="e4m3x2", scales="block128")), "E_MMA", "e4m3x2"),
            (config(8, types=replace(WIDE, b_dtype=DType.BF16)), "E_MMA", "x bf16"),
            (config(8, types=operands(out_dtype="e4m3")), "E_MMA", "-> e4m3"),
            (config(8, k=64), "E_TILE_K", "64"),
            (config(24), "E_WGMMA_N", "24"),
            (config(256, types=WIDE), "E_WGMMA_N", "256"),
            (config(8, n=64), "E_WGMMA_M", "64"),
            (config(8, n=320), "E_WGMMA_M", "320"),
            (config(8, cluster=Cluster(n=2)), "E_CLUSTER", "1x2"),
            (config(8, pipeline=Pipeline(num_acc_stage=2)), "E_ACC_STAGE", "2"),
            (config(32, schedule=Schedule(split_k=4)), "E_SPLIT_K", "4"),
            (config(8, schedule=Schedule(split_k=2)), "E_SPLIT_K", "16 rows of a"),
            (config(32, schedule=Schedule(split_k=2)), "E_REGS", "8 sums to store"),
            (config(8, schedule=Schedule(two_cta=True)), "E_TWO_CTA", "two_cta"),
            (config(8, pipeline=Pipeline(num_ab_stage=13)), "E_SMEM", "13"),
            (config(8, pipeline=Pipeline(num_ab_stage=3)), "E_STAGES", "3"),
            (config(64), "E_REGS", "192 registers"),
            (config(32, types=BLOCKS), "E_REGS", "120 registers"),
            (config(128, types=FOLDED), "E_REGS", "112, and more spill"),
            (config(128, types=PAIRS), "E_REGS", "288 registers"),
            (config(192, 128), "E_WGMMA_N", "more than 128 tokens"),
            (replace(config(192, 128, FOLDED), layout=Layout.CONTIGUOUS), "E_TILE_M", "128"),
            (config(192, 192, FOLDED), "E_REGS", "224 registers"),
            (config(192, 128, FOLDED, cluster=Cluster(m=2)), "E_CLUSTER", "1x2"),
            (config(192, 128, FOLDED, schedule=Schedule(split_k=2)), "E_SPLIT_K", "2"),
        ],
    )
    def test_refusals(self, refused: GroupedGemmConfig, code: str, number: str) -> None:
        """Each rule has its code, its number in the reason, and a legal neighbour."""
        assert_refused(refused, "sm_90a", code, number)

    def test_the_proposal_is_the_nearest(self) -> None:
        """Only what is illegal changes, by as little as possible; the bias stays."""
        refused = config(32, types=BLOCKS, epilogue=Epilogue(bias=True))

        assert check(refused, "sm_90a").proposal == replace(refused, tile=Tile(m=32, n=192, k=128))

    def test_unprepacked_weights_have_no_kernel(self) -> None:
        """Weights as they were quantised are the other family's, which refuses e2m1."""
        plain = replace(operands(), b_layout=BLayout.PLAIN, a_scale_granularity=None)

        assert check(config(8, types=plain), "sm_90a").code == "E_MMA"

    def test_other_targets_refuse_prepacked_weights(self) -> None:
        assert check(config(8), "sm_100a").code == "E_SCALES"

    def test_derived_numbers_fit_the_chip(self) -> None:
        """Of every legal config; there are some of each kind and layout."""
        legal = prepacked_sweep(Arch.SM_90A)
        for each in legal:
            found = derived(each)
            pool = 65_536 // found.threads // 8 * 8 * (found.math_warpgroups + 1)

            assert found.smem_bytes <= SMEM_BYTES
            assert found.load_registers + found.math_warpgroups * found.math_registers <= pool
            assert found.load_registers % 8 == found.math_registers % 8 == 0
            assert found.acc_registers < found.math_registers

        kinds = {(each.layout, each.operands) for each in legal}
        assert kinds == {*itertools.product(Layout, OPERANDS)}

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            (config(8), (12, 112, True, 8)),
            (config(32), (10, 112, False, 16)),
            (config(64, 128), (12, 240, False, 64)),
            (config(32, types=FOLDED), (10, 112, True, 32)),
            (config(64, types=FOLDED), (8, 112, True, 0)),
            (config(128, 192, FOLDED), (7, 160, False, 0)),
            (config(192, 128, FOLDED), (6, 240, True, 0)),
            (config(256, 128, FOLDED, cluster=Cluster(n=2)), (5, 240, True, 0)),
            (config(8, types=WIDE), (11, 112, True, 0)),
            (config(128, 192, WIDE), (4, 160, True, 0)),
            (config(16, types=PAIRS), (10, 112, True, 32)),
        ],
    )
    def test_known_kernels(
        self, config: GroupedGemmConfig, expected: tuple[int, int, bool, int]
    ) -> None:
        """Stages, registers and loops are those that were measured to be fast."""
        found = derived(config)
        have = (found.num_ab_stage, found.math_registers, found.is_paired, found.early_rows)

        assert have == expected

    def test_a_list_of_tiles_has_the_same_rows_in_every_kernel(self) -> None:
        """Where tiles are shorter than a group's block; blocks have some rows each."""
        for each in prepacked_sweep(Arch.SM_90A):
            if each.layout is Layout.CONTIGUOUS:
                listed = 0 if each.tile.m == 128 else LISTED_ROWS

                assert derived(each).max_entries * each.tile.m == listed

    @pytest.mark.parametrize("types", OF_BF16, ids=lambda types: types.text)
    def test_a_list_of_tiles_costs_candidates_no_stage(self, types: Operands) -> None:
        """
        It takes no more room than ragged rows' table where that makes a difference; with larger
        blocks one of ten stages.
        """
        fewer = int(format_of(types).facts.block_words > 1088)
        problem = of(types, 128, n=4096, k=7168, layout="contiguous")
        for each in rules("sm_90a", "grouped_gemm").candidates(problem):
            ragged = replace(each, layout=Layout.RAGGED)

            assert derived(each).num_ab_stage >= derived(ragged).num_ab_stage - fewer

    @pytest.mark.parametrize(
        ("n", "k", "reason"), [(12, 64, "N a multiple of 8"), (16, 72, "K a multiple of 16")]
    )
    def test_sizes(self, n: int, k: int, reason: str) -> None:
        problem = of(operands(), 1, n=n, k=k)

        with pytest.raises(UnsupportedConfig, match=reason):
            rules_for(problem, Arch.SM_90A)


def of(
    types: Operands, rows: int, *, n: int, k: int, groups: int = 32, **more: object
) -> GroupedGemmProblem:
    return GroupedGemmProblem(
        layout=more.pop("layout", "ragged"),
        groups=groups,
        m=groups * rows,
        n=n,
        k=k,
        a_dtype=types.a_dtype,
        b_dtype=types.b_dtype,
        out_dtype=types.out_dtype,
        scale_granularity=types.scale_granularity,
        a_scale_granularity=types.a_scale_granularity,
        b_layout=types.b_layout,
        **more,
    )


@pytest.fixture
def even_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all groups have the same rows, as those that were measured."""
    monkeypatch.setattr(fp4_cost, "sizes", lambda problem: (float(problem.rows_per_group),))


class TestChoice:
    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("types", OF_BF16, ids=lambda types: types.text)
    def test_few_candidates(self, types: Operands, layout: Layout) -> None:
        """Some for each kind, no more than 12, all legal, with the bias where one is asked for."""
        for has_bias in (False, True):
            problem = of(types, 8, n=4096, k=7168, layout=layout, bias=has_bias)
            found = rules("sm_90a", "grouped_gemm").candidates(problem)

            assert 4 <= len(found) <= 12
            assert all(check(each, "sm_90a") and each.operands == types for each in found)
            assert {each.epilogue.bias for each in found} == {has_bias}

    @pytest.mark.parametrize(
        ("types", "rows", "n", "k", "us"),
        [
            (operands(), 1, 4096, 7168, 117.3),
            (operands(), 8, 7168, 2048, 66.1),
            (operands(), 32, 5760, 2880, 91.5),
            (FOLDED, 16, 4096, 7168, 124.7),
            (FOLDED, 64, 4096, 7168, 169.5),
            (FOLDED, 128, 7168, 2048, 169.0),
            (WIDE, 8, 4096, 7168, 132.9),
            (WIDE, 32, 2880, 2880, 56.3),
            (PAIRS, 8, 7168, 2048, 67.1),
        ],
    )
    @pytest.mark.usefixtures("even_groups")
    def test_predictions_are_near_what_was_measured(
        self, types: Operands, rows: int, n: int, k: int, us: float
    ) -> None:
        """Of the best candidate, on the device that the model was fitted to."""
        found = rules("sm_90a", "grouped_gemm")
        problem = of(types, rows, n=n, k=k)
        costs = {
            each: found.predict(problem, each, H200, H200.num_sms).cost
            for each in found.candidates(problem)
        }

        assert min(costs.values()) == pytest.approx(us, rel=0.08)

    @pytest.mark.usefixtures("even_groups")
    def test_the_smallest_tile_that_holds_the_rows(self) -> None:
        """Several small tiles decode the weights several times; few rows need no smaller tile."""
        found = rules("sm_90a", "grouped_gemm")
        for rows, tokens in ((1, 16), (12, 16), (30, 32), (60, 64)):
            problem = of(FOLDED, rows, n=4096, k=7168)
            costs = {
                each: found.predict(problem, each, H200, H200.num_sms).cost
                for each in found.candidates(problem)
            }

            assert min(costs, key=costs.__getitem__).tile.m == tokens

    def test_slower_devices_take_longer(self) -> None:
        found = rules("sm_90a", "grouped_gemm")
        problem = of(operands(), 8, n=4096, k=7168)
        (first, *_) = found.candidates(problem)
        h200, *others = (found.predict(problem, first, each, each.num_sms).cost for each in DEVICES)

        assert h200 < min(others)
        assert not found.confidence_note(problem, H200)
        assert "H200" in found.confidence_note(problem, DEVICES[1])
