# SPDX-License-Identifier: Apache-2.0
"""
Drop-in replacements of torch's grouped matrix products, with torch's names, arguments and order of
weights, computed by jitgen's kernels.

Weights are (G, K, N) here, and (G, N, K) in `jitgen.grouped_gemm`. The order follows from the
function that is called, because shapes and strides may be ambiguous: gpt-oss has K = N = 2880.

All four forms of operands have kernels. Operands that torch accepts but kernels cannot read are
copied, with one warning: see `jitgen.torch.operands`.

Importing this package registers every operation, ``torch.ops.jitgen.*``: a program that loads a
graph with these operations only needs this import.
"""

from jitgen.layer.gradients import operation as _layer
from jitgen.ops.every import CALLS
from jitgen.ops.tracing.library import traced
from jitgen.support.moved import OPERATIONS
from jitgen.torch.grouped import grouped_mm
from jitgen.torch.scaled import scaled_grouped_mm

__all__ = ["grouped_mm", "scaled_grouped_mm"]

for _call in CALLS:
    traced(_call)
    for _old in (old for old, new in OPERATIONS.items() if new == _call.name):
        traced(_call, _old)
_layer()
