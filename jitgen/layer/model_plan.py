# SPDX-License-Identifier: Apache-2.0
"""
Makes the plan of a model from its config alone: the layers of experts of every rank, and the
router.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitgen.config import Arch
from jitgen.config.config import DType
from jitgen.errors import InputError
from jitgen.layer.module import MoELayer
from jitgen.layer.plan import target
from jitgen.layer.router import RouterConfig
from jitgen.plans.plan import Plan
from jitgen.plans.sweep import Sweep

ModelConfig = str | Path | Mapping[str, Any]


def of_model(  # noqa: PLR0913  # each is one thing to say
    config: ModelConfig,
    arch: Arch | str | None = None,
    *,
    name: str = "model",
    expert_ranks: Sequence[int] = (1,),
    ranks: Sequence[int] = (1,),
    max_tokens: int | None = None,
    masked: int | None = None,
    activation_format: str | None = None,
    dequantize: bool = False,
    has_router: bool = True,
    has_group: bool = False,
    quantise: bool | None = None,
    flags_from: int | None = None,
) -> Plan:
    """
    Return a plan of every kernel that a model's layers of experts and its router may need.

    Args:
        config: The model's config: a mapping, or the path of a ``config.json`` or its folder.
        arch: The target; None: the one that this process would use.
        name: Name of the plan.
        expert_ranks: The numbers of ranks among which the experts are divided; 1 means that every
            rank has all experts.
        ranks: The numbers of ranks among which the columns of every expert are divided.
        max_tokens: Most tokens of a call; None: the tokens of one pass.
        masked: Most rows of an expert's matrix in calls of `jitgen.moe_experts`; None: there are no
            such calls.
        activation_format: As for `jitgen.moe`.
        dequantize: Whether weights are bfloat16 instead of as the model stores them.
        has_router: Whether the router is in the plan.
        has_group: Whether ranks share layers by a group, as with ``MoELayer(..., group=)``, each
            with `max_tokens`. Then each rank computes the tokens of all ranks, and the plan has the
            kernels that exchange tokens.
        quantise: Whether these ranks quantise tokens before they send them; None: the plan has the
            kernels of both.
        flags_from: The number of tokens of these ranks from which on flags say that data has come;
            0: never. None: the plan has the kernels without flags, and those with them that
            `jitgen.parallel.connect` takes by itself.

    Raises:
        InputError: The config lacks a value that is needed, or has one that no layer or router
            supports.
        OSError: The file cannot be read.
    """
    arch = target(arch)
    sweeps: dict[Sweep, None] = {}
    described: dict[str, None] = {}
    if has_group and max_tokens is None:
        raise InputError("max_tokens", "must be given with a group: those of each rank")
    whole = MoELayer.from_config(config, device="meta", dequantize=dequantize).config
    layers = (None, 0) if has_router else ()  # the first may have a table of experts
    routers = dict.fromkeys(RouterConfig.from_config(config, layer) for layer in layers)
    for count in expert_ranks:
        local = _share(whole.experts, count)
        num_ranks = count if has_group else None
        for cut in ranks:
            # A part of the columns may begin within a block of scales or not: sizes tell.
            parts = {
                layer.config.intermediate: layer
                for layer in _layers(config, cut, local, activation_format, dequantize)
            }
            for layer in parts.values():
                found = layer.plan(
                    max_tokens,
                    arch,
                    name=name,
                    masked=masked,
                    num_ranks=num_ranks,
                    quantise=quantise,
                    flags_from=flags_from,
                )
                described[found.description] = None
                sweeps |= dict.fromkeys(found.sweeps)
        most = min(max_tokens or whole.chunk_tokens, whole.chunk_tokens)
        for router in routers:
            for dtype in (DType.F32, DType.BF16):
                problem = router.problem(dtype, whole.experts if has_group else local)
                sweeps[Sweep(problem=problem, min_rows=1, max_rows=most)] = None
    return Plan(name=name, description="; ".join(described), sweeps=tuple(sweeps))


def _layers(
    config: ModelConfig,
    ranks: int,
    local_experts: int,
    activation_format: str | None,
    dequantize: bool,
) -> Iterator[MoELayer]:
    """Yield the layer of each rank, without memory for weights."""
    for rank in range(ranks):
        yield MoELayer.from_config(
            config,
            local_experts=local_experts,
            rank=rank,
            ranks=ranks,
            device="meta",
            activation_format=activation_format,
            dequantize=dequantize,
        )


def _share(experts: int, ranks: int) -> int:
    """Return the number of experts of each rank."""
    if type(ranks) is not int or ranks < 1 or experts % ranks:
        raise InputError("expert_ranks", f"must divide the {experts} experts (got {ranks!r})")
    return experts // ranks
