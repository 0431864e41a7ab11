# SPDX-License-Identifier: Apache-2.0
"""SwiGLU of a gate-up result and its quantisation: what an MoE layer does between its GEMMs."""

from jitgen.ops.silu_mul_quantize.reference import activated, silu_mul_quantize

__all__ = ["activated", "silu_mul_quantize"]
