# SPDX-License-Identifier: Apache-2.0
"""Mistakes in calls with prepacked weights: one error each, with the argument and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitgen
from jitgen import quantize
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import InputError
from jitgen.runtime.devices import Emulated
from jitgen.runtime.session import current

G, M, N, K = 2, 5, 72, 96
EXACT, WIDE = (
    quantize.prepack_mxfp4_from(torch.ones(G, N, K), layout=layout)
    for layout in ("exact1", "wide1")
)


def e4m3(*shape: int) -> torch.Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


def good(**changes: Any) -> dict[str, Any]:
    given = {
        "a": e4m3(M, K),
        "b": EXACT,
        "a_scale": torch.ones(M),
        "offs": torch.tensor([2, M], dtype=torch.int32),
    }
    return {name: value for name, value in {**given, **changes}.items() if value is not None}


CONFIG = GroupedGemmConfig.parse(
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_asrow_bexact1_t8x128x128_c1x1_acc1_bias_cpu"
)[0]
MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"a": torch.ones(M, K)},
        "a: must be float8_e4m3fn, which weights prepacked as exact1 are for",
    ),
    ({"a": torch.ones(M, K).bfloat16()}, r"or split it: jitgen.quantize.split_bf16"),
    ({"b": WIDE, "a_scale": None}, "a: must be bfloat16, .*prepack them as exact1 or folded1"),
    ({"a": e4m3(M, 128)}, "a: must have shape .*as b was prepacked with K = 96"),
    ({"a": e4m3(M, 3, K)}, r"a: must have shape \(5, 2, 96\)"),
    ({"a": e4m3(1, M, 2, K)}, "a: must have 2 dimensions.*or one more where bfloat16 was split"),
    ({"a_scale": None}, "a_scale: is required"),
    ({"a_scale": torch.ones(M, 2)}, r"a_scale: must have shape \(5, 1\), for block128 scales"),
    ({"a_scale": torch.ones(2 * M)[::2]}, "a_scale: must be contiguous"),
    ({"a_scale": torch.ones(M).double()}, "a_scale: must be float32"),
    ({"b_scale": torch.ones(G)}, "b_scale: is part of prepacked weights: leave it out"),
    ({"alpha": torch.ones(G)}, "alpha: is part of prepacked weights"),
    ({"bias": torch.ones(N)}, r"bias: must have shape \(2, 72\), which is \(G, N\)"),
    ({"bias": torch.ones(G, N).half()}, "bias: must be float32"),
    ({"offs": None}, "offs: one of offs"),
    ({"offs": torch.tensor([1], dtype=torch.int32)}, r"offs: must have shape \(2,\)"),
    ({"out": torch.empty(M, 64).bfloat16()}, r"out: must have shape \(5, 72\)"),
    ({"out_dtype": torch.float64}, "out_dtype: must be bfloat16 or float16 or float32"),
    ({"expected_m": 0}, "expected_m: must be an integer of at least 1"),
    ({"bias": torch.ones(G, N, requires_grad=True)}, "bias: must not require a gradient"),
    ({"config": CONFIG}, "config: is for a bias, and there is none"),
    (
        {
            "a": e4m3(M, 2, K),
            "a_scale": torch.ones(M, 2),
            "bias": torch.ones(G, N),
            "config": CONFIG,
        },
        "config: must be for ragged, e4m3x2 x e2m1 -> bf16 with mx32 scales of b, row of a and",
    ),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_mistakes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        jitgen.grouped_gemm(**good(**changes))


def test_wide_weights_take_no_scales() -> None:
    a = torch.ones(M, K).bfloat16()
    with pytest.raises(InputError, match="a_scale: belongs to float8_e4m3fn"):
        jitgen.grouped_gemm(**good(a=a, b=WIDE))


def test_a_target_without_such_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    b200 = Emulated(arch=Arch("sm_100a"), num_sms=148, function=lambda config: None)
    monkeypatch.setattr(current.get(), "emulated", b200)

    with pytest.raises(InputError, match="b: was prepacked, and sm_100a has no kernel for that"):
        jitgen.grouped_gemm(**good())
