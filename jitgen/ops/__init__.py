# SPDX-License-Identifier: Apache-2.0
"""
What users call with tensors: the grouped GEMM, quantisation in the kernels' layout, and the float32
reference.
"""

from jitgen.ops import quantize, reference

__all__ = ["quantize", "reference"]
