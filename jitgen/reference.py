# SPDX-License-Identifier: Apache-2.0
"""What the kernels compute, in plain float32 torch: under the names of the operations."""

from jitgen.ops.grouped_gemm.reference import grouped_gemm

__all__ = ["grouped_gemm"]
