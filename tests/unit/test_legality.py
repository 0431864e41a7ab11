# SPDX-License-Identifier: Apache-2.0
"""The rules of the targets: codes, reasons with numbers, proposals, derived numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.errors import UnsupportedConfig
from jitgen.runtime.session import select
from jitgen.targets.legality import check, require, rules, target
from jitgen.targets.sm_90a.rules import SMEM_BYTES, Sm90Rules
from tests.refusals import assert_refused
from tests.strategies import configs, legal_sweep
from tests.targets import OWN, TWINS


def config(m: int = 128, n: int = 128, k: int = 128, **changes: object) -> GroupedGemmConfig:
    return GroupedGemmConfig(layout="ragged", tile=Tile(m=m, n=n, k=k), **changes)


def bf16(m: int = 128, n: int = 128, k: int = 64) -> GroupedGemmConfig:
    return config(
        m, n, k, operands=Operands(a_dtype="bf16", b_dtype="bf16", scale_granularity="tensor")
    )


class TestSm90:
    @pytest.mark.parametrize(
        ("refused", "code", "number"),
        [
            (config(operands=Operands(a_dtype="bf16")), "E_MMA", "bf16 x e4m3"),
            (config(operands=Operands(a_dtype="f32", b_dtype="f32")), "E_MMA", "f32"),
            (config(k=64, operands=Operands(a_dtype="f16", b_dtype="f16")), "E_SCALES", "tensor"),
            (config(operands=Operands(out_dtype="e4m3")), "E_MMA", "-> e4m3"),
            (config(k=64, operands=Operands(a_dtype="bf16", b_dtype="bf16")), "E_SCALES", "tensor"),
            (config(k=256), "E_TILE_K", "256"),
            (bf16(k=128), "E_TILE_K", "64"),
            (config(m=96), "E_WGMMA_M", "96"),
            (config(n=8), "E_WGMMA_N", "8"),
            (config(n=136), "E_WGMMA_N", "136"),
            (config(n=256), "E_WGMMA_N", "256"),
            (config(n=176), "E_SFB_SPAN", "176"),
            (bf16(n=272), "E_WGMMA_N", "256"),
            (config(m=256, n=144), "E_REGS", "216"),
            (config(m=192, n=144), "E_REGS", "144 accumulator registers"),
            (bf16(m=192, n=256), "E_STAGES", "2"),
            (config(m=192, schedule=Schedule(split_k=2)), "E_SPLIT_K", "192"),
            (replace(config(m=192), layout="contiguous"), "E_WGMMA_M", "64, 128, 256"),
            (bf16(m=256, n=224), "E_REGS", "224"),
            (config(m=256, operands=Operands(out_dtype="f32")), "E_STAGES", "2"),
            (config(cluster=Cluster(m=2, n=2)), "E_CLUSTER", "2x2"),
            (config(cluster=Cluster(m=3, n=1)), "E_CLUSTER", "3x1"),
            (config(pipeline=Pipeline(num_acc_stage=2)), "E_ACC_STAGE", "2"),
            (config(pipeline=Pipeline(num_ab_stage=9)), "E_SMEM", "9"),
            (config(pipeline=Pipeline(num_ab_stage=2)), "E_STAGES", "2"),
            (config(schedule=Schedule(split_k=3)), "E_SPLIT_K", "3"),
            (config(schedule=Schedule(split_k=2), cluster=Cluster(m=2)), "E_SPLIT_K", "2x1"),
            (config(m=256, schedule=Schedule(split_k=2)), "E_SPLIT_K", "256"),
            (config(n=96, schedule=Schedule(split_k=4)), "E_SPLIT_K", "64"),
            (config(m=64, n=192, schedule=Schedule(split_k=4)), "E_REGS", "216"),
        ],
    )
    def test_refusals(self, refused: GroupedGemmConfig, code: str, number: str) -> None:
        """Each rule has its code, its number in the reason, and a legal neighbour."""
        assert_refused(refused, "sm_90a", code, number)

    def test_the_proposal_is_the_nearest(self) -> None:
        """Only what is illegal changes, and by as little as possible."""
        proposal = check(config(n=208), "sm_90a").proposal

        assert proposal is not None
        assert (proposal.tile.m, proposal.tile.n) == (128, 192)
        assert proposal.operands == Operands()

    def test_derived_numbers_fit_the_chip(self) -> None:
        """Shared memory and registers of every legal config stay within the SM's limits."""
        for legal in legal_sweep(Arch.SM_90A):
            derived = check(legal, "sm_90a").derived

            assert derived.smem_bytes <= SMEM_BYTES
            is_promoted = legal.operands.a_dtype == "e4m3"
            most = 128 if legal.tile.m == 192 else 192 if is_promoted else 208
            assert derived.acc_registers <= most
            assert derived.threads == 128 * (derived.math_warpgroups + 1)
            registers = derived.load_registers + derived.math_warpgroups * derived.math_registers
            assert registers <= 512, "setmaxnreg: 65536 registers / 128 threads"
            assert derived.load_registers % 8 == derived.math_registers % 8 == 0

    @pytest.mark.parametrize(
        ("m", "n", "stages"),
        [(64, 128, 8), (128, 128, 5), (128, 192, 4), (192, 128, 4), (256, 128, 3)],
    )
    def test_stages_of_known_tiles(self, m: int, n: int, stages: int) -> None:
        """The stages are those that were measured to be fast."""
        assert check(config(m, n), "sm_90a").derived.num_ab_stage == stages

    @pytest.mark.parametrize(
        ("layout", "m", "cluster", "rows", "scales"),
        [
            ("ragged", 64, (1, 1), 8, 12),  # up to 3 rows ahead
            ("masked", 64, (1, 1), 8, 8),
            ("contiguous", 64, (1, 1), 0, 0),
            ("ragged", 64, (2, 1), 0, 0),
            ("ragged", 128, (1, 1), 0, 0),
        ],
    )
    def test_short_tiles(
        self, layout: str, m: int, cluster: tuple[int, int], rows: int, scales: int
    ) -> None:
        """Groups of a few rows have boxes that hardly reach beyond the end of a tensor."""
        pair = Cluster(m=cluster[0], n=cluster[1])
        legal = replace(config(m), layout=Layout(layout), cluster=pair)
        derived = check(legal, "sm_90a").derived

        assert (derived.short_m, derived.short_scale_box) == (rows, scales)

    def test_a_list_of_tiles_takes_what_the_stages_leave(self) -> None:
        """A pair that shares b has none, and as many stages; half of a group's block is no pair."""
        lengths = set()
        for legal in legal_sweep(Arch.SM_90A):
            if legal.layout is not Layout.CONTIGUOUS:
                continue
            derived = check(legal, "sm_90a").derived
            if legal.tile.m > 64 or legal.cluster.m > 1:
                assert derived.max_entries == 0
                continue
            lengths.add(derived.max_entries)
            if legal.schedule.split_k == 1:
                pair = check(replace(legal, cluster=Cluster(m=2)), "sm_90a").derived
                assert derived.num_ab_stage == pair.num_ab_stage

        assert min(lengths) >= 64
        assert max(lengths) == 512

    def test_a_list_of_tiles_without_room_is_none(self) -> None:
        """Then all tiles are dealt, as those of other kernels are."""
        types = Operands(a_dtype="bf16", b_dtype="bf16", out_dtype="f32", scale_granularity="row")
        full = GroupedGemmConfig(layout="contiguous", operands=types, tile=Tile(m=64, n=256, k=64))
        entries = [Sm90Rules()._entries(full, bytes_)[0] for bytes_ in (-4, 0, 131, 132, 4000)]

        assert check(full, "sm_90a").derived.max_entries == 64
        assert entries == [0, 0, 0, 32, 512]

    @pytest.mark.parametrize(
        ("split_k", "out_n", "epilogue_n"), [(1, 128, 64), (2, 64, 64), (4, 32, 32)]
    )
    def test_parts_of_k_share_the_columns(self, split_k: int, out_n: int, epilogue_n: int) -> None:
        """Each CTA of a tile stores as many columns, in boxes that divide them."""
        derived = check(config(64, 128, schedule=Schedule(split_k=split_k)), "sm_90a").derived

        assert (derived.out_n, derived.epilogue_n) == (out_n, epilogue_n)

    @pytest.mark.parametrize(
        ("tile_n", "out_dtype", "width"),
        [
            (192, "bf16", 64),
            (160, "f16", 32),
            (48, "bf16", 16),
            (192, "f32", 32),
            (48, "f32", 16),
        ],
    )
    def test_store_boxes_are_as_wide_as_a_swizzle(
        self, tile_n: int, out_dtype: str, width: int
    ) -> None:
        """128 bytes, or the largest smaller one that divides the tile."""
        legal = config(n=tile_n, operands=Operands(out_dtype=out_dtype))

        assert check(legal, "sm_90a").derived.epilogue_n == width

    def test_bytes_of_the_types_count(self) -> None:
        """A bf16 stage is as large as an FP8 one of twice the depth; float32 results take more."""
        assert check(bf16(), "sm_90a").derived.num_ab_stage == 6
        for_f32 = config(operands=Operands(out_dtype="f32"))
        assert check(for_f32, "sm_90a").derived.num_ab_stage == 4


