# SPDX-License-Identifier: Apache-2.0
"""The weighted sum of each token's rows: what a layer ends with."""

from jitgen.ops.protocol import Operation

OPERATION = Operation(
    name="combine",
    config="jitgen.ops.combine.config:CombineConfig",
    problem="jitgen.ops.combine.config:CombineProblem",
    samples="jitgen.ops.combine.samples",
    arguments=("y", "inverse", "topk_weights", "out"),
    results=("out",),
    direct="jitgen.ops.combine.direct:check",
)
