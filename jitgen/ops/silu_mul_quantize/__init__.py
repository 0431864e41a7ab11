# SPDX-License-Identifier: Apache-2.0
"""SwiGLU of a gate-up result and its quantisation: the step of an MoE layer between its GEMMs."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="silu_mul_quantize",
    config="jitgen.config.silu_mul_quantize:SiluMulQuantizeConfig",
    problem="jitgen.config.silu_mul_quantize:SiluMulQuantizeProblem",
    samples="jitgen.ops.silu_mul_quantize.samples",
    arguments=("x", "groups", "q", "scale"),
    results=("q", "scale"),
    direct="jitgen.ops.silu_mul_quantize.call:check_direct",
)
