# SPDX-License-Identifier: Apache-2.0
"""SwiGLU of a gate-up result and its quantisation: what an MoE layer does between its GEMMs."""

from jitgen.ops.protocol import Operation

OPERATION = Operation(
    name="silu_mul_quantize",
    config="jitgen.ops.silu_mul_quantize.config:SiluMulQuantizeConfig",
    problem="jitgen.ops.silu_mul_quantize.config:SiluMulQuantizeProblem",
    samples="jitgen.ops.silu_mul_quantize.samples",
    arguments=("x", "groups", "q", "scale"),
    results=("q", "scale"),
    direct="jitgen.ops.silu_mul_quantize.direct:check",
)
