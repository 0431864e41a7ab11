# SPDX-License-Identifier: Apache-2.0
"""
The sum over ranks of their partial results for each token: the last step of a layer that ranks
share.
"""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="combine_ranks",
    config="jitgen.config.combine_ranks:CombineRanksConfig",
    problem="jitgen.config.combine_ranks:CombineRanksProblem",
    samples="jitgen.ops.combine_ranks.samples",
    arguments=("y", "inverse", "topk_weights", "inbox", "peers", "state", "out"),
    results=("out",),
    direct="jitgen.ops.combine_ranks.call:check_direct",
)
