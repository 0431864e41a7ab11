# SPDX-License-Identifier: Apache-2.0
"""`route` and `sort_pairs` on an emulated GPU: every kind of score, one cluster and many."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.config import Arch
from jitgen.config.config import DType
from jitgen.config.route import RouteConfig, Scoring
from jitgen.formats.protocol import TORCH
from jitgen.ops.route.samples import Sizes, make, solved
from jitgen.ops.solved import Solved
from jitgen.verify import verify
from jitgen.verify.gpu import device
from tests import needs
from tests.compile.kernels import of_words, on_gpu

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = [
    "sigmoid_f32_e128_bias_grouped_t128_c2_spread",
    "softmax_bf16_e64_t128_c4",
    "given_e128_t128_c2_pdl",
    "softmax_bf16_e512_t512_c1",
    "softmax_f32_e32_bias_t128_c1_spread",
    "sigmoid_bf16_e256_grouped_t256_c2",
    "softmax_f32_e128_grouped_t128_c2_pdl",
    "given_e64_t128_c2_spread_pdl",
    "sigmoid_f32_e256_bias_grouped",
    "sqrtsoftplus_f32_e128_bias_t128_c2",
    "identity_f16_e64_grouped_t128_c2_spread",
    "sqrtsoftplus_bf16_e512_grouped_t512_c1",
    "sigmoid_f32_e1024_bias_t256_c2",
    "given_e1024_t256_c2_spread",
    "softmax_bf16_e1024_grouped_t256_c1_spread",
    "softmax_f32_e64_softcap_t128_c2",
    "sigmoid_bf16_e64_bias_grouped_max_t128_c1",
    "sqrtsoftplus_f16_e32_grouped_max_softcap_t128_c2_spread",
    "sqrtsoftplus_f32_e256_hashed_t256_c2",
    "softmax_bf16_e32_softcap_hashed_t128_c1_spread",
    "sqrtsoftplus_f32_e64_bias_load_t128_c2",
    "sigmoid_bf16_e64_hashed_load_t128_c2_spread",
]
"""Every kind of score, with and without bias and groups; few warps, which get several tokens."""

OFTEN = [*KERNELS[:3], KERNELS[7], *KERNELS[9:11], *KERNELS[15:17], KERNELS[18], KERNELS[20]]
"""Each kind of score and both forms, for every push; in the last, threads share counts."""


config_of = partial(of_words, RouteConfig)


PARTS = [
    pytest.param(config_of(words), marks=() if words in OFTEN else pytest.mark.nightly, id=words)
    for words in KERNELS
]
CHOOSING = [part for part in PARTS if not {"given", "hashed"} & {*str(part.id).split("_")}]
SORTING = config_of(KERNELS[2])


def emulated(config: RouteConfig, sizes: Sizes, case: Solved) -> None:
    """Let an emulated GPU solve a case, and require that it is right."""
    report = jitgen.emulate(
        on_gpu(config), *case.tensors, sizes.num_sms, modes="eager", num_sms=sizes.num_sms
    )

    assert report.is_clean, report.findings
    assert case.wrong() == 0


@pytest.mark.parametrize("config", PARTS)
class TestEveryKernel:
    @pytest.mark.nightly
    def test_verified(self, config: RouteConfig) -> None:
        """In every quick mode: ties, experts of others, lanes without any; all code is reached."""
        found = verify(config, Arch.SM_90A, artifact=on_gpu(config))

        assert found.is_right, found.to_json()

    @pytest.mark.sampled(10)
    @pytest.mark.parametrize("tokens", [1, 2, 7, 300])
    def test_few_tokens_and_many(self, config: RouteConfig, tokens: int) -> None:
        """CTAs without a token, warps with one pair, and with more than 32."""
        sizes = replace(Sizes.of(config, Arch.SM_90A)[1], tokens=tokens)
        emulated(config, sizes, make(config, sizes, is_exact=tokens % 2 == 0))


def row(config: RouteConfig, values: Tensor, sizes: Sizes) -> None:
    dtype = TORCH[config.scores_dtype or DType.F32]
    bias = torch.zeros(values.shape[1]) if config.bias else None
    emulated(config, sizes, solved(config, sizes, values.to(dtype), bias))


@pytest.mark.parametrize("config", CHOOSING)
def test_what_is_not_finite(config: RouteConfig) -> None:
    """NaN is below all; a row of them, or of equal logits, takes the lowest experts."""
    (sizes, _) = Sizes.of(config, Arch.SM_90A)
    values = torch.randn(5, sizes.experts, generator=torch.Generator().manual_seed(0))
    values[0, ::3], values[1], values[2], values[3, 5] = math.nan, math.nan, 0.0, -math.inf
    values[2, 1::2] = -0.0
    row(config, values, replace(sizes, tokens=5))


def test_a_row_that_does_not_begin_at_whole_vectors() -> None:
    """Logits are loaded one by one then, and no other thing changes."""
    config = config_of("softmax_bf16_e64_t128_c4")
    sizes = replace(Sizes.of(config, Arch.SM_90A)[0], tokens=6)
    wide = torch.randn(6, 67, generator=torch.Generator().manual_seed(0)).bfloat16()
    for start in (1, 2):
        emulated(config, sizes, solved(config, sizes, wide[:, start : start + 64], None))


def test_an_expert_twice() -> None:
    """Pairs of one token with one expert are as good as others: the lower slot comes first."""
    sizes = replace(Sizes.of(SORTING, Arch.SM_90A)[0], tokens=40)
    ids = torch.full((40, 8), 5, dtype=torch.int32)
    ids[::2, 3] = 2**31 - 1
    ids[1::2, 4] = -(2**31)
    emulated(SORTING, sizes, solved(SORTING, sizes, ids, None))


def test_stores_into_other_ctas_need_the_fence_of_their_barriers() -> None:
    """st.async signals a barrier of another CTA; without the fence it may not see one there."""
    config, fence = config_of(OFTEN[0]), "fence.mbarrier_init.release.cluster;"
    kernel, sizes = on_gpu(config), Sizes.of(config, Arch.SM_90A)[0]
    assert fence in kernel.ptx
    without = replace(kernel, ptx=kernel.ptx.replace(fence, ""))
    case = make(config, sizes, is_exact=True)

    report = jitgen.emulate(
        without, *case.tensors, sizes.num_sms, modes="eager", num_sms=sizes.num_sms
    )
    found = [str(finding) for _, finding in report.findings if finding.kind == "proxy"]
    assert any("no fence.mbarrier_init" in text and "st.async" in text for text in found)


@pytest.mark.parametrize("tokens", [3, pytest.param(700, marks=pytest.mark.nightly)])
def test_the_public_functions(tokens: int) -> None:
    """Selection, workspace and all, for few tokens and for a prompt."""
    x = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"top_k": 4, "first_expert": 8, "local_experts": 16}
    with device(Arch.SM_90A, num_sms=16) as reports:
        found = jitgen.route(x, **options)
        sorting = jitgen.sort_pairs(found.topk_ids, experts=32, first_expert=8, local_experts=16)
    expected = jitgen.reference.route(x, **options)

    assert len(reports) == 2
    torch.testing.assert_close(found.topk_weights, expected.topk_weights)
    assert all(torch.equal(a, b) for a, b in zip(found[1:], expected[1:], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(sorting, expected[2:], strict=True))


def test_kinds_are_covered() -> None:
    found = {config_of(words).scoring for words in OFTEN}

    assert found == set(Scoring)
