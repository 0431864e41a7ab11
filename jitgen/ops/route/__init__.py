# SPDX-License-Identifier: Apache-2.0
"""Which experts a token goes to, and where its rows are when they are sorted by them."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="route",
    config="jitgen.config.route:RouteConfig",
    problem="jitgen.config.route:RouteProblem",
    samples="jitgen.ops.route.samples",
    arguments=("scores", "topk_weights", "topk_ids", "offs", "permutation", "inverse"),
    results=("topk_weights", "topk_ids", "offs", "permutation", "inverse", "workspace"),
    direct="jitgen.ops.route.direct:check",
)
