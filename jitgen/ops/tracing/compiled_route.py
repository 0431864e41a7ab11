# SPDX-License-Identifier: Apache-2.0
"""
What torch.compile reads in the place of `route` and `sort_pairs`.

See `jitgen.ops.tracing.compiled`, which does the same for other operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.config.route import RouteConfig
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments
from jitgen.ops.tracing import route as traced
from jitgen.runtime.override import Override

_kept: dict[int, RouteConfig | Override] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name(config: RouteConfig | Override, device: torch.device) -> str | None:
    """Return what stands for `config` in a graph, and keep it, for its identity is guarded on."""
    _kept[id(config)] = config
    return traced.name_of(config, device, "scores")


def route(  # noqa: PLR0913, PLR0917  # as the public one
    scores: Tensor,
    top_k: int,
    scoring: str,
    bias: Tensor | None,
    expert_groups: int,
    top_groups: int,
    renormalize: bool,
    scale: float,
    first_expert: int,
    local_experts: int | None,
    out: Routing | None,
    config: RouteConfig | Override | None,
) -> Routing:
    """Call the operation, which is all that the graph holds."""
    given = Arguments(
        scores=scores,
        top_k=top_k,
        scoring=scoring,
        bias=bias,
        expert_groups=expert_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        scale=scale,
        first_expert=first_expert,
        local_experts=local_experts,
        out=out,
    )
    name = None if config is None else _name(config, scores.device)
    return traced.call(given, name)  # type: ignore[return-value]


def sort_pairs(
    topk_ids: Tensor,
    experts: int,
    first_expert: int,
    local_experts: int | None,
    out: Sorting | None,
    config: RouteConfig | Override | None,
) -> Sorting:
    """Call the operation, which is all that the graph holds."""
    given = Arguments(
        topk_ids=topk_ids,
        experts=experts,
        first_expert=first_expert,
        local_experts=local_experts,
        out=out,
    )
    name = None if config is None else _name(config, topk_ids.device)
    return traced.call(given, name)  # type: ignore[return-value]
