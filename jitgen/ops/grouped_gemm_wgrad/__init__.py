# SPDX-License-Identifier: Apache-2.0
"""The gradient of a grouped GEMM's weights: a product whose sums run over the rows of a group."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="grouped_gemm_wgrad",
    config="jitgen.config.grouped_gemm_wgrad:GroupedGemmWgradConfig",
    problem="jitgen.config.grouped_gemm_wgrad:GroupedGemmWgradProblem",
    samples="jitgen.ops.grouped_gemm_wgrad.samples",
    arguments=("dy", "a", "groups", "out"),
    results=("out",),
    direct="jitgen.ops.grouped_gemm_wgrad.call:CALL.check_direct",
)
