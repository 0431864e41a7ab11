# SPDX-License-Identifier: Apache-2.0
"""The cost model of B200 and B300 on paper: its cycles, worked out by hand, and what it chooses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    GroupedGemmProblem,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.runtime.session import select
from jitgen.targets.legality import rules, target
from jitgen.targets.sm_100a.cost import Cycles, cycles
from jitgen.targets.sm_100a.devices import ULTRA, Paper

MATRICES = ((4096, 7168), (7168, 2048))
"""N and K of DeepSeek-V3."""

BLACKWELLS = (Arch("sm_100a"), Arch("sm_103a"))


def kernel(m: int, n: int, stages: int, layout: Layout = Layout.RAGGED) -> GroupedGemmConfig:
    """Return a kernel of one CTA, or with 256 rows of a pair."""
    return GroupedGemmConfig(
        layout=layout,
        tile=Tile(m=m, n=n, k=128),
        cluster=Cluster(m=m // 128),
        pipeline=Pipeline(num_acc_stage=stages),
        schedule=Schedule(two_cta=m == 256),
    )


@pytest.mark.parametrize(
    ("config", "expected", "share"),
    [
        (kernel(128, 64, 4), Cycles(128, 192, 384, 64, 64, 98), 0.33),
        (kernel(128, 128, 4), Cycles(256, 256, 512, 128, 128, 136), 0.50),
        (kernel(256, 128, 4), Cycles(256, 192, 384, 128, 128, 136), 0.67),
        (kernel(256, 192, 2), Cycles(384, 224, 448, 192, 192, 202), 0.86),
        (kernel(256, 256, 2), Cycles(512, 256, 512, 256, 256, 220), 1.00),
    ],
)
def test_cycles_of_a_k_block(config: GroupedGemmConfig, expected: Cycles, share: float) -> None:
    """Instructions are a count of an earlier kernel's, and may have moved by a few."""
    found = cycles(config, Paper())

    assert found._replace(issue=0) == expected._replace(issue=0)
    assert found.issue == pytest.approx(expected.issue, rel=0.06)
    assert found.tensor / found.bound(config.pipeline.num_acc_stage) == pytest.approx(
        share, abs=0.005
    )


def test_rows_that_are_not_there_are_not_loaded() -> None:
    """At decode the load of a shrinks, and what is multiplied does not."""
    full, decode = (cycles(kernel(128, 128, 4), Paper(), rows) for rows in (128, 32))

    assert full.fill - decode.fill == 96 * 128 / 64
    assert full.tensor == decode.tensor


def test_one_stage_of_sums_does_not_overlap() -> None:
    found = cycles(kernel(256, 256, 1), Paper())

    assert found.bound(1) == found.tensor + found.promotion
    assert found.bound(2) == found.tensor


def test_scales_that_do_not_change_within_k_need_no_promotion() -> None:
    config = kernel(256, 256, 1)
    plain = replace(
        config, operands=replace(config.operands, scale_granularity=ScaleGranularity.ROW)
    )
    found = cycles(plain, Paper())

    assert found.promotion == 0
    assert found.bound(1) == found.tensor


@pytest.mark.parametrize(
    ("m", "dtype", "scales", "paper", "tensor", "fill"),
    [
        (128, "e4m3", "mx32", Paper(), 256, 512 + 16),
        (128, "e2m1", "mx32", Paper(), 256, 512 + 32),
        (128, "e2m1", "nv16", Paper(), 256, 512 + 64),
        (256, "e2m1", "nv16", Paper(), 256, 384 + 64),
        (256, "e2m1", "nv16", ULTRA, 256 / 1.5, 384 + 64),
    ],
)
def test_scales_that_tensor_cores_apply_come_with_the_operands(
    m: int, dtype: str, scales: str, paper: Paper, tensor: float, fill: float
) -> None:
    """Twice the values of half the size, at twice the rate: as long, but for Blackwell Ultra."""
    types = Operands(
        a_dtype=DType(dtype), b_dtype=DType(dtype), scale_granularity=ScaleGranularity(scales)
    )
    found = cycles(replace(kernel(m, 128, 3), operands=types), paper)

    assert found.tensor == pytest.approx(tensor)
    assert found.fill == fill
    assert found.promotion == 0


def test_layouts_whose_multiply_adds_are_not_packed_issue_more() -> None:
    ragged, masked = (
        cycles(kernel(256, 256, 2, layout), Paper()) for layout in (Layout.RAGGED, Layout.MASKED)
    )

    assert masked.issue - ragged.issue == 8 * 64 / 4
    assert masked.bound(2) == ragged.bound(2)


