# SPDX-License-Identifier: Apache-2.0
"""
torch's grouped matrix products, by torch's names, with torch's arguments and torch's order of
weights: drop-ins whose products jitgen's kernels compute.

Weights are (G, K, N) here and (G, N, K) in `jitgen.grouped_gemm`. Shapes and strides do not
tell which it is: gpt-oss has K = N = 2880. The function that is called does.

All four forms have kernels. What torch takes and no kernel reads as it lies is copied, which a
warning tells once: see `jitgen.torch.operands`.

Importing this package registers every operation, ``torch.ops.jitgen.*``: a program that loads a
graph with some of them needs no more.
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
