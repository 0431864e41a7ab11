# SPDX-License-Identifier: Apache-2.0
"""What the kernels compute, in plain float32 torch: under the names of the operations."""

from jitgen.ops.grouped_gemm.reference import grouped_gemm
from jitgen.ops.moe_fc2_dense.reference import moe_fc2_dense
from jitgen.ops.route.reference import route, sort_pairs
from jitgen.ops.silu_mul_quantize.reference import silu_mul_quantize

__all__ = ["grouped_gemm", "moe_fc2_dense", "route", "silu_mul_quantize", "sort_pairs"]
