# SPDX-License-Identifier: Apache-2.0
"""SwiGLU of a gate-up result and its quantisation: what stands between the GEMMs of an MoE layer."""

from jitgen.ops.silu_mul_quantize.reference import activated, silu_mul_quantize

__all__ = ["activated", "silu_mul_quantize"]
