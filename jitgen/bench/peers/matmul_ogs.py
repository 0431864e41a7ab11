# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels of OpenAI that vLLM ships for gpt-oss."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call
from jitgen.bench.hopper_fp4.operands import SETS, Tokens, Weights
from jitgen.bench.hopper_fp4.plain import Plain, plain
from jitgen.bench.hopper_fp4.sides import ROW, WIDE, Side
from jitgen.bench.peers import imported, require
from jitgen.bench.peers.vllm import folder_of_vllm
from jitgen.bench.runner import Ready
from jitgen.config import DType
from jitgen.config.prepacked import PrepackedFormat

_FORMS = (PrepackedFormat.MXFP4, PrepackedFormat.MXFP8)

_NUM_WARPS = 8
"""Warps of a program, as in vLLM; the order of scales depends on it."""

_CONSTRAINTS = {"split_k": 1, "is_persistent": False}
"""Its persistent kernels need tensor cores with MX scales, which Hopper does not have."""


class TritonKernels(Side):
    """
    `triton_kernels.matmul_ogs`, without split-K, as vLLM calls it: MXFP4 in its layouts for Hopper,
    MXFP8 row by row, for which it has no layout. Scales of e4m3 tokens multiply the result.
    """

    def __init__(self, name: str, form: str, tokens: DType) -> None:
        has_form = form in _FORMS
        require(has_form, "it has weights with a power of two for each 32 along K, and no others")
        self.name = name
        is_mxfp4 = form == PrepackedFormat.MXFP4
        layouts = (
            "Hopper's layouts of values and scales" if is_mxfp4 else "values and scales by row"
        )
        self.note = f"vLLM's copy; {layouts}, split_k 1"
        self._form, self._kind = form, WIDE if tokens is DType.BF16 else ROW
        third_party = str(folder_of_vllm() / "third_party")
        if third_party not in sys.path:
            sys.path.append(third_party)
        names = ("matmul_ogs", "routing", "tensor", "tensor_details.layout", "numerics")
        self._matmul, self._routing, self._tensor, self._layout, self._numerics = map(_part, names)
        flags = _part("matmul_ogs_details.opt_flags")
        flags.update_opt_flags_constraints(_CONSTRAINTS)

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product of groups whose rows are in order."""
        groups, _, _ = weights.sizes
        found = plain(weights, self._form)
        sets = weights.once(self.name, lambda: [self._weights(found) for _ in range(SETS)])
        counts = torch.tensor(tokens.row_counts, dtype=torch.int32, device=tokens.x.device)
        places = self._routing.compute_expt_data(counts, groups, len(tokens.x))
        routing = self._routing.RoutingData(None, counts, groups, 1, places)
        a, *scales = self._kind.quantize(tokens.x)

        def call(made: tuple[Any, Any], out: Tensor) -> Call:
            values, precision = made
            return partial(
                self._matmul.matmul_ogs,
                a,
                values,
                None,
                routing,
                precision_config=precision,
                gammas=scales[0] if scales else None,
                y=out.unsqueeze(0),
            )

        expected = tokens.product(
            f"{self._form} plain {self._kind.product}",
            partial(self._kind.values, tokens.x, a, *scales),
            found.values,
        )
        size = found.num_bytes + sum(x.nbytes for x in (a, *scales))
        return tokens.ready(sets, call, expected, num_bytes=size)

    def _weights(self, found: Plain) -> tuple[Any, Any]:
        """Return values and scales with K before N, in the layouts that its kernels require."""
        layout, tensor = self._layout, self._tensor
        scale = tensor.wrap_torch_tensor(_along_n(found.scale.clone()))
        if found.dtype is DType.E2M1:
            of_values, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
            values = tensor.wrap_torch_tensor(_along_n(found.codes), dtype=tensor.FP4)
            values = tensor.convert_layout(values, of_values, **options)
            of_scale, options = layout.make_default_matmul_mxfp4_w_scale_layout(
                mx_axis=1, num_warps=_NUM_WARPS
            )
            scale = tensor.convert_layout(scale, of_scale, **options)
        else:
            values = tensor.wrap_torch_tensor(_along_n(found.codes.clone()))
        return values, self._matmul.PrecisionConfig(
            weight_scale=scale,
            flex_ctx=self._matmul.FlexCtx(rhs_data=self._numerics.InFlexData()),
            out_dtype=torch.bfloat16,
        )


def _part(name: str) -> Any:
    return imported(f"triton_kernels.{name}", "triton_kernels")


def _along_n(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)
