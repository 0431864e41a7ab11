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
from jitgen.ops.combine_ranks.validate import check_places, check_sums, require_places_of
from jitgen.ops.dispatch.launch import exchange, launch_for
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_rows, require_masking, room_of
from jitgen.ops.dispatcher import mark_written, require_apart
from jitgen.ops.explicit_config import explicit_config
from jitgen.runtime.session import current

_OP = CombineRanksProblem.op


def combine_ranks(  # noqa: PLR0913  # each is one thing to say
    y: Tensor,
    link: Link,
    *,
    tokens: int,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    out: Tensor | None = None,
    inverse: Tensor | None = None,
    topk_weights: Tensor | None = None,
    config: CombineRanksConfig | None = None,
    is_beside: bool = False,
) -> Tensor:
    """
    Send to each rank the partial results for its tokens, and add up those for the tokens of this
    rank.

    ``out[t] = sum over r of y[rank * room + t] of rank r + shared[t]`` in float32, r ascending,
    rounded once. Every call follows a call of `dispatch` with the same room; launches and waits are
    those of `dispatch`.

    With `inverse` ranks send the rows of experts, and ``out[t] = sum over j of topk_weights[t, j] *
    row(t, j) + shared[t]``, j ascending, where ``row(t, j)`` is ``y[inverse[rank * room + t, j]]``
    of the one rank where this index is that of a row. So the bits depend neither on the number of
    ranks nor on the rank.

    Args:
        y: (ranks * room, H) bfloat16: row ``r * room + t`` is for token t of rank r; H contiguous
            and a multiple of 4, address and strides multiples of 8 bytes.
        link: The connection of this rank to its peers. Its state is that of the link of `dispatch`,
            its inbox another one, with ``H / 4`` places for each of `room` tokens; with `inverse`,
            ``1 + top_k * H / 4`` places, and no notes.
        tokens: T, the number of tokens of this rank.
        shared: (T, H) bfloat16, the output of a shared expert, which is added at the end; layout as
            that of y.
        shared_weights: (T,) float32, factors of the rows of `shared`; None: 1.
        out: (T, H) bfloat16, where the result goes; layout as that of y. It may be `shared`.
        inverse: (ranks * room, top_k) int32: for each place of the tokens of all ranks, its row of
            y, which is (M, H) then; other numbers mean that this rank has no row for it. None: y
            has sums.
        topk_weights: (T, top_k) float32, factors of the rows; given only with `inverse`.
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
        if inverse is None:
            room = room_of("y", y, link, tokens, hidden // 4)
        else:
            vectors = 1 + check_places(inverse, topk_weights, tokens, y, link) * hidden // 4
            room = room_of("inverse", inverse, link, tokens, vectors)
        weights = {"topk_weights": topk_weights, "shared_weights": shared_weights}
        common.refuse_gradients(given | weights, _OP)
        kind = {"has_shared": shared is not None, "is_weighted": shared_weights is not None}
        kind |= {"can_mask": link.can_mask, "of_experts": inverse is not None}
        kind["by_flags"] = link.by_flags
        problem = CombineRanksProblem(m=room, n=hidden, ranks=link.ranks, **kind)
        if config is not None:
            explicit_config(config, CombineRanksConfig, device.arch)
            require_masking(config, link)
            require_places_of(config, inverse)
        launch = launch_for(session, device, problem, config, "y")
        if out is None:
            out = y.new_empty(tokens, hidden)
        else:
            tensors = {name: each for name, each in given.items() if each is not None}
            require_apart(tensors, ("out",), in_place=("shared",))
            mark_written((out,))
        extra = tuple(each for each in (shared, shared_weights) if each is not None)
        places = tuple(each for each in (inverse, topk_weights) if each is not None)
        every = (y, *places, *link.tensors, *extra, out)
        exchange(launch, every, device, link, is_beside=is_beside)
        return out


def check_direct(config: CombineRanksConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel: sums, or rows of experts with their places
    and weights; the connection of the rank to its peers; rows that are added; and the result. The
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
    vectors = y.shape[1] // 4
    if not config.of_experts:
        room_of("y", y, link, len(out), vectors)
        return
    inverse = found["inverse"]
    vectors *= check_places(inverse, found["topk_weights"], len(out), y, link)
    room_of("inverse", inverse, link, len(out), 1 + vectors)
