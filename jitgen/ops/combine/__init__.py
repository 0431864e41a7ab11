# SPDX-License-Identifier: Apache-2.0
"""The weighted sum of each token's rows: the last step of a layer."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="combine",
    config="jitgen.config.combine:CombineConfig",
    problem="jitgen.config.combine:CombineProblem",
    samples="jitgen.ops.combine.samples",
    arguments=("y", "inverse", "topk_weights", "out"),
    results=("out",),
    direct="jitgen.ops.combine.call:CALL.check_direct",
)
