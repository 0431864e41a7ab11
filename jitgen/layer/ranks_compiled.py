# SPDX-License-Identifier: Apache-2.0
"""
A layer of several ranks under a tracer of torch: one operation in the graph.

The connection of ranks is not a tensor, so the operation refers to its layer by a number of this
process. The operation has an effect on other ranks, so torch neither removes calls nor changes
their order.

Other modules import this one only when it is needed, because it imports the whole of torch.compile.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch._higher_order_ops import effects
from torch._ops import OpOverload
from torch.compiler import is_dynamo_compiling
from torch.fx.node import has_side_effect

from jitgen.errors import InputError
from jitgen.layer.passes import run_in_passes
from jitgen.layer.ranks import LAYERS
from jitgen.ops.dispatcher import constant_result
from jitgen.ops.tracing.library import Operation, register

_NAMES = (
    *("x", "topk_weights", "topk_ids", "shared", "shared_weights"),
    *("weights", "layer", "rank_tokens"),
)
_SCHEMA = (
    "moe_of_ranks(Tensor x, Tensor topk_weights, Tensor topk_ids, Tensor? shared, "
    "Tensor? shared_weights, Tensor[] weights, int layer, SymInt? rank_tokens) -> Tensor"
)


def layer(*values: object) -> Tensor:
    """Call the operation, whose arguments have been checked."""
    if is_dynamo_compiling():
        _is_registered()
        traced: Tensor = torch.ops.jitgen.moe_of_ranks.default(*values)
        return traced
    found: Tensor = operation()(*values)
    return found


@constant_result
def _is_registered() -> bool:
    """Register the operation, so that torch.compile finds it in ``torch.ops``, and return True."""
    return operation() is not None


@cache
def operation() -> OpOverload:
    """Return torch's operation of a layer of several ranks, registered at the first call."""
    found = register(Operation(schema=_SCHEMA, run=_run, fake=_fake, names=_NAMES))
    effects._register_effectful_op(found, effects._EffectType.ORDERED)
    has_side_effect(found)  # which graphs of torch before 2.13 ask
    return found


def _run(
    x: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    shared: Tensor | None,
    shared_weights: Tensor | None,
    weights: list[Tensor],
    number: int,
    rank_tokens: int | None,
) -> Tensor:
    """
    Run the layer with this number, with other values of its weights.

    Raises:
        InputError: The layer does not exist any more.
    """
    found = LAYERS.get(number)
    wire = None if found is None else found._wire
    if found is None or wire is None:
        raise InputError(
            "layer", "must be alive, and of this process, where a graph of torch's runs it"
        )
    chain = found.chain_of(weights)
    every = wire.max_tokens if rank_tokens is None else rank_tokens
    tensors = (x, topk_weights, topk_ids, shared, None, shared_weights)
    return run_in_passes(chain, wire, tensors, found.workspace, every)


def _fake(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)
