# SPDX-License-Identifier: Apache-2.0
"""Choices: legal, few, one for a bucket, and the measured winners where something was measured."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from jitgen.bench import cases
from jitgen.bench.choice.report import ChoiceReport
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.config import FLOAT_SCALES
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.runtime.session import select
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import Choice, bucket, buckets
from jitgen.settings import settings
from jitgen.targets import devices
from jitgen.targets.legality import check, rules
from tests.candidates import candidates
from tests.fit_sm_90a.data import SURVEYS
from tests.targets import EACH

MATRICES = [(4096, 7168), (7168, 2048)]


def choose(layout: str, groups: int, rows: int, n: int, k: int, **more: int) -> Choice:
    problem = GroupedGemmProblem(layout=Layout(layout), groups=groups, m=groups * rows, n=n, k=k)
    return select(problem, Arch.SM_90A, use_measured=False, **more)


def shape(config: GroupedGemmConfig) -> tuple[int, int, int, int]:
    return config.tile.m, config.tile.n, config.cluster.m, config.cluster.n


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("scales", FLOAT_SCALES)
def test_menu_is_short_and_legal(layout: Layout, scales: ScaleGranularity) -> None:
    configs = candidates(Arch.SM_90A, layout, Operands(scale_granularity=scales))

    assert 6 <= len(configs) <= 12
    assert len(set(configs)) == len(configs)
    assert all(check(config, Arch.SM_90A) for config in configs)


def test_block_scaled_menus_are_short_together() -> None:
    """The menu is what prewarming compiles."""
    assert sum(len(candidates(Arch.SM_90A, layout, Operands())) for layout in Layout) <= 35


@pytest.mark.parametrize("layout", Layout)
def test_every_entry_of_a_menu_is_the_best_for_some_problem(layout: Layout) -> None:
    """What nothing chooses, and no survey finds the best, has no place in a menu."""
    wanted = set(candidates(Arch.SM_90A, layout, Operands()))
    for path in SURVEYS.glob("nvidia-h200-random-*.json"):
        wanted -= {GroupedGemmConfig.parse(each.best)[0] for each in ChoiceReport.read(path).found}
    for groups in (1, 2, 4, 8, 32, 64, 256):
        for n, k in [*MATRICES, (512, 7168), (768, 2048), (2048, 7168), (7168, 512)]:
            wanted -= {
                choose(layout, groups, rows, n, k).config
                for rows in rules(Arch.SM_90A, "grouped_gemm").row_edges
            }

    assert not {config.name("sm_90a") for config in wanted}


@pytest.mark.parametrize(
    ("layout", "groups", "rows", "n", "k", "expected"),
    [
        ("contiguous", 1, 128, 7168, 7168, (128, 128, 1, 1)),
        ("contiguous", 8, 128, 4096, 7168, (128, 128, 1, 1)),
        ("masked", 32, 8, 4096, 7168, (64, 128, 1, 1)),
        ("masked", 32, 8, 7168, 2048, (64, 128, 1, 1)),
        ("masked", 32, 64, 4096, 7168, (128, 128, 1, 2)),
        ("ragged", 256, 150, 4096, 7168, (192, 128, 1, 2)),
        ("ragged", 32, 128, 4096, 7168, (192, 128, 1, 2)),
        ("masked", 256, 128, 4096, 7168, (192, 128, 1, 2)),
        ("ragged", 8, 300, 4096, 7168, (192, 128, 1, 2)),
        ("ragged", 32, 4, 4096, 7168, (64, 128, 1, 1)),
        ("ragged", 1, 1, 4096, 7168, (64, 64, 1, 1)),
    ],
)
def test_measured_winners_are_chosen(
    layout: str, groups: int, rows: int, n: int, k: int, expected: tuple[int, ...]
) -> None:
    """What was fastest on an H200 is what a call there gets, and but twice what the model picks."""
    problem = GroupedGemmProblem(layout=Layout(layout), groups=groups, m=groups * rows, n=n, k=k)

    assert shape(select(problem, Arch.SM_90A, device="NVIDIA H200").config) == expected
    if rows != 128 or layout == "contiguous":  # 128x128 and 128x160, it says
        assert shape(choose(layout, groups, rows, n, k).config) == expected


@pytest.mark.parametrize("layout", Layout)
def test_weights_are_streamed_where_they_are_read_once(layout: Layout) -> None:
    rows = 128 if layout is Layout.CONTIGUOUS else 8
    assert choose(layout, 8, rows, 4096, 7168).config.schedule.stream_b
    assert not choose(layout, 8, 4096, 4096, 7168).config.schedule.stream_b


@pytest.mark.parametrize("arch", EACH)
def test_a_bucket_has_one_answer(arch: Arch) -> None:
    """A thousand batch sizes take a handful of kernels, each chosen once."""
    problems = [
        GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=m, n=4096, k=7168)
        for m in range(1, 8001, 8)
    ]
    choices = {id(select(problem, arch)) for problem in problems}

    assert len(choices) <= len(rules(arch, "grouped_gemm").row_edges)
    assert len({select(problem, arch).config for problem in problems}) <= 8
    for problem in problems:
        assert select(bucket(problem, arch), arch) is select(problem, arch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", EACH)
def test_buckets_are_those_that_problems_fall_into(arch: Arch) -> None:
    """The walk over the buckets of a range finds what asking for every row count finds."""
    chance = random.Random(0)
    for _ in range(40):
        low = chance.randrange(1, 700)
        high = low + chance.randrange(600)
        base = GroupedGemmProblem(layout=Layout.MASKED, groups=3, m=0, n=64, k=64)
        every = {
            bucket(GroupedGemmProblem(layout=Layout.MASKED, groups=3, m=m, n=64, k=64), arch)
            for m in range(3 * low, 3 * high + 1)
        }

        assert list(buckets(base, arch, (low, high))) == sorted(every, key=lambda p: p.m)


def test_candidates_come_best_first_and_explain_themselves() -> None:
    choice = choose("ragged", 8, 512, 4096, 7168)
    costs = [candidate.cost for candidate in choice.candidates]

    assert costs == sorted(costs)
    assert choice.candidates[0].config == choice.config
    assert all(
        candidate.padding_ratio >= 1 and candidate.waves >= 1 for candidate in choice.candidates
    )
    assert {candidate.limiter for candidate in choice.candidates} <= {"multiply", "stream"}
    assert "us" in choice.why
    assert "wave" in choice.why
    assert choice.arch is Arch.SM_90A


def test_predictions_are_near_the_measured_times() -> None:
    """
    Within 15 % of an H200, so that a wrong unit or a lost factor shows; what multiplies
    for 0.1 ms and more as it is sustained.

    Few rows of hundreds of groups are predicted a fifth too slow, whatever the tile.
    """
    measured = {
        ("contiguous", 8, 4096, 4096, 7168): 1620.4,
        ("contiguous", 8, 128, 4096, 7168): 66.0,
        ("contiguous", 8, 512, 7168, 2048): 109.0,
        ("masked", 32, 8, 4096, 7168): 217,
        ("ragged", 256, 4, 4096, 7168): 1575.3,
        ("ragged", 1, 1, 4096, 7168): 9.2,
    }
    for problem, us in measured.items():
        off = 0.25 if problem[1] == 256 else 0.15
        assert choose(*problem).candidates[0].cost == pytest.approx(us, rel=off)


def _lost(name: str, problems: set[Any] | None = None) -> list[float]:
    """
    Return by what part the model's choices are slower than the best that was measured: of the
    candidates that were, for some are younger than a table.
    """
    lost = []
    for record in tuned.shipped(Arch.SM_90A, name).values():
        if problems is None or record.problem in problems:
            choice = select(record.problem, Arch.SM_90A, device=name, use_measured=False)
            names = (candidate.config.name(Arch.SM_90A) for candidate in choice.candidates)
            chosen = next(name for name in names if name in record.times_us)
            lost.append(record.times_us[chosen] / record.times_us[record.winner] - 1)
    return lost


def test_the_model_chooses_well_where_it_was_measured() -> None:
    """
    Over the public suite: within 2 % of the best on average, never more than 16 % off.
    """
    lost = _lost("NVIDIA H200", {bucket(case.problem, Arch.SM_90A) for case in cases.load()})

    assert len(lost) > 30
    assert sum(lost) / len(lost) < 0.02
    assert max(lost) < 0.16


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H100 80GB HBM3"])
def test_the_model_chooses_well_on_each_gpu(name: str) -> None:
    """Over hundreds of buckets of models: 2 % on average, and one in thirteen more than 8 %."""
    lost = _lost(name)

    assert len(lost) > 250
    assert sum(lost) / len(lost) < 0.02
    assert sum(each > 0.08 for each in lost) < len(lost) / 13


def test_fewer_sms_take_more_waves() -> None:
    full = choose("contiguous", 8, 512, 4096, 7168)
    half = choose("contiguous", 8, 512, 4096, 7168, num_sms=66)

    assert half.candidates[0].cost > 1.5 * full.candidates[0].cost


def test_no_rows_are_a_problem_too() -> None:
    for arch in Arch:
        assert select(
            GroupedGemmProblem(layout=Layout.RAGGED, groups=4, m=0, n=64, k=64), arch
        ).config


@pytest.mark.parametrize("name", ["groups", "m", "n", "k"])
def test_sizes_have_an_end(name: str) -> None:
    sizes = {"groups": 8, "m": 64, "n": 64, "k": 64}
    with pytest.raises(ConfigError, match=f"{name} must be at most 281,474,976,710,656"):
        GroupedGemmProblem(layout=Layout.RAGGED, **{**sizes, name: 10**400})
    if name != "groups":
        assert select(
            GroupedGemmProblem(layout=Layout.RAGGED, **{**sizes, name: 2**48}), Arch.SM_90A
        )


def test_cpu_tiles_grow_with_the_rows() -> None:
    heights = [
        select(
            GroupedGemmProblem(layout=Layout.CONTIGUOUS, groups=2, m=2 * rows, n=64, k=64), "cpu"
        ).config.tile.m
        for rows in (1, 8, 9, 16, 17, 32, 33, 64, 500)
    ]

    assert heights == [8, 8, 16, 16, 32, 32, 64, 64, 64]


def test_types_without_a_kernel_are_refused() -> None:
    problem = GroupedGemmProblem(
        layout=Layout.RAGGED, groups=2, m=64, n=64, k=64, a_dtype=DType.F32
    )

    assert select(problem, Arch.CPU)
    with pytest.raises(UnsupportedConfig, match="sm_90a has no kernel for f32 x f32 -> bf16"):
        select(problem, Arch.SM_90A)


def test_without_a_gpu_the_default_arch_is_cpu_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from jitgen.targets import devices as target

    monkeypatch.setattr(target, "_GPU_DEVICES", ())
    problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=64, n=64, k=64)

    assert select(problem).arch is Arch.CPU
    with settings.scope(arch="sm_90a"):
        assert select(problem).arch is Arch.SM_90A


@pytest.mark.parametrize(("capability", "arch"), [((9, 0), Arch.SM_90A), ((8, 0), Arch.CPU)])
def test_the_default_arch_is_that_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], arch: Arch
) -> None:
    """A GPU without kernels counts as none."""
    import torch

    from jitgen.targets import devices as target

    monkeypatch.setattr(target, "_GPU_DEVICES", (Path("/"),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    assert target.default_arch() is arch


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("h200", "NVIDIA H200"),
        ("nvidia h100 pcie", "NVIDIA H100 PCIe"),
        ("H100-PCIe", "NVIDIA H100 PCIe"),
        ("gh200", "NVIDIA GH200 480GB"),
        ("B200", "NVIDIA B200"),
        ("b300", "NVIDIA B300 SXM6 AC"),
    ],
)
def test_a_device_may_be_called_by_a_short_name(asked: str, found: str) -> None:
    arch = devices.arch_of(asked)

    assert devices.find(arch, asked).name == found
    with settings.scope(device=asked):
        assert devices.find(arch).name == found


@pytest.mark.parametrize("asked", ["h100", "nvidia h100"])
def test_the_beginning_of_several_names_is_none(asked: str) -> None:
    with pytest.raises(ConfigError, match="may be any of: NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe"):
        devices.arch_of(asked)


@pytest.mark.parametrize("asked", ["h", "nvidia", "-", "h2000"])
def test_what_is_no_device_is_an_error(asked: str) -> None:
    with pytest.raises(ConfigError, match=r"may be any of|is not known; allowed"):
        devices.find(Arch.SM_90A, asked)
