# SPDX-License-Identifier: Apache-2.0
"""`route` before it is compiled: names, rules, choices, samples, the reference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import jitgen
from jitgen.config import Arch, Config
from jitgen.config.route import RouteConfig, RouteProblem, Scoring, Tiling
from jitgen.errors import ConfigError, UnsupportedConfig
from jitgen.ops.route import samples
from jitgen.targets.legality import check, rules
from jitgen.targets.sm_90a.devices import H200
from tests.refusals import assert_refused

DEEPSEEK = RouteConfig(scoring="sigmoid", scores_dtype="f32", bias=True, grouped=True, experts=256)
GIVEN = RouteConfig(scoring="given")
ONE, TOGETHER = Tiling(threads=256, cluster=1, use_pdl=True), Tiling(threads=256, use_pdl=True)
MORE = Tiling(threads=512, use_pdl=True)
SPREAD = Tiling(threads=512, cluster=2, is_spread=True, use_pdl=True)
PROBLEM = RouteProblem(m=64, experts=256, top_k=8)


def test_scores_that_were_never_timed_have_a_note() -> None:
    """The model was fitted to sigmoids and given experts; all but softmax passed for fitted."""
    found = rules("sm_90a", "route")
    noted = [
        scoring
        for scoring in Scoring
        if found.confidence_note(replace(PROBLEM, scoring=scoring), H200)
    ]

    assert noted == [Scoring.SOFTMAX, Scoring.SQRTSOFTPLUS, Scoring.IDENTITY]


@pytest.mark.parametrize(
    "words", ["softmax_bf16_e256_c8", "softmax_e4m3_e256", "given", "sigmoid_f32_e256_grouped_bias"]
)
def test_what_is_no_name(words: str) -> None:
    """Each kernel has one name, in which a default does not show."""
    with pytest.raises(ConfigError, match="no kernel name"):
        Config.parse(f"route_{words}_sm_90a")


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (replace(GIVEN, bias=True), "E_GIVEN"),
        (replace(DEEPSEEK, scores_dtype=None), "E_SCORES"),
        (replace(GIVEN, softcap=True), "E_GIVEN"),
        (replace(DEEPSEEK, hashed=True), "E_HASHED"),
        (replace(DEEPSEEK, grouped=False, group_scoring="max"), "E_GROUPS"),
        (replace(DEEPSEEK, experts=160), "E_EXPERTS"),
        (replace(DEEPSEEK, tiling=Tiling(threads=96)), "E_THREADS"),
        (replace(DEEPSEEK, tiling=Tiling(threads=128)), "E_THREADS"),
        (replace(DEEPSEEK, tiling=Tiling(cluster=16)), "E_CLUSTER"),
        (replace(DEEPSEEK, experts=1024), "E_THREADS"),
        (replace(DEEPSEEK, experts=1024, tiling=Tiling(threads=512)), "E_THREADS"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_sm_90a(config: RouteConfig, code: str) -> None:
    assert_refused(config, "sm_90a", code)


def test_shared_memory_of_sm_120a() -> None:
    """Every tiling that may be chosen fits there, too."""
    for most in (
        replace(DEEPSEEK, experts=512),
        replace(DEEPSEEK, experts=1024, tiling=Tiling(threads=256)),
    ):
        assert check(most, "sm_120a").derived.shared_bytes < 99 * 1024


def test_a_cpu_kernel_is_one_thread() -> None:
    verdict = check(replace(DEEPSEEK, tiling=Tiling(is_spread=True)), "cpu")

    assert verdict.code == "E_TILING"
    assert check(verdict.proposal, "cpu")


@pytest.mark.parametrize(
    ("tokens", "tiling"),
    [(1, ONE), (64, TOGETHER), (128, MORE), (4096, SPREAD)],
)
def test_choices(tokens: int, tiling: Tiling) -> None:
    """One CTA for a token, one cluster for a step of decoding, all SMs for a prompt."""
    choice = jitgen.select(replace(PROBLEM, m=tokens), "sm_90a")

    assert choice.config.tiling == tiling
    assert {each.config.tiling for each in choice.candidates} == {ONE, TOGETHER, MORE, SPREAD}


def test_a_cta_has_a_thread_for_each_expert() -> None:
    choice = jitgen.select(replace(PROBLEM, m=1, experts=512), "sm_90a")

    assert {each.config.tiling.threads for each in choice.candidates} == {512}


@pytest.mark.parametrize("scoring", ["softmax", "given"])
def test_a_thread_has_four_of_many_experts(scoring: str) -> None:
    problem = RouteProblem(m=1, experts=896, top_k=16, scoring=scoring)
    choice = jitgen.select(problem, "sm_120a")

    assert {each.config.tiling.threads for each in choice.candidates} == {256}
    assert len(choice.candidates) == 3


@pytest.mark.parametrize(
    ("sizes", "experts"),
    [
        ({"experts": 8}, 32),
        ({"experts": 129}, 256),
        ({"experts": 160, "expert_groups": 8}, 256),  # groups of 20: three lanes each
        ({"experts": 144, "expert_groups": 16}, 256),  # of 9: two lanes each, of 8 experts
        ({"experts": 288, "expert_groups": 32}, 512),  # of 9: a lane each, of 16 experts
        ({"experts": 896}, 1024),  # Kimi-K3
        ({"experts": 8, "scoring": "given", "local_experts": 300}, 512),
    ],
    ids=str,
)
def test_room_for_experts(sizes: dict[str, Any], experts: int) -> None:
    """Groups begin with a lane of their own, so that lanes run out before experts do."""
    problem = RouteProblem(m=1, top_k=2, **sizes)

    assert jitgen.select(problem, "sm_90a").config.experts == experts


@pytest.mark.parametrize(
    "sizes", [{"experts": 1025}, {"experts": 512, "expert_groups": 64}, {"top_k": 33}], ids=str
)
def test_sizes_without_a_kernel(sizes: dict[str, int]) -> None:
    with pytest.raises(UnsupportedConfig, match="must"):
        jitgen.select(replace(PROBLEM, **sizes), "sm_90a")


def test_problems_that_are_none() -> None:
    with pytest.raises(ConfigError, match="leave them out for given"):
        RouteProblem(m=1, experts=8, top_k=2, scoring="given", bias=True)
    with pytest.raises(ConfigError, match="a multiple of expert_groups"):
        RouteProblem(m=1, experts=8, top_k=2, expert_groups=3)
    with pytest.raises(ConfigError, match="one of bf16, f16, f32"):
        RouteProblem(m=1, experts=8, top_k=2, scores_dtype="e4m3")


def test_samples_have_every_kind_of_expert() -> None:
    """Experts of others, no expert, ties; and results that begin as nothing that may come out."""
    for config in (
        GIVEN,
        DEEPSEEK,
        replace(DEEPSEEK, bias=False),
        RouteConfig(scoring="softmax", scores_dtype="bf16", experts=64),
    ):
        for sizes in samples.Sizes.of(config, Arch.SM_90A):
            case = samples.make(config, sizes, is_exact=True)

            assert case.wrong() == sum(each.found.numel() for each in case.outputs)
            counts = case.output("offs").expected.diff()
            assert counts.unique().numel() > 2
        inverse = case.output("inverse").expected
        assert (inverse == -1).any()
        assert (inverse >= 0).any()
    for each in case.outputs:
        each.write(each.expected)
    assert case.wrong() == 0
    case.output("topk_weights").found[0, 0] *= 1.001
    case.output("permutation").found[3] = 0
    assert case.wrong() == 2


class TestReference:
    def test_ties_go_to_the_lower_expert(self) -> None:
        found = jitgen.reference.route(torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0]]), top_k=5)

        assert found.topk_ids.tolist() == [[1, 2, 0, 3, 4]]
        assert found.topk_weights.sum() == pytest.approx(1)

    def test_nan_is_below_everything(self) -> None:
        x = torch.tensor([[math.nan, -math.inf, 1.0, math.nan]])
        found = jitgen.reference.route(x, top_k=4, scoring="sigmoid", renormalize=False)

        assert found.topk_ids.tolist() == [[2, 1, 0, 3]]
        assert found.topk_weights[0, :2].tolist() == [pytest.approx(torch.sigmoid(x[0, 2])), 0.0]
        assert found.topk_weights[0, 2:].isnan().all()

    def test_groups_as_deepseek_has_them(self) -> None:
        """The bias counts for groups and experts, and not for weights."""
        chance = torch.Generator().manual_seed(0)
        x, bias = torch.randn(50, 32, generator=chance), torch.randn(32, generator=chance)
        options: dict[str, Any] = {
            "expert_groups": 8,
            "top_groups": 3,
            "correction_bias": bias,
            "routed_scaling_factor": 2.5,
        }
        found = jitgen.reference.route(x, top_k=4, scoring="sigmoid", **options)
        for token in range(50):
            scores = torch.sigmoid(x[token])
            groups = (scores + bias).view(8, 4)
            sums = groups.sort(dim=1).values[:, -2:].sum(1)
            kept = sums.argsort(descending=True)[:3].tolist()
            experts = [e for e in range(32) if e // 4 in kept]
            best = sorted(experts, key=lambda e: -float(scores[e] + bias[e]))[:4]
            weights = scores[best] / scores[best].sum() * 2.5

            assert found.topk_ids[token].tolist() == best
            torch.testing.assert_close(found.topk_weights[token], weights)

    def test_groups_by_their_best(self) -> None:
        """As DeepSeek-V2 has them: the group of 3 has the best expert, that of 2 the best pair."""
        x = torch.tensor([[3.0, -9.0, 2.0, 2.5, 0.0, 0.0]])
        options: dict[str, Any] = {"top_k": 1, "expert_groups": 3, "scoring": "sigmoid"}

        assert jitgen.reference.route(x, **options).topk_ids.tolist() == [[3]]
        options["group_scoring"] = "max"
        assert jitgen.reference.route(x, **options).topk_ids.tolist() == [[0]]

    def test_logits_with_a_bound(self) -> None:
        x = torch.tensor([[3.0, -2.0, 0.5]])
        options: dict[str, Any] = {"top_k": 3, "scoring": "identity", "renormalize": False}
        found = jitgen.reference.route(x, softcap=2.0, **options).topk_weights
        bounded = 2.0 * torch.tensor([[1.5, 0.25, -1.0]]).tanh()

        torch.testing.assert_close(found, bounded)

    def test_sorted_pairs(self) -> None:
        ids = torch.tensor([[2, 0], [5, 2], [-1, 4], [2, 2]], dtype=torch.int32)
        offs, permutation, inverse = jitgen.reference.sort_pairs(
            ids, experts=6, first_expert=1, local_experts=4
        )

        assert offs.tolist() == [0, 4, 4, 5]  # experts 1, 2, 3 and 4
        assert permutation.tolist() == [0, 3, 6, 7, 5, -1, -1, -1]
        assert inverse.tolist() == [[0, -1], [-1, 1], [-1, 4], [2, 3]]


def test_a_smaller_kernel_is_preferred() -> None:
    assert rules(Arch.CPU, "route").candidates(PROBLEM)[0].experts == 256
