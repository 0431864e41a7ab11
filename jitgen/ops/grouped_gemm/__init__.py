# SPDX-License-Identifier: Apache-2.0
"""The grouped GEMM: the linear layers of many experts in one call."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="grouped_gemm",
    config="jitgen.config.grouped_gemm:GroupedGemmConfig",
    problem="jitgen.config.grouped_gemm:GroupedGemmProblem",
    samples="jitgen.ops.grouped_gemm.cases",
    arguments=("a", "b", "a_scale", "b_scale", "groups", "out"),
    results=("out",),
    beside="jitgen.ops.grouped_gemm.prepacked_algorithms:kernels",
    direct="jitgen.ops.grouped_gemm.direct:check",
)
