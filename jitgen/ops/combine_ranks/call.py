# SPDX-License-Identifier: Apache-2.0
"""
`combine_ranks`: the sum over ranks of their partial results for each token. `jitgen.parallel` calls
it.
"""

from __future__ import annotations

from torch import Tensor

from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig, CombineRanksProblem
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.combine_ranks.validate import check_places, check_sums, require_kind
from jitgen.ops.dispatch.launch import exchange, launch_for
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_rows, require_masking, room_of
from jitgen.ops.dispatcher import mark_written, require_apart
from jitgen.ops.explicit_config import explicit_config
from jitgen.runtime.session import current

_OP = CombineRanksProblem.op


def combine_ranks(  # noqa: PLR0913  # each is one thing to say
    y: Tensor,
    inverse: Tensor,
    topk_weights: Tensor,
    link: Link,
    *,
    tokens: int,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    out: Tensor | None = None,
    of_experts: bool = False,
    config: CombineRanksConfig | None = None,
    is_beside: bool = False,
) -> Tensor:
    """
    Add up the rows that this rank has for each token of all ranks, send each rank the sums for its
    tokens, and add up the received sums for the tokens of this rank.

    ``local_sum[s] = sum over j of topk_weights[s, j] * y[inverse[s, j]]`` is that of
    `jitgen.combine`, rounded to bfloat16; ``out[t] = sum over r of local_sum[rank * room + t] of
    rank r + shared[t]`` in float32, r ascending, rounded once. Every call follows a call of
    `dispatch` with the same room; launches and waits are those of `dispatch`.

    With `of_experts` ranks send the rows of experts, and ``out[t] = sum over j of topk_weights[rank
    * room + t, j] * row(t, j) + shared[t]``, j ascending, where ``row(t, j)`` is ``y[inverse[rank *
    room + t, j]]`` of the one rank where this index is that of a row. So the bits depend neither on
    the number of ranks nor on the rank.

    Args:
        y: (M, H) bfloat16: rows of experts; H contiguous and a multiple of 4, address and strides
            multiples of 8 bytes.
        inverse: (ranks * room, top_k) int32: for each place of the tokens of all ranks, token t of
            rank r at ``r * room + t``, its row of y; other numbers mean that this rank has no row
            for it.
        topk_weights: (ranks * room, top_k) float32, factors of the rows.
        link: The connection of this rank to its peers. Its state is that of the link of `dispatch`,
            its inbox another one, with ``H / 4`` places for each of `room` tokens; with
            `of_experts`, ``1 + top_k * H / 4`` places, and neither notes nor flags.
        tokens: T, the number of tokens of this rank.
        shared: (T, H) bfloat16, the output of a shared expert, which is added at the end; layout as
            that of y.
        shared_weights: (T,) float32, factors of the rows of `shared`; None: 1.
        out: (T, H) bfloat16, where the result goes; layout as that of y. It may be `shared`.
        of_experts: Whether ranks send the row of each expert instead of the sum of their rows.
        config: A config to use instead of the selector's.
        is_beside: As for `dispatch`.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        PeerTimeout: On a CPU, a rank did not send in time.
        KernelMiss, CompileError: As `jitgen.grouped_gemm`.
    """
    with calling(_OP):
        session = current.get()
        device = common.device_of(_OP, "y", y, session)
        check_sums(y, link, tokens, shared, shared_weights, out)
        hidden, given = y.shape[1], {"y": y, "shared": shared, "out": out}
        vectors = check_places(inverse, topk_weights, y, link, of_experts=of_experts)
        room = room_of("inverse", inverse, link, tokens, vectors)
        weights = {"topk_weights": topk_weights, "shared_weights": shared_weights}
        common.refuse_gradients(given | weights, _OP)
        kind = {"has_shared": shared is not None, "is_weighted": shared_weights is not None}
        kind |= {"can_mask": link.can_mask, "of_experts": of_experts}
        kind["by_flags"] = link.by_flags
        problem = CombineRanksProblem(m=room, n=hidden, ranks=link.ranks, **kind)
        if config is not None:
            explicit_config(config, CombineRanksConfig, device.arch)
            require_masking(config, link)
            require_kind(config, of_experts=of_experts)
        launch = launch_for(session, device, problem, config, "y")
        if out is None:
            out = y.new_empty(tokens, hidden)
        else:
            tensors = {name: each for name, each in given.items() if each is not None}
            require_apart(tensors, ("out",), in_place=("shared",))
            mark_written((out,))
        extra = tuple(each for each in (shared, shared_weights) if each is not None)
        every = (y, inverse, topk_weights, *link.tensors, *extra, out)
        exchange(launch, every, device, link, is_beside=is_beside)
        return out


def check_direct(config: CombineRanksConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel: rows of experts with their places and weights;
    the connection of the rank to its peers; rows that are added; and the result. The
    memory behind addresses is not checked.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    found = direct.read(
        config, arch, current.get(), arguments, config.arguments, in_place=("shared",)
    )
    y, out = found["y"], found["out"]
    of_link = (found["inbox"], found["peers"], found["state"], found.get("notes"))
    link = Link(*of_link, by_flags=config.by_flags)
    check_rows("out", out, ("y", y.device))
    check_sums(y, link, len(out), found.get("shared"), found.get("shared_weights"), out)
    direct.require_rows("out", len(out))
    inverse, of_experts = found["inverse"], config.of_experts
    vectors = check_places(inverse, found["topk_weights"], y, link, of_experts=of_experts)
    room_of("inverse", inverse, link, len(out), vectors)
