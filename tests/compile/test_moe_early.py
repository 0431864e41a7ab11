# SPDX-License-Identifier: Apache-2.0
"""A layer's launches for few tokens, which start early: chosen, planned, and right on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.config import Arch
from jitgen.config.route import RouteProblem
from jitgen.layer.early import EARLY_TOKENS, JOINED, PRODUCTS, SHARED, joined_tokens
from jitgen.runtime.session import current
from jitgen.verify import device
from tests import needs
from tests.moe_cases import FORMATS, make

PLAIN = ("bf16", "bf16_bias", "block128", "row")
"""Formats whose weights lie as they were quantised."""


class TestTheChoice:
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_early_launch_is_planned(self, form: str) -> None:
        """A prewarm of the plan has each of them, and no early one more."""
        case = make(form)
        layer = jitgen.MoELayer(case.config, case.weights, max_tokens=300)
        planned = {each.name("sm_90a") for each in layer.configs("sm_90a")}
        with device("sm_90a"):
            asked = {
                config.name("sm_90a")
                for tokens in range(1, EARLY_TOKENS + 1)
                for is_sorted in (False, True)
                for config in layer._chain.for_tokens(tokens, is_sorted=is_sorted).configs.values()
            }
        words = ("_earlyb_", "_pdl_", "_sort_")
        early = {name for name in planned if any(word in name for word in words)}

        assert asked == {name for name in early if not name.startswith("route")}

    @pytest.mark.parametrize("form", FORMATS)
    def test_few_tokens(self, form: str) -> None:
        case = make(form, numerics="invariant")  # without split K, which loads nothing early
        layer = jitgen.MoELayer(case.config, case.weights)
        with device("sm_90a"):
            configs = layer._chain.for_tokens(2).configs
            after_sorting = layer._chain.for_tokens(2, is_sorted=True).configs

        early = {"activation_quantize", *(PRODUCTS if form in PLAIN else ())}
        assert set(configs) == (early | {JOINED}) - {"gate_up"}, "whose weights, it cannot know"
        assert set(after_sorting) == early
        assert {SHARED, "route"}.isdisjoint(configs), "these start early for every caller"
        assert all(jitgen.check(config, "sm_90a") for config in configs.values())

    def test_one_launch_sorts_and_gathers_few_pairs(self) -> None:
        case = make("block128")
        chain = jitgen.MoELayer(case.config, case.weights)._chain
        most = joined_tokens(case.config)
        assert 1 <= most < EARLY_TOKENS
        with device("sm_90a"):
            assert JOINED in chain.for_tokens(most).configs
            assert JOINED not in chain.for_tokens(most + 1).configs
            assert JOINED not in replace(chain, joins=False).for_tokens(1).configs
            problem = RouteProblem(m=1, experts=8, top_k=2, scoring="given")
            route = jitgen.select(problem, "sm_90a").config
            assert JOINED not in replace(chain, configs={"route": route}).for_tokens(1).configs

    def test_no_other_has_any(self) -> None:
        """Many tokens, other targets, callers that want none; and what is asked for wins."""
        case = make("block128")
        chain = jitgen.MoELayer(case.config, case.weights)._chain
        assert chain.for_tokens(2).configs == {}
        with device("sm_90a"):
            assert chain.for_tokens(EARLY_TOKENS + 1).configs == {}
            assert chain.for_tokens(0).configs == {}
            assert replace(chain, starts_early=False).for_tokens(2).configs == {}
            asked = chain.for_tokens(2).configs["activation_quantize"]
            other = replace(asked, tiling=replace(asked.tiling, use_pdl=False))
            found = replace(chain, configs={"activation_quantize": other}).for_tokens(2).configs
            assert found["activation_quantize"] == other

    def test_no_call_waits_for_the_compiler_without_need(self) -> None:
        """A config that is asked for has no neighbours that serve while it is compiled."""
        case = make("block128")
        chain = jitgen.MoELayer(case.config, case.weights)._chain
        with jitgen.Session(on_miss="fallback"), device("sm_90a"):
            assert chain.for_tokens(2).configs == {}

    def test_a_bias_is_added_by_what_loads_early(self) -> None:
        case = make("block128", numerics="invariant")
        bias = torch.zeros(case.weights.groups, 2 * case.weights.intermediate)
        weights = replace(case.weights, w13_bias=bias)
        with device("sm_90a"):
            chain = jitgen.MoELayer(case.config, weights)._chain
            configs = chain.for_tokens(2, is_sorted=True).configs

        assert configs["gate_up"].schedule.early_b
        assert [configs[name].epilogue.bias for name in PRODUCTS] == [True, False]

    def test_what_no_kernel_does_is_said_by_the_launch(self) -> None:
        """Rows of 4 values of bfloat16 are no whole 16 bytes."""
        case = make("bf16")
        plain = (case.weights.w13[:, :8], case.weights.w2[..., :4])
        weights = jitgen.ExpertWeights(w13=plain[0].contiguous(), w2=plain[1].contiguous())
        with device("sm_90a"):
            layer = jitgen.MoELayer(replace(case.config, intermediate=4), weights)
            configs = layer._chain.for_tokens(2, is_sorted=True).configs

        assert "gate_up" in configs
        assert "down" not in configs

    def test_a_choice_is_made_once(self) -> None:
        """Warm calls tell configs apart by what they are, not by what is in them."""
        case = make("block128")
        with device("sm_90a"):
            first, again = (
                jitgen.MoELayer(case.config, case.weights)._chain.for_tokens(2).configs
                for _ in range(2)
            )
            assert all(again[name] is config for name, config in first.items())
            current.get().forget()
            assert not current.get().chains

    def test_n_contiguous_is_the_selectors(self) -> None:
        """Weights of bfloat16 may lie so; such kernels load nothing early."""
        case = make("bf16")
        plain = (case.weights.w13, case.weights.w2)
        turned = [w.mT.contiguous().mT for w in plain]  # type: ignore[union-attr]
        weights = jitgen.ExpertWeights(w13=turned[0], w2=turned[1])
        with device("sm_90a"):
            configs = jitgen.MoELayer(case.config, weights)._chain.for_tokens(2).configs

        assert not set(PRODUCTS) & set(configs)


@needs.compiler
@needs.linker
@pytest.mark.nightly
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("is_sorted", [False, True], ids=["joined", "sorted"])
@pytest.mark.parametrize("form", ["block128", "bf16"])
def test_a_layer_on_a_gpu(form: str, is_sorted: bool) -> None:
    """Emulated, each launch with what it may read before the one in front has ended."""
    case = make(form, tokens=3)
    config = case.config
    order = jitgen.reference.sort_pairs(case.topk_ids, experts=config.experts)
    with device("sm_90a") as reports:
        found = jitgen.moe(
            *case.given[:1],
            topk_weights=case.topk_weights,
            topk_ids=case.topk_ids,
            sorting=order if is_sorted else None,
            numerics="invariant",  # without split K, which loads nothing early
            **case.named,
        )

    assert case.error(found) < case.tolerance
    assert len(reports) == 5, "the launch that sorts is saved either way"
    assert sum("_sort_" in report.name for report in reports) == (0 if is_sorted else 1)
    assert sum("_earlyb_" in report.name for report in reports) == (2 if is_sorted else 1)
    assert sum("_pdl_" in report.name for report in reports) == 1
    assert all(report.is_clean for report in reports)
    assert torch.isfinite(found).all()
    assert {report.arch for report in reports} == {str(Arch.SM_90A)}
