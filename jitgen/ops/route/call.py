# SPDX-License-Identifier: Apache-2.0
"""The public `route` and `sort_pairs`: warm, one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.route import RouteConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.route.dispatch import Route, SortPairs
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments, SortArguments
from jitgen.ops.tensors import short_ids
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.support.moved import MISSING, with_new_names


def route(  # noqa: PLR0913  # each is one thing to say
    logits: Tensor = MISSING,
    *,
    top_k: int,
    scoring: str = "softmax",
    correction_bias: Tensor | None = None,
    expert_groups: int = 1,
    top_groups: int = 1,
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    first_expert: int = 0,
    local_experts: int | None = None,
    out: Routing | None = None,
    config: RouteConfig | Override | None = None,
    group_scoring: str = "top2",
    softcap: float | None = None,
    token_ids: Tensor | None = None,
    hash_table: Tensor | None = None,
    load: Tensor | None = None,
    **old: object,
) -> Routing:
    """
    Choose the experts of every token, and sort its pairs by them: what an MoE layer begins with.

    The kernel is compiled at the first call that needs it, unless it was prewarmed or
    JITGEN_ON_MISS says otherwise; it runs on the current stream of the tensors' device, in one
    launch for few tokens and in two for many, and nothing waits.

    Of equal scores the lower expert comes first. A NaN is below every number: such an expert is
    chosen after all others, and its weight is NaN; so are, for a softmax, those of the sum that it
    is part of: of all experts or, renormalised without bias and groups, of the chosen. Nothing of a
    call depends on which thread was first: the same input gives the same bits.

    Autograd gets a gradient of the logits, through `topk_weights`: see docs/gradients.md.

    Args:
        logits: (T, E) bfloat16, float16 or float32, the router's; columns are neighbours. E is at
            most 1,024.
        top_k: Experts of a token, k; at most 32.
        scoring: How a token's scores come of its logits: ``softmax`` over all E (Mixtral, Qwen3;
            gpt-oss's softmax of the chosen is this one, renormalised), ``sigmoid`` (DeepSeek-V3),
            ``sqrtsoftplus``, the square root of log(1 + exp(x)) (DeepSeek-V4), or ``identity``: the
            logits themselves.
        correction_bias: (E,) float32, added to scores, not to logits, for choosing groups and
            experts; weights are scores without it. (DeepSeek-V3 calls it
            ``e_score_correction_bias``.) A bias of the router's product belongs to `logits`.
        expert_groups: Experts are in so many equal groups of neighbours, two or more in each.
        top_groups: Groups that a token may choose from: the best by `group_scoring`.
        renormalize: Divide a token's weights by their sum (plus 1e-20, but for softmax).
        routed_scaling_factor: What weights are multiplied with at last, renormalised or not.
        first_expert: The first expert of this device.
        local_experts: Experts of this device, G; None: all from `first_expert` on, which is then 0.
            Pairs of others are not sorted.
        out: Where results go, a tuple in the order in which they are returned: a `jitgen.Routing`
            of dense tensors.
        config: A config to use instead of the selector's, or an edited kernel: see
            `jitgen.override`.
        group_scoring: What a group is kept for: ``top2``, the sum of its two best scores, with the
            bias (DeepSeek-V3), or ``max``, its best one (DeepSeek-V2).
        softcap: A bound of the logits c, 1e-30 to 1e30: all that is said of logits holds for
            ``c * tanh(logits / c)`` (Grok). None: none.
        token_ids: (T,) int32 or int64, dense, for `hash_table`: the number of each token in the
            vocabulary, whose low 32 bits are read.
        hash_table: (V, k) int32, columns are neighbours: the experts of each token id, which are
            then not chosen, and weighted as chosen ones are (the hash layers of DeepSeek-V4, where
            it is called ``tid2eid``). A token id or an expert that there is not counts as expert -1
            with weight 0, and its pair is not sorted.
        load: (E,) int32, dense: to each expert's number its pairs in this call are added, those of
            other devices too. Nothing sets it to 0 but the caller: calls, and replays of a graph,
            add up, as what balances experts wants it. Sums of integers do not depend on the order.
        **old: Arguments by names that they had before: docs/renamed.md.

    Returns:
        topk_weights: (T, k) float32: scores of the chosen, renormalised, scaled.
        topk_ids: (T, k) int32: experts of all devices, the best first.
        offs: (G,) int32: the row behind each local expert's, as `jitgen.grouped_gemm` takes it.
        permutation: (T k,) int32: the pair ``t * k + j`` in each sorted row: expert after expert,
            the pairs of each in ascending order; -1 in rows from ``offs[-1]`` on.
        inverse: (T, k) int32: the sorted row of each pair; -1 where its expert is not local.

        Every value is written. Rows from ``offs[-1]`` on belong to no expert, and what follows
        (`jitgen.permute_quantize`, `jitgen.grouped_gemm`) does not write them. `jitgen.combine`
        leaves out pairs of -1; as an index of torch's -1 is the last row, so mask what it reads.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
            A bias that requires a gradient is, and `out` beside logits that do.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation, ``torch.ops.jitgen.route``; see
    `jitgen.ops.tracing`.
    """
    if old:
        return route(**with_new_names(route, locals()))
    key: tuple[Any, ...] = ()
    if not is_dynamo_compiling():
        try:
            # Dtypes and strides are not in the key, nor that results have the rows of logits: the
            # entry refuses others, and run() replaces it.
            shape = logits.shape
            key = (
                "route",  # other operations remember in the same place
                shape,  # in its place: `launch.ROWS`
                shape[-1],
                top_k,
                scoring,
                correction_bias is None,
                expert_groups,
                top_groups,
                renormalize,
                routed_scaling_factor,
                first_expert,
                local_experts,
                group_scoring,
                softcap,
                token_ids is None,
                hash_table is None,
                load is None,
                None if config is None else id(config),
                # The entry knows neither k nor G: it takes those of the results.
                None if out is None else _sizes(out),
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            for launch in session.memo.get(key) or similar(session, key, logits):
                more = token_ids, hash_table, load
                if launch.fits(*present(logits, correction_bias, *(out or ()), *more)):
                    if out is not None:
                        mark_written(out)
                    if load is not None:
                        mark_written((load,))
                    return launch.route(  # type: ignore[no-any-return]
                        logits, correction_bias, out, *more
                    )
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        logits=logits,
        top_k=top_k,
        scoring=scoring,
        correction_bias=correction_bias,
        expert_groups=expert_groups,
        top_groups=top_groups,
        renormalize=renormalize,
        routed_scaling_factor=routed_scaling_factor,
        first_expert=first_expert,
        local_experts=local_experts,
        out=out,
        config=config,
        group_scoring=group_scoring,
        softcap=softcap,
        token_ids=token_ids,
        hash_table=hash_table,
        load=load,
    )
    return CALL.run(args, key)  # type: ignore[no-any-return]


def sort_pairs(
    topk_ids: Tensor,
    *,
    experts: int,
    first_expert: int = 0,
    local_experts: int | None = None,
    out: Sorting | None = None,
    config: RouteConfig | Override | None = None,
) -> Sorting:
    """
    Sort pairs of tokens and experts that were chosen elsewhere, as `route` sorts its own.

    Args:
        topk_ids: (T, k) int32, or int64 as torch.topk gives them, dense: experts of all devices.
            Pairs whose expert is not local, such as -1, are not sorted. A token may have an expert
            twice. int64 is converted at each call, which costs launches of torch's.
        experts: Experts of all devices, E.
        first_expert: As of `route`.
        local_experts: As of `route`; at most 1,024.
        out: Where results go, a tuple in the order in which they are returned: a `jitgen.Sorting`
            of dense tensors.
        config: A config to use instead of the selector's, or an edited kernel: see
            `jitgen.override`.

    Returns:
        The last three fields of what `route` returns.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
        CompileError: The kernel cannot be compiled.
    """
    key: tuple[Any, ...] = ()
    if not is_dynamo_compiling():
        try:
            shape = topk_ids.shape
            key = (
                "sort_pairs",
                shape,  # in its place: `launch.ROWS`
                shape[-1],
                experts,
                first_expert,
                local_experts,
                None if config is None else id(config),
                None if out is None else _sizes(out),
                num_modes(),
            )
            session = current.get()
            for launch in session.memo.get(key) or similar(session, key, topk_ids):
                if launch.fits(topk_ids, *(out or ())):
                    if out is not None:
                        mark_written(out)
                    return launch.sort(topk_ids, out)  # type: ignore[no-any-return]
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    if isinstance(topk_ids, Tensor) and topk_ids.dtype is torch.int64:
        topk_ids = short_ids(topk_ids)
        return sort_pairs(
            topk_ids,
            experts=experts,
            first_expert=first_expert,
            local_experts=local_experts,
            out=out,
            config=config,
        )
    args = SortArguments(
        topk_ids=topk_ids,
        experts=experts,
        first_expert=first_expert,
        local_experts=local_experts,
        out=out,
        config=config,
    )
    return SORT.run(args, key)  # type: ignore[no-any-return]


def _sizes(out: Routing | Sorting) -> tuple[Any, ...]:
    """Return what the entry takes as it is given: k, G, whether there is a row for each pair."""
    return out.__class__, out.inverse.shape, out.offs.shape, out.permutation.shape


CALL = Route(route)
SORT = SortPairs(sort_pairs)