class TestCpu:
    @pytest.mark.parametrize(
        ("refused", "code"),
        [
            (config(m=128), "E_TILE_M"),
            (config(m=16, n=8), "E_TILE_N"),
            (config(m=16, k=64), "E_TILE_K"),
            (config(m=16, cluster=Cluster(m=2, n=1)), "E_CLUSTER"),
            (config(m=16, pipeline=Pipeline(num_acc_stage=2)), "E_ACC_STAGE"),
            (config(m=16, pipeline=Pipeline(num_ab_stage=4)), "E_STAGES"),
            (config(m=16, schedule=Schedule(split_k=2)), "E_SPLIT_K"),
            (config(m=16, operands=Operands(a_dtype="f16", b_dtype="bf16")), "E_MMA"),
            (config(m=16, operands=Operands(a_dtype="bf16")), "E_MMA"),
        ],
    )
    def test_refusals(self, refused: GroupedGemmConfig, code: str) -> None:
        """Each rule has its code and a legal neighbour."""
        assert_refused(refused, "cpu", code)


class TestRequire:
    def test_raises_with_reason_and_proposal(self) -> None:
        """The error names the config, the rule, and a config that works."""
        with pytest.raises(UnsupportedConfig, match=r"E_WGMMA_N: tile_n=256.*nearest") as caught:
            require(config(n=256), "sm_90a")

        assert caught.value.code == "E_WGMMA_N"
        assert check(caught.value.proposal, "sm_90a")

    def test_returns_the_verdict(self) -> None:
        """A legal config comes back with its numbers."""
        assert require(config(), "sm_90a").derived is not None


