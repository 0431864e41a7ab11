# SPDX-License-Identifier: Apache-2.0
"""
The second GEMM of an MoE layer as one dense GEMM: all experts along K, weighted by the router's
weights.
"""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="moe_fc2_dense",
    config="jitgen.config.moe_fc2_dense:MoEFc2DenseConfig",
    problem="jitgen.config.moe_fc2_dense:MoEFc2DenseProblem",
    samples="jitgen.ops.moe_fc2_dense.samples",
    arguments=("a", "b", "a_scale", "b_scale", "alpha", "out"),
    results=("out",),
    direct="jitgen.ops.moe_fc2_dense.call:CALL.check_direct",
)
