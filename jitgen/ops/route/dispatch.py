# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from jitgen.config.route import GroupScoring, RouteConfig, RouteProblem
from jitgen.errors import InputError
from jitgen.ops.call import Call
from jitgen.ops.launch import AnyLaunch, Kernel
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments, SortArguments, Validated, shapes, validate
from jitgen.runtime.session import current
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        top_k: k.
        local_experts: G.
        counts: Rows of the workspace; 0 if there is no workspace.
    """

    top_k: int
    local_experts: int
    counts: int

    def route(
        self,
        logits: Tensor,
        bias: Tensor | None,
        out: Routing | None,
        token_ids: Tensor | None = None,
        hash_table: Tensor | None = None,
        load: Tensor | None = None,
    ) -> Routing:
        """Launch the kernel, into `out` if it is given; return its results."""
        if out is None:
            tokens, top_k = logits.shape[0], self.top_k
            out = Routing(
                logits.new_empty((tokens, top_k), dtype=torch.float32),
                *new_indices(logits, tokens, top_k, self.local_experts, 1),
            )
        given: tuple[Tensor | None, ...] = (logits,) if bias is None else (logits, bias)
        if token_ids is not None:
            given = (logits, low_words(token_ids), hash_table)
        counted = () if load is None else (load,)
        self.function(*given, *out, *counted, *self._workspace(logits), *self.tail)
        return out

    def sort(self, topk_ids: Tensor, out: Sorting | None) -> Sorting:
        """Launch the kernel with given experts, into `out` if it is given; return its results."""
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
    """
    Return new int32 results, not initialised: `num_ids` tensors like topk_ids, then offs,
    permutation and inverse.
    """
    pairs = (tokens, top_k)
    shapes = (*[pairs] * num_ids, (groups,), (tokens * top_k,), pairs)
    return [like.new_empty(shape, dtype=torch.int32) for shape in shapes]


def low_words(ids: Tensor) -> Tensor:
    """Return a view of the low 32 bits of int64 ids; int32 ids are returned unchanged."""
    return ids.view(torch.int32)[::2] if ids.dtype is torch.int64 else ids


def without_tokens(*given: object) -> None:
    """
    Write the results of a call without tokens: offs is 0, because no expert has rows; the other
    results are empty.
    """
    tensors = [each for each in given if isinstance(each, Tensor)]
    empty = [place for place, each in enumerate(tensors) if each.dim() == 1 and not each.numel()]
    tensors[empty[-1] - 1].zero_()  # offs is in front of the permutation


_Results = TypeVar("_Results", Routing, Sorting)


class _Sorts(Call[Any, Validated, _Results]):
    """Common part of calls of `route` and `sort_pairs`."""

    config = RouteConfig
    results: type[_Results]
    validate = staticmethod(validate)
    without_rows = staticmethod(without_tokens)

    def problem(self, args: Any, valid: Validated) -> RouteProblem:
        return valid.problem()

    def rows(self, args: Any, valid: Validated) -> int:
        return valid.tokens

    def fitting(self, config: RouteConfig, args: Any, valid: Validated) -> RouteConfig:
        return RouteConfig(
            scoring=valid.scoring,
            scores_dtype=valid.scores_dtype,
            bias=valid.bias,
            grouped=valid.expert_groups > 1,
            group_scoring=valid.group_scoring if valid.expert_groups > 1 else GroupScoring.TOP2,
            softcap=valid.softcap,
            hashed=valid.hashed,
            load=valid.load,
            experts=config.experts,
            tiling=config.tiling,
        )

    def require_fit(self, asked: object, args: Any, valid: Validated) -> RouteConfig:
        config: RouteConfig = super().require_fit(asked, args, valid)
        least = rules(valid.arch, "route").experts_for(valid)  # type: ignore[attr-defined]
        if config.experts < least:
            raise InputError(
                "config", f"must be for at least {least} experts (got {config.experts})"
            )
        return config

    def launch(self, args: Any, valid: Validated, kernel: Kernel) -> Launch:
        tail: tuple[int, ...] = valid.device.tail
        return Launch(
            **kernel | {"tail": (*args.numbers, *tail)},
            top_k=valid.top_k,
            local_experts=valid.local_experts,
            counts=kernel["config"].tiling.counts(tail[0] if tail else 0),
        )

    def new_results(self, args: Any, valid: Validated | None) -> tuple[Tensor, ...]:
        if valid is None:  # sizes that are not known yet: say so
            valid = validate(args, current.get())
        types = {"topk_weights": torch.float32}
        return tuple(
            args[0].new_empty(shape, dtype=types.get(name, torch.int32))
            for name, shape in shapes(valid).items()
        )

    def of_results(self, args: Any, tensors: tuple[Tensor, ...]) -> _Results:
        return self.results(*tensors)

    def out_of(self, tensors: tuple[Tensor, ...]) -> _Results:
        return self.results(*tensors)


class Route(_Sorts[Routing]):
    """Calls of `route`: arguments, validation, choice and launch."""

    name = "route"
    arguments = Arguments
    gradients = "jitgen.ops.tracing.layer_gradients:ROUTE"
    like = "logits"
    graph_names: ClassVar[dict[str, str]] = {
        "logits": "scores",
        "correction_bias": "bias",
        "routed_scaling_factor": "scale",
    }
    results = Routing
    outputs = Routing._fields
    updated = ("load",)

    def start(self, launch: Launch, args: Arguments) -> Routing:
        more = args.token_ids, args.hash_table, args.load
        return launch.route(args.logits, args.correction_bias, args.out, *more)


class SortPairs(_Sorts[Sorting]):
    """Calls of `sort_pairs`: arguments, validation, choice and launch."""

    name = "sort_pairs"
    arguments = SortArguments
    like = "topk_ids"
    results = Sorting
    outputs = Sorting._fields

    def start(self, launch: Launch, args: SortArguments) -> Sorting:
        return launch.sort(args.topk_ids, args.out)