@given(configs)
def test_every_config_gets_a_verdict(any_config: GroupedGemmConfig) -> None:
    """No config, however odd, makes the rules fail; a refusal always has code and reason."""
    for arch in Arch:
        verdict = check(any_config, arch)

        assert bool(verdict) == (verdict.derived is not None)
        if not verdict:
            assert verdict.code.startswith("E_")
            assert verdict.reason


def proposed(any_config: GroupedGemmConfig) -> None:
    for arch in OWN:
        verdict = check(any_config, arch)
        if not verdict:
            assert verdict.proposal is not None
            assert verdict.proposal.layout == any_config.layout


@settings(max_examples=8)
@given(configs)
def test_every_refusal_has_a_proposal(any_config: GroupedGemmConfig) -> None:
    """It is searched for among all configs of a target, which takes a while."""
    proposed(any_config)


@pytest.mark.nightly
@settings(max_examples=200)
@given(configs)
def test_every_refusal_has_a_proposal_at_night(any_config: GroupedGemmConfig) -> None:
    proposed(any_config)


@pytest.mark.parametrize(("arch", "other"), TWINS.items())
def test_twins_have_one_set_of_rules(arch: Arch, other: Arch) -> None:
    """So that what sweeps find of one holds for both."""
    assert target(arch).family == target(other).family
    assert set(target(arch).operations) <= set(target(other).operations)
    for op in target(arch).operations:
        assert type(rules(arch, op)) is type(rules(other, op))
        assert rules(arch, op).templates() == rules(other, op).templates()


def test_derived_dataclasses_are_plain() -> None:
    """What goes into a template is integers and booleans."""
    for arch in OWN:
        for legal in legal_sweep(arch):
            values = dataclasses.asdict(check(legal, arch).derived).values()

            assert all(isinstance(value, (bool, int)) for value in values)


@pytest.mark.parametrize("field", ["early_b", "swap_tail", "extra_rows", "one_group"])
@pytest.mark.parametrize("arch", [arch for arch in Arch if arch is not Arch.SM_90A])
def test_only_sm_90a_has_kernels_with_these_fields(arch: Arch, field: str) -> None:
    problem = GroupedGemmProblem(layout="ragged", groups=8, m=64, n=4096, k=7168)
    chosen: Any = select(problem, arch).config
    asked = replace(chosen, schedule=replace(chosen.schedule, **{field: True}))

    assert check(asked, arch).code == f"E_{field.upper()}"
