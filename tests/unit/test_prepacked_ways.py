# SPDX-License-Identifier: Apache-2.0
"""Two ways to a product with prepacked weights: which is predicted to pay, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import jitgen
from jitgen import plans, quantize
from jitgen.bench import quantize as bench
from jitgen.bench.hopper_fp4 import sides
from jitgen.bench.hopper_fp4.run import load
from jitgen.config import Arch, BLayout, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import CaptureMiss, KernelMiss, UnsupportedConfig
from jitgen.ops.grouped_gemm import prepacked_algorithms, prepacked_call
from jitgen.ops.grouped_gemm.prepacked_algorithms import Algorithms, algorithms, unpacked_problem
from jitgen.ops.grouped_gemm.prepacked_call import PrepackedLaunch, UnpackedLaunch
from jitgen.runtime.session import Session, select
from jitgen.selection.choice import buckets

GROUPS, N, K = 32, 4096, 7168


def problem_of(rows: int, **fields: Any) -> GroupedGemmProblem:
    usual = {
        "layout": "ragged",
        "groups": GROUPS,
        "m": GROUPS * rows,
        "n": N,
        "k": K,
        "b_dtype": "e2m1",
        "scale_granularity": "mx32",
        "a_scale_granularity": "row",
        "b_layout": "exact1",
    }
    return GroupedGemmProblem(**(usual | fields))


def ways_of(rows: int, **fields: Any) -> Algorithms:
    found = algorithms(problem_of(rows, **fields), "sm_90a")
    assert found is not None
    return found


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("b_layout", ["exact1", "folded1"])
def test_it_pays_from_some_rows_on(layout: Layout, b_layout: str) -> None:
    """Once, and for all larger buckets."""
    paid = [
        ways_of(rows, layout=layout, b_layout=b_layout).is_unpacked
        for rows in (8, 64, 256, 1024, 4096)
    ]

    assert paid == sorted(paid)
    assert not any(paid[:2])
    assert paid[-1]


def test_all_rows_of_a_bucket_take_one_way() -> None:
    """What is remembered for a bucket is right for all of it."""
    for rows in (300, 700, 3000):
        edge = next(iter(buckets(problem_of(rows), Arch.SM_90A, (rows, rows))))

        assert ways_of(rows).times_us == ways_of(edge.rows_per_group).times_us


def test_what_there_is_one_way_for() -> None:
    for fields in (
        {"b_layout": "wide1", "a_dtype": "bf16", "a_scale_granularity": "none"},
        {"a_dtype": "e4m3x2"},
        {"a_scale_granularity": "block128"},
        {"b_layout": "plain", "b_dtype": None, "scale_granularity": "row"},
    ):
        assert algorithms(problem_of(4096, **fields), "sm_90a") is None
    assert algorithms(problem_of(4096), "cpu") is None


def test_a_bias_is_added_by_either_way() -> None:
    found = ways_of(4096, bias=True)

    assert found.is_unpacked
    assert found.prepacked.config.epilogue.bias
    assert all(each.config.epilogue.bias for each in found.gemm.candidates)


def test_nothing_that_failed_is_taken() -> None:
    """Each kernel of the way was excluded when it was measured here."""

    def choose(problem: Any, *given: Any, **named: Any) -> Any:
        if problem.op == "unpack_weights":
            raise UnsupportedConfig("excluded", code="E_EXCLUDED")
        return select(problem, *given, **named)

    assert algorithms(problem_of(4096), "sm_90a", choose=choose) is None


def test_measured_times_count_where_there_are_both() -> None:
    found = ways_of(4096)
    prepacked, gemm = found.prepacked, found.gemm
    one = replace(found, prepacked=prepacked._replace(times_us={prepacked.config: 1.0}))
    both = replace(one, gemm=gemm._replace(times_us={gemm.config: 2.0}))

    assert one.times_us == found.times_us
    assert both.times_us == (1.0, 2.0)
    assert found.is_unpacked_faster
    assert not both.is_unpacked_faster


def test_memory_is_limited() -> None:
    found = ways_of(4096)
    assert found.workspace_bytes == GROUPS * N * (K + 4)
    assert "896 MiB" in found.why
    with jitgen.settings.scope(max_workspace="500MiB"):
        less = ways_of(4096)

    assert less.is_unpacked_faster
    assert not less.is_unpacked
    assert less.why.endswith("but needs 896 MiB, and 500 MiB are allowed")


PLAN = """
[[problems]]
layout = "ragged"
groups = 32
rows_per_group = {{ min = {least}, max = {most} }}
matrix = {{ n = 4096, k = 7168 }}
dtype = "e4m3"
b_dtype = "e2m1"
scale_granularity = "mx32"
a_scale_granularity = "row"
b_layout = ["exact1", "folded1"]
"""


@pytest.mark.parametrize(("least", "most"), [(1, 64), (4096, 8192)])
def test_plans_have_the_kernels_of_both_ways(tmp_path: Path, least: int, most: int) -> None:
    """Weights whose rows spread too far take the one, others the other: which is unknown."""
    path = tmp_path / "mine.toml"
    path.write_text(PLAN.format(least=least, most=most), encoding="utf-8")
    plan = plans.load(path)
    found = {*plans.configs(plan, "sm_90a", devices=["NVIDIA H200"])}
    chosen = {select(problem, "sm_90a").config for problem in plan.problems("sm_90a")}
    beside = {str(config.name("sm_90a")) for config in found - chosen}

    assert chosen <= found
    if least == 1:
        assert not beside
    else:
        assert {"unpack_weights_exact1_sm_90a", "unpack_weights_folded1_sm_90a"} <= beside
        assert any("_e4m3_e4m3_row_bf16_" in name for name in beside)
        assert all(
            select(unpacked_problem(p), "sm_90a").config in found for p in [problem_of(4096)]
        )


class FakeGpu:
    """A device that has some kernels and lacks others."""

    arch = Arch.SM_90A
    tail = (132,)

    def __init__(self, lacking: str = "", error: type[KernelMiss] = KernelMiss) -> None:
        self.lacking = lacking
        self.error = error
        self.launched: list[str] = []

    def entry(self, session: Session, config: Any, neighbours: Any) -> Any:
        name = str(config.name(self.arch))
        if self.lacking and self.lacking in name:
            raise self.error(name, f"{name} is not compiled")
        return lambda *_: self.launched.append(name), config


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A GPU for tensors of the CPU, where few rows are taken for many."""
    found = FakeGpu()
    monkeypatch.setattr("jitgen.runtime.devices.find", lambda *_: found)
    monkeypatch.setattr(prepacked_algorithms.Algorithms, "is_unpacked_faster", True)
    with Session():
        yield found


