# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of OpenAI that vLLM ships for gpt-oss: bfloat16 activations."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.operands import SETS, Ready, Tokens, Weights
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import imported
from jitgen.bench.peers.mxfp4 import folder_of_vllm

_NUM_WARPS = 8
"""Of a program, which the order of scales depends on; what vLLM takes."""


class TritonKernels(Side):
    """`triton_kernels.matmul_ogs` in its layouts for Hopper, without split-K, as vLLM calls it."""

    name = "triton_kernels"
    note = "vLLM's copy; Hopper's layouts of values and scales, split_k 1"

    def __init__(self) -> None:
        third_party = str(folder_of_vllm() / "third_party")
        if third_party not in sys.path:
            sys.path.append(third_party)
        names = ("matmul_ogs", "routing", "tensor", "tensor_details.layout", "numerics")
        self._matmul, self._routing, self._tensor, self._layout, self._numerics = map(_part, names)
        flags = _part("matmul_ogs_details.opt_flags")
        flags.update_opt_flags_constraints({"split_k": 1})

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product of groups whose rows are in order."""
        groups, _, _ = weights.sizes
        sets = weights.once(self.name, lambda: [self._weights(weights) for _ in range(SETS)])
        counts = torch.tensor(tokens.row_counts, dtype=torch.int32, device=tokens.x.device)
        places = self._routing.compute_expt_data(counts, groups, len(tokens.x))
        routing = self._routing.RoutingData(None, counts, groups, 1, places)
        paired = tokens.paired(sets)
        calls = [
            partial(
                self._matmul.matmul_ogs,
                tokens.x,
                values,
                None,
                routing,
                precision_config=precision,
                y=out.unsqueeze(0),
            )
            for (values, precision), out in paired
        ]
        return Ready(
            calls=tuple(calls),
            out=paired[0][1],
            expected=tokens.product("bf16", tokens.x.float, weights.values),
            num_bytes=weights.num_bytes + tokens.x.nbytes + paired[0][1].nbytes,
        )

    def _weights(self, weights: Weights) -> tuple[Any, Any]:
        """Return values and scales with K in front of N, in the layouts that its kernels like."""
        layout, tensor = self._layout, self._tensor
        of_values, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        values = tensor.wrap_torch_tensor(_along_n(weights.packed), dtype=tensor.FP4)
        values = tensor.convert_layout(values, of_values, **options)
        of_scale, options = layout.make_default_matmul_mxfp4_w_scale_layout(
            mx_axis=1, num_warps=_NUM_WARPS
        )
        scale = tensor.wrap_torch_tensor(_along_n(weights.scale))
        scale = tensor.convert_layout(scale, of_scale, **options)
        flexible = self._matmul.FlexCtx(rhs_data=self._numerics.InFlexData())
        return values, self._matmul.PrecisionConfig(weight_scale=scale, flex_ctx=flexible)


def _part(name: str) -> Any:
    return imported(f"triton_kernels.{name}", "triton_kernels")


def _along_n(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)
