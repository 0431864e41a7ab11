# SPDX-License-Identifier: Apache-2.0
"""humming-kernels, which generates CUDA for every size and compiles it with NVRTC."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import SETS, Ready, Tokens, Weights
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import imported

_GEMM = "grouped_contiguous"
"""Its word for ragged groups."""


class _Humming(Side):
    """`humming.layer.HummingLayer` with the tuning that its heuristics choose, not tuned on."""

    note = "its own heuristics, not tuned"
    _input: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self._forward, self._layer, self._tune = (
            imported(f"humming.{part}", "humming") for part in ("forward", "layer", "tune")
        )

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product; activations are quantised by its own kernel before."""
        layers = weights.once(self.name, lambda: [self._made(weights) for _ in range(SETS)])
        config = layers[0].humming_config
        a, a_scale = self._forward.may_quant_input(config, tokens.x)
        starts = [0, *accumulate(tokens.row_counts)]
        paired = tokens.paired(layers)
        options = {
            "input_scale": a_scale,
            "expert_layout": torch.tensor(starts, dtype=torch.int64, device=a.device),
            "compute_config": {"gemm_type": _GEMM},
            "tuning_config": self._tune.get_heuristics_config(
                config, shape_m=len(tokens.x), gemm_type=_GEMM
            ),
        }
        scales = [] if a_scale is None else [a_scale]
        return Ready(
            calls=tuple(partial(layer, a, outputs=out, **options) for layer, out in paired),
            out=paired[0][1],
            expected=tokens.product(self.name, partial(_values, a, *scales), weights.values),
            num_bytes=weights.num_bytes + paired[0][1].nbytes + sum(x.nbytes for x in (a, *scales)),
        )

    def _made(self, weights: Weights) -> Any:
        groups, n, k = weights.sizes
        layer = self._layer.HummingLayer(
            shape_n=n,
            shape_k=k,
            num_experts=groups,
            weight_config={"quant_method": "mxfp4"},
            input_config=dict(self._input),
            torch_dtype=torch.bfloat16,
        ).to(weights.packed.device)
        layer.load_from_tensors({"weight": weights.packed, "weight_scale": weights.scale})
        layer.transform()
        return layer


class HummingE4m3(_Humming):
    """Activations of e4m3 with a scale for each row."""

    name = "humming e4m3"
    _input: ClassVar[dict[str, str]] = {"dtype": "float8e4m3"}


class HummingBf16(_Humming):
    """Activations of bfloat16."""

    name = "humming bf16"
    _input: ClassVar[dict[str, str]] = {}


def _values(a: Tensor, a_scale: Tensor | None = None) -> Tensor:
    """Return the values of activations, (M, K) float32."""
    return a.float() if a_scale is None else a.float() * a_scale.float().view(len(a), 1)
