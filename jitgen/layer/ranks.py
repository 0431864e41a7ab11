# SPDX-License-Identifier: Apache-2.0
"""
A layer that ranks share: tokens are sent to all ranks, and each rank returns its partial results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.distributed import ProcessGroup

from jitgen.config import Numerics
from jitgen.errors import InputError
from jitgen.layer.call import check, check_weights
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.passes import run_in_passes
from jitgen.layer.weights import ExpertWeights
from jitgen.layer.workspace import Workspace
from jitgen.ops import tensors as common
from jitgen.ops.dispatcher import is_traced, require_apart
from jitgen.parallel import ExpertMap, Wire, connect, share
from jitgen.parallel.moves import Move, spread
from jitgen.parallel.placed import Placed
from jitgen.parallel.windows import Windows
from jitgen.parallel.wire import group_of
from jitgen.selection.numerics import is_invariant

if TYPE_CHECKING:
    from jitgen.layer.module import MoELayer

LAYERS: WeakValueDictionary[int, MoELayer] = WeakValueDictionary()
"""Layers of several ranks by number; torch's graphs refer to them by these numbers."""

_numbers = itertools.count()


def numbered(layer: MoELayer) -> int:
    """Return a new number for a layer, by which `LAYERS` has it."""
    number = next(_numbers)
    LAYERS[number] = layer
    return number


def shared(
    group: ProcessGroup | Wire,
    config: MoEConfig,
    weights: ExpertWeights,
    max_tokens: int | None,
    expert_map: ExpertMap | None,
) -> tuple[Wire, MoEConfig, ExpertWeights]:
    """
    Return the connection of the ranks (`group` itself, or a new one for this layer), and the config
    and weights of this rank. If the config is that of the whole layer, they become this rank's
    share of the experts. With a map, they become the experts in the places of this rank, whose
    weights other ranks send.

    Raises:
        InputError: An argument is wrong, or requests a property that ranks do not have.
    """
    wire = _wire(group, config, weights, max_tokens)
    config = promised(config, wire)
    is_whole = config.groups == config.experts
    if expert_map is not None:
        _require_map(expert_map, config, wire)
    if is_whole and wire.ranks > config.experts:
        raise InputError("group", f"must have at most {config.experts} ranks, one for each expert")
    if is_whole:
        config = _part(config, config.experts, wire)
    if expert_map is None:
        return wire, config, weights
    if weights.groups != config.groups:
        raise InputError(
            "weights",
            f"must be the {config.groups} experts from {config.first_expert} on, the rank's share, "
            f"from which the places of expert_map are filled (got {weights.groups})",
        )
    placed = Placed(wire, expert_map, config.zero_experts, weights.device)
    moved = {
        name: nn.Parameter(each, given.requires_grad) if isinstance(given, nn.Parameter) else each
        for (name, given), each in zip(
            weights.tensors.items(),
            spread(weights.tensors, expert_map, group_of(wire.group_name)).values(),
            strict=True,
        )
    }
    return placed, _part(config, len(expert_map.placed), wire), weights.replaced(moved)


def _wire(
    group: ProcessGroup | Wire, config: MoEConfig, weights: ExpertWeights, max_tokens: int | None
) -> Wire:
    if isinstance(group, ProcessGroup):
        if max_tokens is None:
            raise InputError("max_tokens", "must be given with a group, the same on every rank")
        return connect(
            group,
            hidden=config.hidden,
            top_k=config.top_k,
            max_tokens=max_tokens,
            device=weights.device,
            numerics=config.numerics,
        )
    if not isinstance(group, Wire):
        raise InputError(
            "group",
            "must be a group of torch.distributed, or what jitgen.parallel.connect returned "
            f"(got {type(group).__name__})",
        )
    return group


def _require_map(expert_map: object, config: MoEConfig, wire: Wire) -> None:
    """Check that the map is for the layer's experts and the ranks."""
    if not isinstance(expert_map, ExpertMap):
        kind = type(expert_map).__name__
        raise InputError("expert_map", f"must be a jitgen.parallel.ExpertMap, or None (got {kind})")
    wanted, have = (config.experts, wire.ranks), (expert_map.experts, expert_map.ranks)
    if wanted != have:
        raise InputError("expert_map", f"must be for experts, ranks = {wanted} (got {have})")
    part = _part(config, config.experts, wire)
    if config.groups < config.experts and config != part:
        raise InputError(
            "config",
            f"must be of the whole layer, or of the rank's share, {part.groups} experts from "
            f"{part.first_expert} on, with a map (got {config.groups} from {config.first_expert})",
        )


