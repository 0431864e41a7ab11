# SPDX-License-Identifier: Apache-2.0
"""Kinds of transformers' experts: FP8 ones, which have no gradients, and the plans of all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import jitgen
from jitgen.errors import InputError
from jitgen.integrations import transformers as integration
from tests import needs

pytest.importorskip("transformers", reason="needs jitgen[transformers]")

from tests.compile.test_integration_training import FEW  # which need it
from tests.transformers_experts import call, fp8_experts, make

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache", "registered"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


@pytest.fixture(scope="module")
def registered() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        integration.register()
    return


class TestFp8:
    def test_gradients_are_refused_by_name(self) -> None:
        """Of tokens, too, which a frozen model would have to let pass."""
        x = torch.randn(5, 128).bfloat16().requires_grad_()
        given = torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
        words = (
            r"float8_e4m3fn experts have no gradients \(Experts\): call the model under torch.no"
        )
        with pytest.raises(InputError, match=words):
            integration.experts_forward(fp8_experts(), x, *given)

    @pytest.mark.parametrize("flag", ["has_bias", "is_transposed"])
    def test_other_kinds_are_refused_by_name(self, flag: str) -> None:
        module = fp8_experts(**{flag: True})
        given = torch.randn(5, 128).bfloat16(), torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
        with torch.no_grad(), pytest.raises(InputError, match=f"with {flag} = True .*: take group"):
            integration.experts_forward(module, *given)

    def test_tokens_in_float32(self) -> None:
        """As a norm gives them under autocast; they are quantised anyway."""
        module = fp8_experts()
        x, given = torch.randn(5, 128), (torch.tensor([[0, 1]] * 5), torch.rand(5, 2))
        with torch.no_grad():
            found = integration.experts_forward(module, x, *given)
            expected = integration.experts_forward(module, x.bfloat16(), *given)

        assert found.dtype is torch.float32
        assert torch.equal(found.bfloat16(), expected)


class TestPlans:
    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("name", sorted(FEW))
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_they_hold_all_that_is_asked_for(self, name: str, dtype: torch.dtype) -> None:
        """Without gradients, whatever the batch: nothing compiles behind them."""
        module = make(name, dtype)
        module.config._experts_implementation = integration.IMPLEMENTATION
        assert integration.prewarm(module, max_tokens=32, arch="cpu", jobs=1).ok
        with jitgen.Session(on_miss="error"), torch.no_grad():
            for tokens in (1, 7, 32):
                module(*call(dtype, tokens))

    def test_of_types_without_kernels_there_are_none(self) -> None:
        with pytest.raises(InputError, match=r"sm_90a has no kernels .* torch\.float32"):
            integration.plan(make("MixtralExperts", torch.float32), max_tokens=8, arch="sm_90a")

    def test_of_a_model_without_memory(self) -> None:
        """In the build of an image a model is on meta."""
        for dtype in (torch.bfloat16, torch.float16):
            module = make("MixtralExperts", dtype).to("meta")
            assert integration.plan(module, max_tokens=8, arch="sm_90a").sweeps