def call(layout: BLayout = BLayout.EXACT1) -> type:
    """Call with small operands, and return what was remembered."""
    chance = torch.Generator().manual_seed(0)
    w = torch.randn(2, 64, 64, generator=chance)
    a, scale = quantize.per_row(torch.randn(5, 64, generator=chance))
    weights = quantize.prepack_mxfp4_from(w, layout=layout)
    offs = torch.tensor([2, 5], dtype=torch.int32)
    jitgen.grouped_gemm(a, weights, scale, offs=offs)
    [[launch]] = prepacked_call.current.get().memo.values()
    return type(launch)


def test_both_kernels_are_launched(gpu: FakeGpu) -> None:
    assert call() is UnpackedLaunch
    assert [name.split("_")[0] for name in gpu.launched] == ["unpack", "grouped"]
    assert "_e4m3_e4m3_row_" in gpu.launched[1]


@pytest.mark.parametrize("lacking", ["unpack_weights", "_e4m3_e4m3_row_"])
def test_a_frozen_process_without_them_goes_on(gpu: FakeGpu, lacking: str) -> None:
    """A prewarm of the kernels for prepacked weights alone is enough, as before."""
    gpu.lacking = lacking

    assert call() is PrepackedLaunch
    assert ["_bexact1_" in name for name in gpu.launched] == [True]


def test_a_capture_says_what_is_not_loaded(gpu: FakeGpu) -> None:
    """As it does of other kernels: what a graph has would stay for good."""
    gpu.lacking, gpu.error = "unpack_weights", CaptureMiss
    with pytest.raises(CaptureMiss, match="unpack_weights_exact1_sm_90a is not compiled"):
        call()


def test_the_bench_runs_without_a_gpu() -> None:
    rows = list(bench.unpack())

    assert [row.what.split(":")[0] for row in rows] == ["copy", "torch"] * 2
    assert all(row.value > 0 for row in rows)


def test_many_rows_need_the_kernels_that_unpack_weights() -> None:
    """In `jitgen bench hopper-fp4`, beside those for prepacked weights; few rows need none."""
    case = replace(load()[0].case, rows_per_group=4096)
    prefill = sides.kernels([case])
    unpack = [name for name in prefill if name.startswith("unpack_weights_")]

    assert {name.split("_")[2] for name in unpack} == {"exact1", "folded1"}
    assert any("_e4m3_e4m3_row_" in name for name in prefill)
    assert not any("unpack" in name for name in sides.kernels([load()[0].case]))
    assert not {side.name for side in sides.UNPACKED} & {side.name for side in sides.OURS}
