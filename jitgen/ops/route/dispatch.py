# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.route import RouteConfig
from jitgen.errors import InputError
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, prepared
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments, Facts, validate
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import edges_of
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require, rules

Result = Routing | Sorting


@frozen
class Launch(AnyLaunch):
    """
    What a call needs besides its tensors.

    Attributes:
        top_k: k.
        local_experts: G.
        counts: Rows of the workspace; 0 where there is none.
    """

    top_k: int
    local_experts: int
    counts: int

    def route(self, scores: Tensor, bias: Tensor | None, out: Routing | None) -> Routing:
        """Launch the kernel, into `out` if it is given."""
        if out is None:
            tokens, top_k = scores.shape[0], self.top_k
            out = Routing(
                scores.new_empty((tokens, top_k), dtype=torch.float32),
                *new_indices(scores, tokens, top_k, self.local_experts, 1),
            )
        given = (scores,) if bias is None else (scores, bias)
        self.function(*given, *out, *self._workspace(scores), *self.tail)
        return out

    def sort(self, topk_ids: Tensor, out: Sorting | None) -> Sorting:
        """Launch the kernel where experts are given, into `out` if it is given."""
        if out is None:
            tokens, top_k = topk_ids.shape
            out = Sorting(*new_indices(topk_ids, tokens, top_k, self.local_experts, 0))
        self.function(topk_ids, *out, *self._workspace(topk_ids), *self.tail)
        return out

    def _workspace(self, like: Tensor) -> tuple[Tensor, ...]:
        if not self.counts:
            return ()
        return (like.new_empty((self.counts, self.local_experts), dtype=torch.int32),)


def new_indices(like: Tensor, tokens: int, top_k: int, groups: int, num_ids: int) -> list[Tensor]:
    """Return the results of type int32, not initialised: `num_ids` times topk_ids, then others."""
    pairs = (tokens, top_k)
    shapes = (*[pairs] * num_ids, (groups,), (tokens * top_k,), pairs)
    return [like.new_empty(shape, dtype=torch.int32) for shape in shapes]


def run(given: Arguments, config: RouteConfig | Override | None, key: Key) -> Any:
    """
    Do what `route` or `sort_pairs` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import route as traced

        return traced.record(given, config)
    with calling("sort_pairs" if given.scores is None else "route"):
        session = current.get()
        launch = prepared(
            session,
            key,
            given.tensors,
            lambda: _prepare(given, config, session),
            written=[name for name in given.tensors if name.startswith("out.")],
        )
        if given.scores is None:
            return launch.sort(given.like, given.out)  # type: ignore[arg-type]
        return launch.route(given.scores, given.bias, given.out)  # type: ignore[arg-type]


def _prepare(
    given: Arguments, config: RouteConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its rows; 0 where there is nothing to launch.
    """
    facts = validate(given, session)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    wanted: Config
    if config is None:
        problem = facts.problem()
        wanted, neighbours = chosen(session, problem, facts.arch, given.name)
        family = Family(edges=edges_of(problem, facts.arch), arch=facts.arch, problem=problem)
    else:  # whatever the rows, it serves, and is never replaced
        wanted = require_fit(config, facts)
    function, served = nobody, wanted
    if facts.tokens:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    tiling = served.tiling  # type: ignore[attr-defined]
    num_sms = facts.device.tail[0] if facts.device.tail else 0
    launch = Launch(
        function=function,
        tail=(*given.numbers, *facts.device.tail),
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        top_k=facts.top_k,
        local_experts=facts.local_experts,
        counts=tiling.counts(num_sms),
    )
    return launch, family, facts.tokens


def nobody(*given: Any) -> None:
    """Route no tokens: every expert ends where it begins."""
    offs = next(
        each
        for each in reversed(given)
        if isinstance(each, Tensor) and each.dim() == 1 and each.numel()
    )
    offs.zero_()


def require_fit(asked: object, facts: Facts) -> RouteConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: RouteConfig = forced(asked, RouteConfig, facts.arch)
    wanted = RouteConfig(
        scoring=facts.scoring,
        scores_dtype=facts.scores_dtype,
        bias=facts.bias,
        grouped=facts.expert_groups > 1,
        experts=config.experts,
        tiling=config.tiling,
    )
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, facts.arch)
    least = rules(facts.arch, "route").experts_for(facts)  # type: ignore[attr-defined]
    if config.experts < least:
        raise InputError("config", f"must be for at least {least} experts (got {config.experts})")
    return config
