# SPDX-License-Identifier: Apache-2.0
"""References of operations in plain float32 torch, under the names of the operations."""

from typing import TYPE_CHECKING

from jitgen.ops.activation_quantize.reference import activation_quantize
from jitgen.ops.add_lora.reference import add_lora
from jitgen.ops.combine.reference import combine
from jitgen.ops.grouped_gemm.reference import grouped_gemm
from jitgen.ops.grouped_gemm_wgrad.reference import grouped_gemm_wgrad
from jitgen.ops.moe_fc2_dense.reference import moe_fc2_dense
from jitgen.ops.permute_quantize.reference import permute_quantize
from jitgen.ops.route.reference import route, sort_pairs
from jitgen.support.moved import renamed

__all__ = [
    "activation_quantize",
    "add_lora",
    "combine",
    "grouped_gemm",
    "grouped_gemm_wgrad",
    "moe_fc2_dense",
    "permute_quantize",
    "route",
    "sort_pairs",
]


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
