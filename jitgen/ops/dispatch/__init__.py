# SPDX-License-Identifier: Apache-2.0
"""Sends the tokens of each rank to every rank: the first step of a layer that ranks share."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="dispatch",
    config="jitgen.config.dispatch:DispatchConfig",
    problem="jitgen.config.dispatch:DispatchProblem",
    samples="jitgen.ops.dispatch.samples",
    arguments=(
        *("x", "topk_ids", "topk_weights", "inbox", "peers", "state"),
        *("out_x", "out_ids", "out_weights"),
    ),
    results=(
        *("out_x", "out_ids", "out_weights", "out_scale"),
        *("offs", "permutation", "inverse"),
    ),
    direct="jitgen.ops.dispatch.call:check_direct",
)
