# SPDX-License-Identifier: Apache-2.0
"""
torch's grouped matrix products, by torch's names, with torch's arguments and torch's order of
weights: drop-ins whose products jitgen's kernels compute.

Weights are (G, K, N) here and (G, N, K) in `jitgen.grouped_gemm`. Which it is nobody guesses from
shapes or strides: gpt-oss has K = N = 2880. The function that is called says it.

All four forms have kernels. What torch takes and no kernel reads as it lies is copied, which a
warning tells once: see `jitgen.torch.operands`.

Importing this package registers every operation, ``torch.ops.jitgen.*``: who loads a graph that
holds some needs no more.
"""

from jitgen.ops.tracing import combine as _combine
from jitgen.ops.tracing import grouped_gemm as _grouped_gemm
from jitgen.ops.tracing import grouped_gemm_wgrad as _grouped_gemm_wgrad
from jitgen.ops.tracing import moe_fc2_dense as _moe_fc2_dense
from jitgen.ops.tracing import permute_quantize as _permute_quantize
from jitgen.ops.tracing import prepared_gemm as _prepared_gemm
from jitgen.ops.tracing import quantize as _quantize
from jitgen.ops.tracing import route as _route
from jitgen.ops.tracing import silu_mul_quantize as _silu_mul_quantize
from jitgen.torch.grouped import grouped_mm
from jitgen.torch.scaled import scaled_grouped_mm

__all__ = ["grouped_mm", "scaled_grouped_mm"]

_REGISTERED = (
    *(_combine, _grouped_gemm, _grouped_gemm_wgrad, _moe_fc2_dense),
    *(_permute_quantize, _prepared_gemm, _quantize, _route, _silu_mul_quantize),
)
