# SPDX-License-Identifier: Apache-2.0
"""`combine_ranks`: the sum of what ranks have for each token. `jitgen.parallel` calls it."""

from __future__ import annotations

from torch import Tensor

from jitgen.config.combine_ranks import CombineRanksConfig, CombineRanksProblem
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.combine_ranks.validate import check_sums
from jitgen.ops.dispatch.launch import exchange, launch_for
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import require_masking, room_of
from jitgen.ops.dispatcher import mark_written, require_apart
from jitgen.ops.explicit_config import explicit_config
from jitgen.runtime.session import current

_OP = CombineRanksProblem.op


def combine_ranks(
    y: Tensor,
    link: Link,
    *,
    tokens: int,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    out: Tensor | None = None,
    config: CombineRanksConfig | None = None,
) -> Tensor:
    """
    Send what this rank has for the tokens of each rank to that rank, and add up its own tokens'.

    ``out[t] = sum over r of y[rank * room + t] of rank r + shared[t]`` in float32, r ascending,
    rounded once. Every call follows one of `dispatch` with the same room; launches and waits are as
    there.

    Args:
        y: (ranks * room, H) bfloat16: row ``r * room + t`` is for token t of rank r; H contiguous
            and a multiple of 4, address and strides multiples of 8 bytes.
        link: What this rank reaches its peers by: another inbox than that of `dispatch`, with
            ``H / 4`` places for each of `room` tokens, and its state.
        tokens: T, tokens of this rank.
        shared: (T, H) bfloat16, what a shared expert gave, added at the end; memory as of y.
        shared_weights: (T,) float32, what rows of `shared` are multiplied with; None: 1.
        out: (T, H) bfloat16, where the result goes; memory as of y. It may be `shared`.
        config: A config to use instead of the selector's.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
        PeerTimeout: On a CPU, a rank did not send in time.
        KernelMiss, CompileError: As `jitgen.grouped_gemm`.
    """
    with calling(_OP):
        session = current.get()
        device = common.device_of(_OP, "y", y, session)
        check_sums(y, link, tokens, shared, shared_weights, out)
        hidden, given = y.shape[1], {"y": y, "shared": shared, "out": out}
        room = room_of("y", y, link, tokens, hidden // 4)
        common.refuse_gradients({**given, "shared_weights": shared_weights}, _OP)
        kind = {"has_shared": shared is not None, "is_weighted": shared_weights is not None}
        kind["can_mask"] = link.can_mask
        problem = CombineRanksProblem(m=room, n=hidden, ranks=link.ranks, **kind)
        if config is not None:
            explicit_config(config, CombineRanksConfig, device.arch)
            require_masking(config, link)
        launch = launch_for(session, device, problem, config, "y")
        if out is None:
            out = y.new_empty(tokens, hidden)
        else:
            tensors = {name: each for name, each in given.items() if each is not None}
            require_apart(tensors, ("out",), in_place=("shared",))
            mark_written((out,))
        extra = tuple(each for each in (shared, shared_weights) if each is not None)
        exchange(launch, (y, *link.tensors, *extra, out), device, link)
        return out
