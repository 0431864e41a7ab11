# SPDX-License-Identifier: Apache-2.0
"""A layer's launches for few tokens, which start early: chosen, planned, and right on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.config import Arch
from jitgen.layer.early import EARLY_TOKENS, PRODUCTS, SHARED
from jitgen.runtime.session import current
from jitgen.verify import device
from tests import needs
from tests.moe_cases import FORMATS, make

PLAIN = ("bf16", "block128", "row")
"""Formats whose weights lie as they were quantised."""


class TestTheChoice:
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_early_launch_is_planned(self, form: str) -> None:
        """Whoever prewarms the plan has each of them, and no early one more."""
        case = make(form)
        layer = jitgen.MoELayer(case.config, case.weights, max_tokens=300)
        planned = {each.name("sm_90a") for each in layer.configs("sm_90a")}
        with device("sm_90a"):
            asked = {
                config.name("sm_90a")
                for tokens in range(1, EARLY_TOKENS + 1)
                for config in layer._chain.for_tokens(tokens).configs.values()
            }

        assert asked == {name for name in planned if "_earlyb_" in name or "_pdl_" in name}

    @pytest.mark.parametrize("form", FORMATS)
    def test_few_tokens(self, form: str) -> None:
        case = make(form)
        layer = jitgen.MoELayer(case.config, case.weights)
        with device("sm_90a"):
            configs = layer._chain.for_tokens(2).configs

        early = {"route", "silu_mul_quantize", *(PRODUCTS if form in PLAIN else ())}
        assert set(configs) == early
        assert SHARED not in configs, "it starts early whoever asks"
        assert all(jitgen.check(config, "sm_90a") for config in configs.values())

    def test_nobody_else_has_any(self) -> None:
        """Many tokens, other targets, whoever wants none; and what is asked for wins."""
        case = make("block128")
        chain = jitgen.MoELayer(case.config, case.weights)._chain
        assert chain.for_tokens(2).configs == {}
        with device("sm_90a"):
            assert chain.for_tokens(EARLY_TOKENS + 1).configs == {}
            assert chain.for_tokens(0).configs == {}
            assert replace(chain, starts_early=False).for_tokens(2).configs == {}
            asked = chain.for_tokens(2).configs["route"]
            other = replace(asked, tiling=replace(asked.tiling, use_pdl=False))
            assert replace(chain, configs={"route": other}).for_tokens(2).configs["route"] == other

    def test_nobody_waits_for_the_compiler_who_need_not(self) -> None:
        """A config that is asked for has no neighbours that serve while it is compiled."""
        case = make("block128")
        chain = jitgen.MoELayer(case.config, case.weights)._chain
        with jitgen.Session(on_miss="fallback"), device("sm_90a"):
            assert chain.for_tokens(2).configs == {}

    def test_a_bias_is_added_by_what_loads_early(self) -> None:
        case = make("block128")
        bias = torch.zeros(case.weights.groups, 2 * case.weights.intermediate)
        weights = replace(case.weights, w13_bias=bias)
        with device("sm_90a"):
            configs = jitgen.MoELayer(case.config, weights)._chain.for_tokens(2).configs

        assert configs["gate_up"].schedule.early_b
        assert [configs[name].epilogue.bias for name in PRODUCTS] == [True, False]

    def test_what_no_kernel_does_is_said_by_the_launch(self) -> None:
        """Rows of 4 values of bfloat16 are no whole 16 bytes."""
        case = make("bf16")
        plain = (case.weights.w13[:, :8], case.weights.w2[..., :4])
        weights = jitgen.ExpertWeights(w13=plain[0].contiguous(), w2=plain[1].contiguous())
        with device("sm_90a"):
            layer = jitgen.MoELayer(replace(case.config, intermediate=4), weights)
            configs = layer._chain.for_tokens(2).configs

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
@pytest.mark.parametrize("form", ["block128", "bf16"])
def test_a_layer_on_a_gpu(form: str) -> None:
    """Emulated, each launch with what it may read before the one in front has ended."""
    case = make(form, tokens=3)
    with device("sm_90a") as reports:
        found = jitgen.moe(
            *case.given[:1], topk_weights=case.topk_weights, topk_ids=case.topk_ids, **case.named
        )

    assert case.error(found) < case.tolerance
    assert sum("_earlyb_" in report.name for report in reports) == 2
    assert sum("_pdl_" in report.name for report in reports) == 2
    assert all(report.is_clean for report in reports)
    assert torch.isfinite(found).all()
    assert {report.arch for report in reports} == {str(Arch.SM_90A)}
