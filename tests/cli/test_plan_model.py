# SPDX-License-Identifier: Apache-2.0
"""`jitgen plan from-config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans
from jitgen.config.combine_ranks import CombineRanksProblem
from jitgen.config.dispatch import DispatchProblem
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.config.route import RouteProblem
from tests.cli.conftest import Jitgen

CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "hidden_size": 512,
    "moe_intermediate_size": 384,
    "hidden_act": "silu",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def config(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes), encoding="utf-8")
    return folder / "config.json"


def test_the_plan_of_a_model(jitgen: Jitgen, tmp_path: Path) -> None:
    to = tmp_path / "model.toml"
    words = "--arch sm_90a --expert-ranks 1,8 --ranks 1,2 --max-tokens 256"
    done = jitgen(f"plan from-config {words}", str(config(tmp_path)), "-o", str(to))
    found = [sweep.problem for sweep in plans.load(to).sweeps]
    products = {
        (each.groups, each.n, each.k, str(each.scale_granularity))
        for each in found
        if isinstance(each, GroupedGemmProblem)
    }
    routers = {
        (each.bias, each.expert_groups, str(each.scoring), str(each.scores_dtype))
        for each in found
        if isinstance(each, RouteProblem) and str(each.scoring) != "given"
    }

    assert done.code == 0, done.err
    assert products == {
        (groups, *size, "block128")
        for groups in (4, 32)
        for size in ((768, 512), (512, 384), (512, 512), (512, 256))
    }
    assert routers == {(True, 4, "sigmoid", "f32"), (True, 4, "sigmoid", "bf16")}
    assert jitgen("prewarm --dry-run --arch sm_90a", str(to)).code == 0


def test_the_plan_of_layers_that_ranks_share(jitgen: Jitgen, tmp_path: Path) -> None:
    """Each rank computes the tokens of all; a router has those of its own, for all experts."""
    to = tmp_path / "model.toml"
    words = "--arch sm_90a --expert-ranks 4 --max-tokens 32 --group"
    path = config(tmp_path)
    assert jitgen(f"plan from-config {words}", str(path), "-o", str(to)).code == 0
    sweeps = plans.load(to).sweeps
    between = {
        (each.problem.op, each.problem.ranks, each.max_rows)
        for each in sweeps
        if isinstance(each.problem, DispatchProblem | CombineRanksProblem)
    }
    sorting = {
        each.max_rows
        for each in sweeps
        if isinstance(each.problem, DispatchProblem) and each.problem.sorts
    }
    routes = {
        (str(each.problem.scoring) == "given", each.problem.local_experts, each.max_rows)
        for each in sweeps
        if isinstance(each.problem, RouteProblem)
    }

    assert sorting == {SORTED}
    assert between == {("dispatch", 4, SORTED), ("dispatch", 4, 32), ("combine_ranks", 4, 32)}
    assert (True, 8, 128) in routes
    assert {each for each in routes if not each[0]} == {(False, 32, 32)}
    assert jitgen("prewarm --dry-run --arch sm_90a", str(to)).code == 0


SORTED = (
    16  # tokens of each rank: the last edge of the selector with at most 512 pairs of four ranks
)
_FEW, _MANY, _ALL = (1, 127, False), (128, 512, True), (1, 512, False)


@pytest.mark.parametrize(
    ("options", "formats", "rooms"),
    [
        ("", {"none", "block128"}, {_ALL, _MANY}),
        ("--quantise --flags-from 128", {"block128"}, {_FEW, _MANY}),
        ("--no-quantise --flags-from 0", {"none"}, {_ALL}),
        ("--flags-from 513", {"none", "block128"}, {_ALL}),
        ("--quantise --max-tokens 127", {"block128"}, {_FEW}),
    ],
)
def test_the_ways_of_tokens_in_a_plan(
    jitgen: Jitgen, tmp_path: Path, options: str, formats: set[str], rooms: set[Any]
) -> None:
    """Without options a plan has what `connect` takes by itself, and what it takes without that."""
    to = tmp_path / "model.toml"
    words = "--arch sm_90a --expert-ranks 4 --max-tokens 512 --group"
    done = jitgen(f"plan from-config {words} {options}", str(config(tmp_path)), "-o", str(to))
    sweeps = plans.load(to).sweeps
    every = [each for each in sweeps if isinstance(each.problem, DispatchProblem)]
    sent = [each for each in every if not each.problem.sorts]
    sums = [each for each in sweeps if isinstance(each.problem, CombineRanksProblem)]

    assert done.code == 0
    assert {str(each.problem.format) for each in sent} == formats
    for each in (sent, sums):
        found = {(sweep.min_rows, sweep.max_rows, sweep.problem.by_flags) for sweep in each}
        assert found == rooms
    assert {each.max_rows for each in every if each.problem.sorts} == {SORTED}
    assert len({*sweeps}) == len(sweeps)


def test_standard_output_and_json(jitgen: Jitgen, tmp_path: Path) -> None:
    path = config(tmp_path)
    done = jitgen("plan from-config --arch cpu --max-tokens 64", str(tmp_path))
    document = jitgen("plan from-config --arch cpu --max-tokens 64 --json", str(path)).document

    assert document["plan"] == done.out
    assert (document["file"], document["arch"]) == (None, "cpu")
    assert "32 of 32 experts, 4 for each token, hidden size 512, expert size 384:" in done.err


def test_the_description_has_every_number_of_ranks(jitgen: Jitgen, tmp_path: Path) -> None:
    """It named the experts of the first number alone."""
    config(tmp_path)
    done = jitgen("plan from-config --arch cpu --max-tokens 64 --expert-ranks 1,8", str(tmp_path))

    assert "32 of 32 experts, 4 for each token, hidden size 512, expert size 384; 4 of 32 " in (
        done.err
    )


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ("", {"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ("", {"scoring_func": "tanh"}, "scoring_func = 'tanh'"),
        ("", {"quantization_config": {"quant_method": "awq"}}, "int4 without a group_size"),
        (
            "",
            {"quantization_config": {"quant_method": "awq", "group_size": 64}},
            "int4 in groups of 64",
        ),
        ("", {"quantization_config": {"quant_method": "exl3"}}, "quant_method = 'exl3'"),
        ("--group", {}, "--group needs --max-tokens"),
        ("--no-quantise", {}, "--quantise needs --group"),
        ("--flags-from 64", {}, "--flags-from needs --group"),
        (
            "--group --max-tokens 8 --expert-ranks 4 --flags-from 4",
            {},
            "flags_from: must be 0 or None on cpu, whose kernels have no flags",
        ),
        (
            "--group --max-tokens 8 --expert-ranks 4 --flags-from 1",
            {},
            "flags_from: must be at least 2, 0 or None (got 1)",
        ),
        ("--expert-ranks 5", {}, "must divide the 32 experts"),
        ("--expert-ranks 0", {}, "no list of numbers"),
        ("--ranks x", {}, "no list of numbers"),
        ("--ranks 5", {}, "must divide the 384 columns"),
        ("", {"hidden_size": None}, "columns of a token, H"),
        ("", {"num_experts_per_tok": None}, "experts of a token"),
        ("-o plan.json", {}, "the name of a plan file ends in .toml"),
    ],
)
def test_mistakes(
    jitgen: Jitgen, tmp_path: Path, words: str, changes: dict[str, Any], message: str
) -> None:
    done = jitgen(f"plan from-config --arch cpu {words}", str(config(tmp_path, **changes)))

    assert done.code == 2
    assert message in done.err
    assert not done.out


def test_what_can_be_left_out(jitgen: Jitgen, tmp_path: Path) -> None:
    changes = {
        "scoring_func": "tanh",
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    }
    path = config(tmp_path, **changes)
    done = jitgen("plan from-config --arch cpu --no-router --dequantize", str(path))

    assert done.code == 0
    assert 'dtype = "bf16"' in done.out
    assert "sigmoid" not in done.out


def test_a_config_that_is_not_there(jitgen: Jitgen, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "config.json"):
        done = jitgen("plan from-config", str(path))
        assert done.code == 2
        assert "config.json cannot be read: No such file or directory" in done.err
