# SPDX-License-Identifier: Apache-2.0
"""humming-kernels: CUDA that is generated for every size, and compiled with NVRTC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import SETS, Tokens, Weights
from jitgen.bench.hopper_fp4.plain import Plain, plain
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import imported, require
from jitgen.bench.runner import Ready
from jitgen.config import DType

_GEMM = "grouped_contiguous"
"""Humming's name of ragged groups."""

_TYPES: Mapping[DType, str] = {
    DType.INT4: "uint4",
    DType.E2M1: "float4e2m1",
    DType.E4M3: "float8e4m3",
}
"""Humming's names of types of weights."""

_SCALES: Mapping[torch.dtype, str] = {
    torch.uint8: "float8e8m0",
    torch.float8_e4m3fn: "float8e4m3",
    torch.bfloat16: "bfloat16",
}


class Humming(Side):
    """
    `humming.layer.HummingLayer` with the parameters that its heuristics choose, without further
    tuning. Tokens are bfloat16, or e4m3 with a scale for each of their rows.
    """

    note = "its own heuristics, not tuned"

    def __init__(self, name: str, form: str, tokens: DType) -> None:
        self.name = name
        self._form, self._tokens = form, tokens
        self._forward, self._layer, self._tune = (
            imported(f"humming.{part}", "humming") for part in ("forward", "layer", "tune")
        )

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product; Humming's own kernel quantises the activations beforehand."""
        found = plain(weights, self._form)
        layers = weights.once(self.name, lambda: [self._made(found) for _ in range(SETS)])
        config = layers[0].humming_config
        a, a_scale = self._forward.may_quant_input(config, tokens.x)
        starts = [0, *accumulate(tokens.row_counts)]
        options = {
            "input_scale": a_scale,
            "expert_layout": torch.tensor(starts, dtype=torch.int64, device=a.device),
            "compute_config": {"gemm_type": _GEMM},
            "tuning_config": self._tune.get_heuristics_config(
                config, shape_m=len(tokens.x), gemm_type=_GEMM
            ),
        }
        operands = [a] if a_scale is None else [a, a_scale]
        return tokens.ready(
            layers,
            lambda layer, out: partial(layer, a, outputs=out, **options),
            tokens.product(self.name, partial(_values, *operands), found.values),
            num_bytes=found.num_bytes + sum(x.nbytes for x in operands),
        )

    def _made(self, found: Plain) -> Any:
        groups, n, k = found.sizes
        with torch.device(found.codes.device):
            layer = self._layer.HummingLayer(
                shape_n=n,
                shape_k=k,
                num_experts=groups,
                weight_config=config_of(found),
                input_config={} if self._tokens is DType.BF16 else {"dtype": _TYPES[self._tokens]},
                torch_dtype=torch.bfloat16,
            )
        fits = layer.weight_schema.is_compatible_with(layer.input_schema, torch.bfloat16)
        require(fits, f"humming has no kernel for such weights with {self._tokens} tokens")
        layer.load_from_tensors(tensors_of(found))
        layer.transform()
        return layer


def config_of(found: Plain) -> dict[str, Any]:
    """Return how Humming describes weights; no group of a scale means a scale for each row."""
    config: dict[str, Any] = {
        "dtype": _TYPES[found.dtype],
        "scale_dtype": _SCALES[found.scale.dtype],
        "group_size": 0 if found.scale.shape[2] == 1 else found.shared,
    }
    return config if found.factor is None else {**config, "scale_2_type": "tensor"}


def tensors_of(found: Plain) -> dict[str, Tensor]:
    """Return weights under Humming's names: words of codes along K, and scales."""
    scale = found.scale
    tensors = {
        "weight": found.codes.view(torch.int32),
        "weight_scale": scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale,
    }
    return tensors if found.factor is None else {**tensors, "weight_scale_2": found.factor}


def _values(a: Tensor, a_scale: Tensor | None = None) -> Tensor:
    """Return the values of activations, (M, K) float32."""
    return a.float() if a_scale is None else a.float() * a_scale.float().view(len(a), 1)
