# SPDX-License-Identifier: Apache-2.0
"""Commands that take kernels or problems, with those of `moe_fc2_dense`, and its benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench import fc2 as suite
from jitgen.bench import runner
from jitgen.config import Arch
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.ops.moe_fc2_dense.ways import ways
from tests import needs
from tests.cli.conftest import Jitgen

OP = ("--op", "moe_fc2_dense")
SIZES = ("-g", "256", "-m", "64", "-n", "7168", "-k", "256")
CPU = "moe_fc2_dense_e4m3_e4m3_block128_bf16_t8x128x128_c1x1_acc1_cpu"
GPU = "moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_sm_90a"
PLAN = """
[[problems]]
op = "moe_fc2_dense"
groups = 256
rows_per_group = { min = 32, max = 384 }
matrix = { n = 7168, k = 256 }
"""


@pytest.mark.parametrize("arch", ["cpu", "sm_90a", "sm_100a", "sm_103a"])
def test_select(jitgen: Jitgen, arch: str) -> None:
    done = jitgen("select", *OP, *SIZES, "--arch", arch, "--json")

    assert done.code == 0, done.err
    assert done.document["name"].startswith("moe_fc2_dense_e4m3_e4m3_block128_bf16_t")
    assert len(done.document["candidates"]) > 1


def test_configs_explain_every_refusal(jitgen: Jitgen) -> None:
    done = jitgen("configs", *OP, "--arch", "sm_90a", "--all", "--json")

    assert done.code == 0, done.err
    assert "E_REGS" in done.out
    assert GPU in done.out


def test_show_the_source(jitgen: Jitgen) -> None:
    source = jitgen("show", GPU, "--source").out

    assert "def moe_fc2_dense(a, b, a_scale, b_scale, alpha, out, num_ctas, stream):" in source


def test_a_plan_counts_tokens(tmp_path: Path) -> None:
    """Its rows of a group are tokens, which every expert has."""
    path = tmp_path / "fc2.toml"
    path.write_text(PLAN, encoding="utf-8")
    problems = list(plans.load(path).problems(Arch.SM_90A))

    assert {problem.groups for problem in problems} == {256}
    assert {32, 64, 384} <= {problem.m for problem in problems}
    chosen = plans.configs(plans.load(path), Arch.SM_90A)
    assert 1 < len(chosen) <= 11
    assert all(isinstance(config, MoEFc2DenseConfig) for config in chosen)


def test_the_dense_way_is_for_few_tokens() -> None:
    """An expert's weights are read in both; with many tokens the dense GEMM multiplies too much."""
    layer = MoEFc2DenseProblem(groups=256, m=32, n=7168, k=256)
    few, many = (ways(layer.with_mean(tokens), "sm_90a") for tokens in (32, 384))

    assert few.is_dense_faster
    assert not many.is_dense_faster
    assert few.combine_us < many.combine_us


SMALL = suite.case(3, 3, 16, 32, 2)
CASE = replace(SMALL, ratios=(suite._predicted(SMALL.problem, Arch.CPU),))


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_bench(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small case on this machine's CPU: every side, right before it is timed."""
    monkeypatch.setattr(runner, "has_gpu", lambda: False)
    small = replace(suite.SUITE, cases=lambda _: [CASE], rounds=1)
    monkeypatch.setattr(suite, "rows", small.rows)
    done = jitgen("bench", "fc2", "--json")
    rows = done.document["rows"]

    assert done.code == 0, done.err
    assert [row["what"].split(":")[0] for row in rows[:3]] == [
        *("dense", "grouped", "grouped and combine")
    ]
    assert rows[0]["what"] == "dense: 3 tokens, 2 of 3 experts, N16 I32"
    assert CPU in rows[0]["detail"]
    assert all(row["value"] > 0 for row in rows)
    assert rows[-1]["unit"] == "x"


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
def test_bench_refuses_to_time_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "has_gpu", lambda: False)

    def wrong(*_: Any) -> int:
        return 3

    monkeypatch.setattr(suite.SolvedSums, "wrong", wrong)
    with pytest.raises(WrongResult, match="3 tokens, 2 of 3 experts, N16 I32 gives 3 wrong"):
        list(suite.SUITE.measured(CASE, Arch.CPU))
