# SPDX-License-Identifier: Apache-2.0
"""`dispatch`: the tokens of each rank to every rank. `jitgen.parallel` calls it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.dispatch import DispatchConfig, DispatchProblem, scale_shape, vectors_of
from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatch.launch import exchange, launch_for
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import (
    check_link,
    check_order,
    check_quantised,
    check_received,
    check_tokens,
    require_kind,
    require_places,
    require_room_to_sort,
    room_of,
)
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.route.results import Sorting
from jitgen.runtime.session import current

_OP = DispatchProblem.op


class Tokens(NamedTuple):
    """
    Tokens of all ranks: row ``rank * room + t`` is token t of rank `rank`.

    Attributes:
        x: (ranks * room, H) bfloat16, or float8_e4m3fn with `scale`; rows without a token are
            zeros. (0, H) if the rows are still in the inbox of `link`.
        topk_ids: (ranks * room, top_k) int32; -1 in rows without a token.
        topk_weights: (ranks * room, top_k) float32; 0 in rows without a token.
        scale: Scales of tokens that were quantised before they were sent, float32, contiguous:
            (ranks * room,) for ``row``, (ranks * room, S) for ``block128``, S the next multiple of
            4 above H / 128; None: they were not.
        order: The order of the pairs by local expert, as `jitgen.sort_pairs` returns it; None: they
            are not sorted.
        link: The connection in whose inbox the rows are, for
            `jitgen.ops.permute_quantize.taking.take_rows` to take them; None: they are in `x`.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    scale: Tensor | None = None
    order: Sorting | None = None
    link: Link | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that a kernel writes, in the order in which it takes them."""
        x = self.x if self.link is None else None
        every = (x, self.topk_ids, self.topk_weights, self.scale, *(self.order or ()))
        return tuple(each for each in every if each is not None)


class Local(NamedTuple):
    """
    The experts of this rank, by which a kernel sorts the pairs of the tokens of all ranks.

    Attributes:
        first_expert: Number of the first one.
        experts: How many they are.
        leaves: Whether rows of tokens stay in the inbox.
    """

    first_expert: int
    experts: int
    leaves: bool = False


def dispatch(  # noqa: PLR0913  # each is one thing to say
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    link: Link,
    *,
    room: int,
    form: Format = Format.NONE,
    config: DispatchConfig | None = None,
    is_beside: bool = False,
    local: Local | None = None,
) -> Tokens:
    """
    Send the tokens of this rank to every rank, and receive the tokens of all ranks. If they are
    quantised, bits are those of `jitgen.permute_quantize`.

    All ranks call it with the same `room`, and call `combine_ranks` before they call it again. On a
    GPU this is one launch on the current stream; the kernel waits for the other ranks, the host
    does not. It may be captured in a CUDA graph when its kernel is loaded. On a CPU, ranks are
    processes, and the call waits.

    Args:
        x: (T, H) bfloat16, H contiguous and a multiple of 4; address and strides are multiples of 8
            bytes. If tokens are quantised, H is a multiple of 16, and on a GPU address and strides
            are multiples of 16 bytes.
        topk_ids: (T, top_k) int32: the experts of each token; `top_k` is at most 32.
        topk_weights: (T, top_k) float32.
        link: The connection of this rank to its peers; its inbox has ``H / 4 + top_k`` places for
            each of `room` tokens of each rank. Quantised tokens need fewer. With flags, two vectors
            share a place, and 64 more places of each rank are for flags.
        room: Rows of each rank in the result, at least T.
        form: Format in which tokens are sent: ``none``, ``block128`` or ``row``.
        config: A config to use instead of the selector's.
        is_beside: Whether products run at the same time, to which the kernel leaves most SMs.
        local: Experts of this rank, if the launch sorts the pairs, too: on a GPU, for at most as
            many pairs and experts as a CTA has threads.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        PeerTimeout: On a CPU, a rank did not send in time.
        KernelMiss, CompileError: As `jitgen.grouped_gemm`.
    """
    with calling(_OP):
        session = current.get()
        device = common.device_of(_OP, "x", x, session)
        check_tokens(x, topk_ids, topk_weights)
        check_quantised(x, form)
        check_link(link, ("x", x.device))
        (tokens, hidden), top_k = x.shape, topk_ids.shape[1]
        if room < max(tokens, 1):
            raise InputError("room", f"must be at least {max(tokens, 1)}, rows of x (got {room})")
        require_places(link, room, vectors_of(hidden, top_k, form))
        common.refuse_gradients({"x": x, "topk_weights": topk_weights}, _OP)
        problem = DispatchProblem(
            m=room,
            k=hidden,
            top_k=top_k,
            ranks=link.ranks,
            format=form,
            can_mask=link.can_mask,
            by_flags=link.by_flags,
            experts=0 if local is None else local.experts,
            leaves=local is not None and local.leaves,
        )
        if config is not None:
            explicit_config(config, DispatchConfig, device.arch)
            require_kind(config, link, form)
            require_room_to_sort(config, problem)
        launch = launch_for(session, device, problem, config, "x")
        received = _new(x, topk_ids, topk_weights, link.ranks * room, form)
        numbers: tuple[int, ...] = ()
        if local is not None:
            order = _new_order(received.topk_ids, local.experts)
            received, numbers = received._replace(order=order), (local.first_expert,)
            if local.leaves:
                received = received._replace(x=received.x[:0], link=link)
        tensors = (x, topk_ids, topk_weights, *link.tensors, *received.tensors)
        exchange(launch, (*tensors, *numbers), device, link, is_beside=is_beside)
        return received


def _new_order(topk_ids: Tensor, experts: int) -> Sorting:
    """Return memory for the order of pairs by `experts` local experts."""
    return Sorting(
        topk_ids.new_empty(experts),
        topk_ids.new_empty(topk_ids.numel()),
        torch.empty_like(topk_ids),
    )


def _new(x: Tensor, topk_ids: Tensor, topk_weights: Tensor, rows: int, form: Format) -> Tokens:
    """Return memory for `rows` tokens that are sent as `form`."""
    columns, top_k = x.shape[1], topk_ids.shape[1]
    new = Tokens(
        x.new_empty(rows, columns),
        topk_ids.new_empty(rows, top_k),
        topk_weights.new_empty(rows, top_k),
    )
    if form is Format.NONE:
        return new
    return new._replace(
        x=x.new_empty(rows, columns, dtype=torch.float8_e4m3fn),
        scale=topk_weights.new_empty(scale_shape(rows, columns, form)),
    )


def check_direct(config: DispatchConfig, arch: Arch, arguments: tuple[object, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel: tokens, the connection of the rank to its
    peers, and results; the memory behind addresses is not checked.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    numbers = ("first_expert",) if config.sorts else ()
    found = direct.read(config, arch, current.get(), arguments, config.arguments, numbers)
    x, ids = found["x"], found["topk_ids"]
    check_tokens(x, ids, found["topk_weights"])
    check_quantised(x, config.format)
    of_link = (found["inbox"], found["peers"], found["state"], found.get("notes"))
    link = Link(*of_link, by_flags=config.by_flags)
    check_link(link, ("x", x.device))
    out = Tokens(*(found.get(f"out_{name}") for name in ("x", "ids", "weights", "scale")))  # type: ignore[arg-type]
    if config.sorts:
        check_order(found, config)
    results = [("out_x", out.x, x), ("out_ids", out.topk_ids, ids)]
    if config.leaves:
        results = results[1:]
        common.require("out_ids", out.topk_ids, [torch.int32], rank=(2, "(T, top_k)"))
        out = out._replace(x=x.new_empty(len(out.topk_ids), x.shape[1]))
    check_received(out, config.format, x.shape[1])
    vectors = vectors_of(x.shape[1], ids.shape[1], config.format)
    room_of(results[0][0], out.topk_ids, link, len(x), vectors)
    for name, mine, wanted in results:
        if mine.shape[1] != wanted.shape[1]:
            shape = f"{wanted.shape[1]} columns, as what is sent"
            raise InputError(name, f"must have {shape} (got {mine.shape[1]})")
