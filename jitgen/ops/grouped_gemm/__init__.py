# SPDX-License-Identifier: Apache-2.0
"""The grouped GEMM: a linear layer of many experts."""

from jitgen.ops.protocol import Operation

OPERATION = Operation(
    name="grouped_gemm",
    config="jitgen.ops.grouped_gemm.config:KernelConfig",
    problem="jitgen.ops.grouped_gemm.config:Problem",
    samples="jitgen.verify.problem",
    arguments=("a", "b", "a_scale", "b_scale", "groups", "out"),
    results=("out",),
    beside="jitgen.ops.grouped_gemm.prepared_ways:kernels",
    direct="jitgen.ops.grouped_gemm.direct:check",
)
