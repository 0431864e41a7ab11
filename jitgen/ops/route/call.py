# SPDX-License-Identifier: Apache-2.0
"""
The public `route` and `sort_pairs`, and their warm path: one tuple, one lookup, one tvm-ffi call.
"""

from __future__ import annotations

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config.route import RouteConfig
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.route.dispatch import Launch, Route, SortPairs
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
    Choose the experts of every token, and sort the pairs of tokens and experts by expert: the first
    step of an MoE layer.

    The kernel is compiled at the first call that needs it, unless it was prewarmed or
    JITGEN_ON_MISS says otherwise; it runs on the current stream of the tensors' device, in one
    launch for few tokens and in two for many, and the host does not wait for it.

    Of experts with equal scores, the one with the lower number comes first. A NaN counts as less
    than every number: its expert is chosen after all others, and its weight is NaN. With softmax, a
    NaN also makes the other weights of its sum NaN: those of all experts or, renormalised without
    bias and groups, those of the chosen experts. The result does not depend on the order of
    threads: equal inputs give equal bits.

    Autograd gets a gradient of the logits, through `topk_weights`: see docs/gradients.md.

    Args:
        logits: (T, E) bfloat16, float16 or float32, the result of the router's product; E
            contiguous and at most 1,024.
        top_k: Experts of a token, k; at most 32.
        scoring: How scores are computed from logits: ``softmax`` over all E (Mixtral, Qwen3;
            gpt-oss's softmax over the chosen experts equals this one, renormalised), ``sigmoid``
            (DeepSeek-V3), ``sqrtsoftplus``, the square root of log(1 + exp(x)) (DeepSeek-V4), or
            ``identity``: the logits themselves.
        correction_bias: (E,) float32, added to scores (not to logits) when groups and experts are
            chosen; weights are computed from scores without it. (DeepSeek-V3 calls it
            ``e_score_correction_bias``.) Add a bias of the router's product to `logits`.
        expert_groups: Number of groups of experts: equal groups of consecutive experts, at least
            two in each.
        top_groups: Number of groups from which a token may choose experts: the best ones by
            `group_scoring`.
        renormalize: Divide the weights of a token by their sum (plus 1e-20, except with softmax).
        routed_scaling_factor: Factor of the weights, applied last, whether they are renormalised or
            not.
        first_expert: The first expert of this device.
        local_experts: Experts of this device, G; None: all from `first_expert` on, which is then 0.
            Pairs with experts of other devices are not sorted.
        out: Where results go, a tuple in the order in which they are returned: a `jitgen.Routing`
            of dense tensors.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.
        group_scoring: The score of a group: ``top2``, the sum of its two best scores, with the bias
            (DeepSeek-V3), or ``max``, its best score (DeepSeek-V2).
        softcap: A bound c of the logits, 1e-30 to 1e30: ``c * tanh(logits / c)`` replaces the
            logits (Grok). None: no bound.
        token_ids: (T,) int32 or int64, dense, for `hash_table`: the number of each token in the
            vocabulary, whose low 32 bits are read.
        hash_table: (V, k) int32, k contiguous: the experts of each token id. They are used instead
            of chosen experts, and weighted in the same way (the hash layers of DeepSeek-V4, where
            it is called ``tid2eid``). A token id or an expert out of range counts as expert -1 with
            weight 0, and its pair is not sorted.
        load: (E,) int32, dense: the call adds to each number the pairs of that expert, including
            those of other devices. Only the caller sets it to 0, so calls and replays of a graph
            accumulate, which is what balancing experts needs. Sums of integers do not depend on the
            order.
        **old: Arguments by their old names: see docs/renamed.md.

    Returns:
        topk_weights: (T, k) float32: scores of the chosen experts, renormalised and scaled.
        topk_ids: (T, k) int32: experts of all devices, the best first.
        offs: (G,) int32: for each local expert, the index after its last row, as
            `jitgen.grouped_gemm` takes it.
        permutation: (T k,) int32: the pair ``t * k + j`` in each sorted row. Rows are in the order
            of experts, and the pairs of an expert in ascending order; -1 in rows from ``offs[-1]``
            on.
        inverse: (T, k) int32: the sorted row of each pair; -1 where its expert is not local.

        Every value is written. Rows from ``offs[-1]`` on belong to no expert, and the next
        operations (`jitgen.permute_quantize`, `jitgen.grouped_gemm`) do not write them.
        `jitgen.combine` ignores pairs with -1. As an index of a torch tensor, -1 is the last row:
        mask it if you sum with torch's operations.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. So is a bias that requires a gradient, and `out` together with logits that
            require one.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation, ``torch.ops.jitgen.route``; see
    `jitgen.ops.tracing`.
    """
    if old:
        return route(**with_new_names(route, locals()))
    key: tuple[object, ...] = ()
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
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, logits):
                more = token_ids, hash_table, load
                if launch.fits(*present(logits, correction_bias, *(out or ()), *more)):
                    if out is not None:
                        mark_written(out)
                    if load is not None:
                        mark_written((load,))
                    return launch.route(logits, correction_bias, out, *more)
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
    return CALL.run(args, key)


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
    Sort pairs of tokens and experts, as `route` does, for experts that were chosen by other code.

    Args:
        topk_ids: (T, k) int32, or int64 as torch.topk returns them, dense: numbers of experts of
            all devices. Pairs whose expert is not local, such as -1, are not sorted. A token may
            have an expert twice. int64 is converted at each call, which costs launches of torch
            operations.
        experts: Experts of all devices, E.
        first_expert: As of `route`.
        local_experts: As of `route`; at most 1,024.
        out: Where results go, a tuple in the order in which they are returned: a `jitgen.Sorting`
            of dense tensors.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.

    Returns:
        The last three fields of what `route` returns.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        CompileError: The kernel cannot be compiled.
    """
    key: tuple[object, ...] = ()
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
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, topk_ids):
                if launch.fits(topk_ids, *(out or ())):
                    if out is not None:
                        mark_written(out)
                    return launch.sort(topk_ids, out)
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
    return SORT.run(args, key)


def _sizes(out: Routing | Sorting) -> tuple[object, ...]:
    """
    Return the class of given results and the shapes of their indices: inverse, offs and
    permutation, on which the launch depends.
    """
    return out.__class__, out.inverse.shape, out.offs.shape, out.permutation.shape


CALL = Route(route)
SORT = SortPairs(sort_pairs)
