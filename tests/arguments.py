# SPDX-License-Identifier: Apache-2.0
"""
Arguments of `grouped_gemm` that nothing is wrong with, and every way to get them wrong.

`tests/unit/test_calls.py` tries what is wrong with any tensor of any call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen import quantize
from jitgen.config import Layout, ScaleGranularity
from jitgen.config.grouped_gemm import GroupedGemmConfig, Operands, Tile

G, M, N, K = 3, 24, 136, 272
E4M3 = torch.float8_e4m3fn


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def good(layout: str = "ragged") -> dict[str, Any]:
    """Return arguments of `grouped_gemm` that nothing is wrong with."""
    is_masked = layout == "masked"
    a, a_scale = quantize.per_token_group(torch.ones((G, M, K) if is_masked else (M, K)))
    b, b_scale = quantize.per_block(torch.ones(G, N, K))
    groups = {
        "ragged": {"offs": int32(8, 8, 24)},
        "contiguous": {"m_indices": torch.zeros(M, dtype=torch.int32)},
        "masked": {"masked_m": int32(1, 0, 24)},
    }[layout]
    return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, **groups}


def config(**changes: Any) -> GroupedGemmConfig:
    return GroupedGemmConfig(**{"layout": Layout.RAGGED, "tile": Tile(m=8, n=32, k=128)} | changes)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in good().items() if key != name}


def wrong(**changes: Any) -> dict[str, Any]:
    return good() | changes


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("none", wrong(b=None), r"b: must be a torch tensor \(got NoneType\)"),
    ("latency", wrong(min_latency=1), r"min_latency: must be True, False or None \(got 1\)"),
    ("alpha", wrong(alpha=torch.ones(G)), r"alpha: belongs to nv16 scales"),
    ("no layout", without("offs"), r"offs: one of offs, m_indices and masked_m is required"),
    (
        "two layouts",
        wrong(masked_m=int32(1, 2, 3)),
        r"masked_m: exactly one of .* is allowed \(got offs and masked_m\)",
    ),
    (
        "three layouts",
        wrong(masked_m=int32(1, 2, 3), m_indices=int32(1)),
        r"got offs and m_indices and masked_m",
    ),
    (
        "a dtype",
        wrong(a=torch.ones(M, K, dtype=torch.int8)),
        r"a: must be bfloat16 or float16 or float32 or float4_.* or float8_e4m3fn or uint8 on cpu",
    ),
    ("b dtype", wrong(b=torch.ones(G, N, K)), r"b: must be .*float8_e4m3fn or uint8 \(got"),
    (
        "a rank",
        wrong(a=torch.ones(1, M, K).to(E4M3)),
        r"a: must have 2 dimensions, \(M, K\) for rag",
    ),
    ("b rank", wrong(b=torch.ones(N, K).to(E4M3)), r"b: must have 3 dimensions, \(G, N, K\) \(got"),
    ("no groups", wrong(b=torch.ones(0, N, K).to(E4M3)), r"b: .*at least one group.*list is empty"),
    ("K", wrong(a=torch.ones(M, 256).to(E4M3)), r"a: must have shape \(24, 272\), as b has shape"),
    (
        "a with M and K swapped",
        wrong(a=torch.ones(K, M).to(E4M3)),
        r"a: must have shape \(272, 272\), as b has shape",
    ),
    (
        "masked a with G and M swapped",
        good("masked") | {"a": torch.ones(M, G, K).to(E4M3)},
        r"a: must have shape \(3, 3, 272\), as b has shape .* \(got \(24, 3, 272\)\)",
    ),
    ("masked G", good("masked") | {"masked_m": int32(1, 2)}, r"masked_m: must have shape \(3,\)"),
    (
        "masked a",
        good("masked") | {"a": torch.ones(2, M, K).to(E4M3)},
        r"a: must have shape \(3, 24, 272\), as b has shape \(3, 136, 272\) \(got \(2, 24, 272\)\)",
    ),
    (
        "masked a of other groups, where N is K",
        good("masked")
        | {
            "a": torch.ones(2, M, K).to(E4M3),
            "b": torch.ones(G, K, K).to(E4M3),
            "b_scale": torch.ones(G, 3, 3),
        },
        r"a: must have shape \(3, 24, 272\), as b has shape \(3, 272, 272\) \(got",
    ),
    (
        "empty K",
        wrong(a=torch.ones(M, 0).to(E4M3), b=torch.ones(G, N, 0).to(E4M3)),
        r"b: .*K of at",
    ),
    ("offs dtype", wrong(offs=torch.tensor([1, 2, 3])), r"offs: must be int32 \(got torch.int64\)"),
    ("offs shape", wrong(offs=int32(1, 2)), r"offs: must have shape \(3,\), which is \(G,\) \(got"),
    ("offs rank", wrong(offs=int32(1, 2, 3)[None]), r"offs: must have 1 dimensions, \(G,\)"),
    ("offs stride", wrong(offs=int32(1, 1, 2, 2, 3, 3)[::2]), r"offs: must be contiguous in its"),
    (
        "m_indices shape",
        good("contiguous") | {"m_indices": int32(0, 1)},
        r"m_indices: must have shape \(24,\), which is \(M,\) \(got \(2,\)\)",
    ),
    (
        "no scales",
        wrong(a_scale=None, b_scale=None),
        r"a_scale: is required for float8_e4m3fn oper",
    ),
    ("one scale", wrong(b_scale=None), r"b_scale: is required where the other scale is given"),
    ("other scale", wrong(a_scale=None), r"a_scale: is required where the other scale is given"),
    ("scale rank", wrong(b_scale=torch.ones(1, 1, 1, 1)), r"b_scale: must have 1 dimension \(a sc"),
    (
        "scale dtype",
        wrong(b_scale=torch.ones(G, 2, 3).half()),
        r"b_scale: must be float32 or float8_e4m3fn or float8_e8m0fnu \(got tor",
    ),
    (
        "b_scale N",
        wrong(b_scale=torch.ones(G, 3, 3)),
        r"b_scale: must have shape \(3, 2, 3\), for block128 scales.* \(got \(3, 3, 3\)\)",
    ),
    (
        "both scales K",
        wrong(a_scale=torch.ones(M, 2), b_scale=torch.ones(G, 2, 2)),
        r"b_scale: must have shape \(3, 2, 3\)",
    ),
    (
        "a_scale of rows",
        wrong(a_scale=torch.ones(M)),
        r"a_scale: must have shape \(24, 3\), for block128 scales",
    ),
    ("row keepdim", wrong(a_scale=torch.ones(M, 1), b_scale=torch.ones(G, N, 1)), r"b_scale: must"),
    ("row", wrong(b_scale=torch.ones(G, N)), r"a_scale: must have shape \(24,\), for row scales"),
    ("tensor", wrong(b_scale=torch.ones(G)), r"a_scale: must have shape \(1,\), for tensor scales"),
    ("0-d", wrong(a_scale=torch.tensor(1.0), b_scale=torch.ones(G)), r"a_scale: must have shape"),
    (
        "b_scale stride",
        wrong(b_scale=torch.ones(G, 2, 6)[:, :, ::2]),
        r"b_scale: must be contiguous in its last dimension \(got strides \(12, 6, 2\)\)",
    ),
    ("out_dtype", wrong(out_dtype=torch.int8), r"out_dtype: must be bfloat16 or float16 or float3"),
    (
        "out and out_dtype",
        wrong(out=torch.empty(M, N), out_dtype=torch.bfloat16),
        r"out: must be bfloat16 on cpu \(got torch.float32\)",
    ),
    (
        "out dtype",
        wrong(out=torch.empty(M, N, dtype=torch.int8)),
        r"out: must be bfloat16 or float",
    ),
    (
        "out shape",
        wrong(out=torch.empty(M, 128)),
        r"out: must have shape \(24, 136\), rows of a by",
    ),
    ("out stride", wrong(out=torch.empty(N, M).t()), r"out: must be contiguous in its last dim"),
    ("out overlap", wrong(out=torch.empty(1, N).expand(M, N)), r"out: must not overlap itself"),
    (
        "a stride",
        wrong(a=torch.ones(M, 2 * K).to(E4M3)[:, ::2]),
        r"a: must be contiguous in its la",
    ),
    (
        "b stride",
        wrong(b=torch.ones(G, K, N).to(E4M3).mT),
        r"b: must be contiguous in its last dim",
    ),
    ("device", wrong(b=torch.ones(G, N, K, device="meta").to(E4M3)), r"b: must be on cpu, as a is"),
    (
        "a device",
        wrong(a=torch.ones(M, K, device="meta").to(E4M3)),
        r"a: must be on a CPU or an NV",
    ),
    ("offs device", wrong(offs=int32(1, 2, 3).to("meta")), r"offs: must be on cpu, as a is \(got"),
    ("expected_m", wrong(expected_m=0), r"expected_m: must be an integer of at least 1 \(got 0\)"),
    ("expected_m text", wrong(expected_m=[1]), r"expected_m: must be an integer of at least 1"),
    ("config type", wrong(config="fast"), r"config: must be a GroupedGemmConfig \(got str\)"),
    (
        "config layout",
        wrong(config=config(layout=Layout.MASKED)),
        r"config: must be for ragged, e4m3 x e4m3 -> bf16 with block128 scales.*\(got one for mask",
    ),
    (
        "config types",
        wrong(config=config(operands=Operands(scale_granularity=ScaleGranularity.ROW))),
        r"got one for ragged, e4m3 x e4m3 -> bf16 with row scales",
    ),
]