def _part(config: MoEConfig, experts: int, wire: Wire) -> MoEConfig:
    """Return the config of a rank's share of `experts` experts, or places, of a layer."""
    first, count = share(experts, wire.rank, wire.ranks)
    return replace(config, experts=experts, first_expert=first, local_experts=count)


def move(
    wire: Wire | None, expert_map: ExpertMap, weights: ExpertWeights, done: Callable[[], object]
) -> Move:
    """
    Begin to move weights to the places of another map: see `jitgen.MoELayer.move`.

    Raises:
        InputError: The layer has no map, or the new map is wrong.
    """
    if not isinstance(wire, Placed):
        raise InputError("expert_map", "must be given to MoELayer first, for places")
    return Move(wire, expert_map, weights.tensors, done)


def promised(config: MoEConfig, wire: Wire) -> MoEConfig:
    """
    Return the config; if its numerics are invariant, by itself or by JITGEN_NUMERICS, it says so
    explicitly.

    Raises:
        InputError: The windows of the wire have no room for these numerics.
    """
    if not is_invariant(config.numerics):
        return config
    if isinstance(wire, Windows) and not wire.is_invariant:
        raise InputError(
            "group",
            'must be connected with numerics="invariant" for a layer with these numerics: its '
            "windows have no room for the rows of experts",
        )
    return replace(config, numerics=Numerics.INVARIANT)


def place_of(
    group: object, experts: int | None, first_expert: int, local_experts: int
) -> tuple[Wire, int]:
    """
    Return the connection of a call to other ranks, and the first expert of this rank.

    Raises:
        InputError: `group` is not a result of `jitgen.parallel.connect`, or the given experts are
            not those of this rank.
    """
    if not isinstance(group, Wire):
        raise InputError(
            "group",
            "must be what jitgen.parallel.connect(group, ...) returned, which all ranks call once "
            f"(got {type(group).__name__})",
        )
    if experts is None:
        raise InputError("experts", "must be given with a group: those of all ranks")
    if first_expert:
        return group, first_expert
    first, count = share(experts, group.rank, group.ranks)
    if count != local_experts:
        raise InputError(
            "w13",
            f"must have {count} experts, which jitgen.parallel.share gives rank {group.rank} of "
            f"{group.ranks} (got {local_experts}); other parts need first_expert",
        )
    return group, first


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
    number: int | None = None,
) -> Tensor:
    """
    Run a layer over all ranks. If torch traces the call, it becomes one operation, which refers to
    the layer by `number`.

    Raises:
        InputError: An argument is wrong.
    """
    check(chain, x, topk_weights, topk_ids, shared, out)
    check_weights(chain, x, shared, shared_weights)
    given = {"x": x, "topk_weights": topk_weights, "shared": shared, "out": out}
    given |= {"shared_weights": shared_weights, **chain.weights.tensors}
    common.refuse_gradients(given, "a layer of several ranks")
    every = wire.max_tokens if rank_tokens is None else rank_tokens
    if (not is_compiling() and type(every) is not int) or every < x.shape[0]:
        raise InputError(
            "rank_tokens",
            f"must be at least {x.shape[0]}, the tokens of x, and the same on every rank (got "
            f"{every})",
        )
    if is_compiling() or is_traced(given.values()):
        if number is None:
            raise InputError("group", "must be None where torch traces: trace a jitgen.MoELayer")
        from jitgen.layer.ranks_compiled import layer

        tensors = [*chain.weights.tensors.values()]
        found = layer(
            x, topk_weights, topk_ids, shared, shared_weights, tensors, number, rank_tokens
        )
        return found if out is None else out.copy_(found)
    if out is not None:
        # Passes read x and shared, part by part, before they write the same rows of out.
        apart = {name: each for name, each in given.items() if each is not None}
        require_apart(apart | {"topk_ids": topk_ids}, ("out",), in_place=("x", "shared"))
    of_call = (x, topk_weights, topk_ids, shared, out, shared_weights)
    return run_in_passes(chain, wire, of_call, workspace, every)
