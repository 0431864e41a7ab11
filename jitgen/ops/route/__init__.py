# SPDX-License-Identifier: Apache-2.0
"""Routing: the experts of each token, and its rows after sorting by expert."""

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