def test_names_and_sizes_of_devices() -> None:
    """As the driver calls them; both chips reach what their data sheets say of dense FP8."""
    found = {device.name: device for arch in BLACKWELLS for device in target(arch).devices}
    petaflops = {
        name: each.num_sms * each.clock_mhz * 1e6 * Paper().fp8_flop * 1e-15
        for name, each in found.items()
    }

    assert {name: each.num_sms for name, each in found.items()} == {
        "NVIDIA B200": 148,
        "NVIDIA GB200": 152,
        "NVIDIA B300 SXM6 AC": 148,
        "NVIDIA GB300": 152,
    }
    assert petaflops["NVIDIA B200"] == petaflops["NVIDIA B300 SXM6 AC"]
    assert petaflops["NVIDIA B200"] == pytest.approx(4.5, rel=0.01)
    assert petaflops["NVIDIA GB200"] == pytest.approx(5.0, rel=0.01)
    assert found["NVIDIA GB300"].constants["grouped_gemm"] == ULTRA
    assert ULTRA.fp4_flop == 1.5 * Paper().fp4_flop
    assert all("never on such a GPU" in each.proof for each in found.values())


@pytest.mark.parametrize("arch", BLACKWELLS)
@pytest.mark.parametrize(("n", "k"), MATRICES)
class TestChoices:
    def test_one_token_takes_most_ctas(self, arch: Arch, n: int, k: int) -> None:
        """By narrow tiles, or by sharing K where there is much of it."""

        def ctas(config: GroupedGemmConfig) -> int:
            return -(-n // config.tile.n) * config.schedule.split_k

        problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=1, m=1, n=n, k=k)
        chosen = select(problem, arch).config

        assert chosen.schedule.stream_b
        assert not chosen.schedule.two_cta
        assert ctas(chosen) == max(map(ctas, rules(arch, "grouped_gemm").candidates(problem)))

    def test_handing_sums_over_takes_time(self, arch: Arch, n: int, k: int) -> None:
        """Two CTAs take half of K each, and more than half of the time."""
        problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=1, m=1, n=n, k=k)
        device = target(arch).devices[0]
        whole = kernel(128, 128, 4)
        split = replace(whole, schedule=replace(whole.schedule, split_k=2))
        one, two = (
            rules(arch, "grouped_gemm").predict(problem, config, device, device.num_sms).cost
            - device.constants["grouped_gemm"].call_us
            for config in (whole, split)
        )

        assert one / 2 < two < one

    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("groups", [8, 32, 256])
    def test_few_rows_take_no_pair(
        self, arch: Arch, n: int, k: int, layout: Layout, groups: int
    ) -> None:
        """A pair would multiply 256 rows where a group has up to 64; weights go past L2."""
        for rows in (1, 16, 64):
            problem = GroupedGemmProblem(layout=layout, groups=groups, m=rows * groups, n=n, k=k)
            chosen = select(problem, arch).config

            assert not chosen.schedule.two_cta
            assert chosen.schedule.stream_b

    @pytest.mark.parametrize("layout", Layout)
    @pytest.mark.parametrize("groups", [8, 32, 256])
    def test_many_rows_take_wide_pairs(
        self, arch: Arch, n: int, k: int, layout: Layout, groups: int
    ) -> None:
        for rows in (1024, 4096):
            problem = GroupedGemmProblem(layout=layout, groups=groups, m=rows * groups, n=n, k=k)
            choice = select(problem, arch)

            assert choice.config.schedule.two_cta
            assert choice.config.tile.n >= 192
            assert not choice.config.schedule.stream_b
            assert choice.candidates[0].limiter == "multiply"

    def test_no_prediction_beats_memory_or_the_tensor_cores(
        self, arch: Arch, n: int, k: int
    ) -> None:
        device = target(arch).devices[0]
        paper = device.constants["grouped_gemm"]
        for rows in (1, 64, 512, 8192):
            problem = GroupedGemmProblem(layout=Layout.MASKED, groups=8, m=8 * rows, n=n, k=k)
            for each in select(problem, arch).candidates:
                flop = 2 * problem.m * n * k
                peak = device.num_sms * device.clock_mhz * paper.fp8_flop
                assert each.cost > each.traffic_bytes / (device.dram_gbps * 1e3)
                assert each.cost > flop / peak
                assert each.padding_ratio >= 1
