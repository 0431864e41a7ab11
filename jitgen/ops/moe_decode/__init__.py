# SPDX-License-Identifier: Apache-2.0
"""A whole layer of experts for few tokens, in one launch."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="moe_decode",
    config="jitgen.config.moe_decode:MoeDecodeConfig",
    problem="jitgen.config.moe_decode:MoeDecodeProblem",
    samples="jitgen.ops.moe_decode.samples",
    arguments=(
        *("x", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale"),
        *("exchange", "state", "out"),
    ),
    results=("out",),
    direct="jitgen.ops.moe_decode.call:check_direct",
)
