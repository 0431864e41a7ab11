# SPDX-License-Identifier: Apache-2.0
"""Recorded routings: what a file may hold, what becomes of it, and what comes with jitgen."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from jitgen import plans
from jitgen.bench.choice.cases import Case, kernels_of, recorded_cases
from jitgen.bench.choice.recorded import (
    MATRICES,
    MOST_BYTES,
    SHIPPED,
    Record,
    Recorded,
    load,
    record,
    save,
)
from jitgen.bench.choice.report import ChoiceReport, Measured
from jitgen.config import Arch, DType, Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError
from tests.record_routings.__main__ import MIXTURES, uneven
from tests.record_routings.model import CONTEXT, Model

PLANS = {
    8: "mixtral-8x22b",
    32: "gpt-oss",
    64: "deepseek-v2-lite",
    128: "qwen3-moe",
    160: "qwen3-moe",
    256: "deepseek-v3",
    384: "kimi-k2",
}
PLAIN: dict[str, Any] = {
    "model": "Mine/7x-b.1",
    "layer": 3,
    "experts": 8,
    "top_k": 2,
    "tokens": 5,
    "counts": [5, 0, 1, 2, 0, 0, 1, 1],
}
OWN = {**PLAIN, "matrices": [[512, 256], [256, 512]]}


def written(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "routings.json"
    path.write_text(json.dumps({"records": records}), encoding="utf-8")
    return path


@pytest.mark.parametrize("document", [PLAIN, OWN])
def test_a_record_comes_back_as_it_was(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "routings.json"
    made = Record.from_json(document)
    save([made, made], path, "two of mine")

    assert made.to_json() == document
    assert load(path) == (made, made)
    assert json.loads(path.read_text(encoding="utf-8"))["about"] == "two of mine"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "a\x1b[2J"}, "model must be 1 to 64 letters"),
        ({"model": 3}, "model must be 1 to 64 letters"),
        ({"layer": -1}, "layer must be a whole number from 0 to 9999 (got -1)"),
        ({"layer": True}, "layer must be a whole number"),
        ({"experts": 0}, "experts must be a whole number from 1 to 4096 (got 0)"),
        ({"top_k": 9}, "top_k is 9, and there are 8 experts"),
        ({"tokens": 2**20 + 1}, "tokens must be a whole number from 1 to 1048576"),
        ({"counts": "5"}, "counts must be a list"),
        ({"counts": [5, 5]}, "counts must have a number for each of 8 experts (got 2)"),
        ({"counts": [6, 0, 0, 2, 0, 0, 1, 1]}, "from 0 to 5 (got 6)"),
        ({"counts": [5, 0, 1.0, 2, 0, 0, 1, 1]}, "a count of 5 tokens must be a whole number"),
        ({"counts": [5, 0, 0, 2, 0, 0, 1, 1]}, "must add up to 10, 2 for each of 5 tokens (got 9)"),
        ({"matrices": [[512]]}, "matrices must be pairs [N, K] (got [512])"),
        ({"matrices": [[1, 1]] * 9}, "matrices must be a list of at most 8"),
        ({"matrices": [[512, 0]]}, "a size of matrices must be a whole number from 1"),
        ({"experts": 9, "counts": [0, *PLAIN["counts"]]}, 'say which sizes to measure: "matrices"'),
        ({"expert": 8}, "a record has no field 'expert'; it may have model, layer"),
    ],
    ids=str,
)
def test_what_is_no_record(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """One line, which names the file and the record."""
    path = written(tmp_path, PLAIN, {**PLAIN, **change})
    with pytest.raises(ConfigError) as caught:
        load(path)

    assert str(caught.value).startswith(f"{path}: record 2: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PLAIN)
def test_what_a_record_lacks(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, {key: value for key, value in PLAIN.items() if key != name})
    with pytest.raises(ConfigError, match=f"record 1: a record needs '{name}'"):
        load(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[", "it is no JSON"),
        ("[]", "it needs an object with a list 'records'"),
        ('{"records": {}}', "it needs an object with a list 'records'"),
        ('{"records": []}', "its list 'records' is empty"),
        ('{"records": [3]}', "record 1: a record must be an object"),
        ("[" * 40 + "]" * 40, "it nests deeper than 32 levels"),
    ],
)
def test_what_is_no_file_of_routings(content: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "routings.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=reason):
        load(path)


def test_a_file_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "routings.json"
    path.touch()
    os.truncate(path, MOST_BYTES + 1)
    with pytest.raises(ConfigError, match="are the most that are read"):
        load(path)
    with pytest.raises(ConfigError, match="does not hold routings: No such file"):
        load(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match="does not hold routings: "):
        load(tmp_path)


def test_indices_of_a_router_make_a_record() -> None:
    ids = torch.tensor([[3, 0], [0, 7], [7, 0]], dtype=torch.int32)
    made = record(ids, experts=8, model="mine", layer=1)

    assert made.counts == (3, 0, 0, 1, 0, 0, 0, 2)
    assert (made.tokens, made.top_k, made.layer) == (3, 2, 1)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([0, 1], r"topk_ids must be \(tokens, top_k\) integers"),
        ([[0.5, 1.0]], r"topk_ids must be \(tokens, top_k\) integers"),
        ([[0, 8]], r"topk_ids must be from 0 to 7 \(got 0 to 8\)"),
        ([[-1, 2]], r"topk_ids must be from 0 to 7 \(got -1 to 2\)"),
        ([[5, 2], [1, 1]], "an expert once for each token"),
    ],
)
def test_what_is_of_no_router(ids: list[Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        record(torch.tensor(ids), experts=8, model="mine", layer=1)


def test_a_record_becomes_a_case_of_each_matrix_and_layout() -> None:
    cases = recorded_cases([Record.from_json(PLAIN), Record.from_json(OWN)])

    assert len({str(case) for case in cases}) == len(cases) == 12
    assert Counter(case.problem.layout for case in cases) == dict.fromkeys(Layout, 4)
    assert {(case.problem.n, case.problem.k) for case in cases[:6]} == set(MATRICES[8])
    assert {(case.problem.n, case.problem.k) for case in cases[6:]} == {(512, 256), (256, 512)}
    for case in cases:
        assert case.row_counts == tuple(PLAIN["counts"])
        assert case.problem.m == sum(PLAIN["counts"])
        if case.problem.layout is Layout.CONTIGUOUS:
            assert case.asked.m == 5 * 128  # five experts have rows
        assert Case.from_json(case.to_json()) == case


def test_a_report_keeps_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    (case, *_) = recorded_cases([Record.from_json(OWN)])
    report = ChoiceReport(
        family="recorded", seed=0, found=[Measured(case=case, times_us={"one": 2.0})]
    )
    report.save(path)

    assert ChoiceReport.read(path) == report


def test_a_report_whose_rows_do_not_fit_its_problem() -> None:
    made = Recorded(number=1, record=Record.from_json(PLAIN))
    problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=11, n=512, k=256)
    with pytest.raises(ConfigError, match="has 10 rows of 8 experts, and the problem 11 of 8"):
        _ = Case(problem=problem, routing=made).row_counts


@pytest.mark.parametrize("experts", MATRICES)
def test_sizes_are_those_of_shipped_plans(experts: int) -> None:
    sizes = {
        (problem.n, problem.k)
        for problem in plans.load(PLANS[experts]).problems(Arch.SM_90A)
        if problem.groups == experts
        and problem.operands.b_dtype is DType.E4M3
        and problem.scale_granularity is ScaleGranularity.BLOCK128
    }

    assert sizes >= set(MATRICES[experts])


def test_what_comes_with_jitgen() -> None:
    """Each mixture, layer and size once, uneven as no router deals that was only drawn evenly."""
    records = load()
    of = {each: sum(one.experts == each for one in records) for each in MIXTURES}

    assert of == dict.fromkeys(MIXTURES, 16)
    assert len({(each.model, each.layer, each.tokens) for each in records}) == len(records)
    assert all(each.top_k == MIXTURES[each.experts][0] for each in records)
    assert all(uneven(each.counts)[0] > 0.05 for each in records)
    assert "They are not of the models" in SHIPPED.read_text(encoding="utf-8")
    assert SHIPPED.stat().st_size < 60_000
    cases = recorded_cases(records)
    assert len({str(case) for case in cases}) == 288
    assert len(kernels_of(cases, Arch.SM_90A)) < 40


def test_a_trained_mixture_sends_each_token_to_its_experts() -> None:
    """One layer of the recorded models beside the same, expert by expert, with float64 sums."""
    torch.manual_seed(0)
    layer = Model(8, 2, 16).mixtures[0].double()
    x = torch.randn(CONTEXT, layer.up.shape[1], dtype=torch.float64)
    out = layer(x)
    shares = layer.router(x).softmax(-1)
    weights, ids = shares.topk(2)
    weights = weights / weights.sum(-1, keepdim=True)
    expected = torch.zeros_like(x)
    for token in range(CONTEXT):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            hidden = torch.nn.functional.gelu(x[token] @ layer.up[expert])
            expected[token] += weight * (hidden @ layer.down[expert])

    torch.testing.assert_close(out, expected)
    assert torch.equal(layer.chosen, ids)
