# SPDX-License-Identifier: Apache-2.0
"""A layer that ranks share: tokens go to all ranks, and what each rank has of them comes back."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.distributed import ProcessGroup

from jitgen.config import Numerics
from jitgen.errors import InputError
from jitgen.layer.call import check, check_weights, run
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Workspace
from jitgen.ops import tensors as common
from jitgen.parallel import Wire, connect, share


def wire_of(
    group: ProcessGroup | Wire, config: MoEConfig, weights: ExpertWeights, max_tokens: int | None
) -> Wire:
    """
    Return what ranks reach each other by: `group` itself, or one that is made for a layer.

    Raises:
        InputError: It is neither, or `max_tokens` is missing.
    """
    if isinstance(group, ProcessGroup):
        if max_tokens is None:
            raise InputError("max_tokens", "must be given with a group, the same on every rank")
        return connect(
            group,
            hidden=config.hidden,
            top_k=config.top_k,
            max_tokens=max_tokens,
            device=weights.device,
        )
    if not isinstance(group, Wire):
        raise InputError(
            "group",
            "must be a group of torch.distributed, or what jitgen.parallel.connect returned "
            f"(got {type(group).__name__})",
        )
    return group


def config_of(config: MoEConfig, wire: Wire) -> MoEConfig:
    """
    Return the config of this rank: its own, or of a whole layer its share of the experts.

    Raises:
        InputError: It asks for what ranks do not promise.
    """
    if config.numerics is not None and Numerics(config.numerics) is Numerics.INVARIANT:
        raise InputError(
            "numerics", "must be fast with a group: sums depend on which experts share a rank"
        )
    if wire.ranks == 1 or config.groups < config.experts:
        return config
    if wire.ranks > config.experts:
        raise InputError("group", f"must have at most {config.experts} ranks, one for each expert")
    first, count = share(config.experts, wire.rank, wire.ranks)
    return replace(config, first_expert=first, local_experts=count)


def run_on_ranks(  # noqa: PLR0913, PLR0917  # each is one thing to say
    chain: Chain,
    wire: Wire,
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared: Tensor | None,
    out: Tensor | None,
    workspace: Workspace | None,
    shared_weights: Tensor | None,
    rank_tokens: int | None,
) -> Tensor:
    """
    Run a layer over all ranks, in as many passes as all need.

    Raises:
        InputError: An argument is wrong.
    """
    if is_compiling():
        raise InputError("group", "must be None in what torch.compile compiles")
    check(chain, x, topk_weights, topk_ids, shared, out)
    check_weights(chain, x, shared, shared_weights)
    given = {"x": x, "topk_weights": topk_weights, "shared": shared, "out": out}
    given |= {"shared_weights": shared_weights, **chain.weights.tensors}
    common.refuse_gradients(given, "a layer of several ranks")
    tokens, most = x.shape[0], wire.max_tokens
    every = most if rank_tokens is None else rank_tokens
    if type(every) is not int or every < tokens:
        raise InputError(
            "rank_tokens",
            f"must be at least {tokens}, the tokens of x, and the same on every rank (got {every})",
        )
    ids = common.short_ids(topk_ids).contiguous()
    parts = []
    for first in range(0, every, most):
        part = slice(min(first, tokens), min(first + most, tokens))
        room = min(most, every - first)
        received = wire.dispatch(
            x[part].contiguous(), ids[part], topk_weights[part].contiguous(), room
        )
        y = run(chain, received.x, received.topk_weights, received.topk_ids, workspace=workspace)
        parts.append(
            wire.combine(
                y,
                part.stop - part.start,
                None if shared is None else shared[part],
                None if shared_weights is None else shared_weights[part],
                None if out is None else out[part],
            )
        )
    if out is not None:
        return out
    return torch.cat([x.new_empty(0, x.shape[1]), *parts]) if len(parts) != 1 else parts[0]
