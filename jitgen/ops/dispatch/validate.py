# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `dispatch` and `combine_ranks`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.config.dispatch import (
    MOST_PLACES,
    MOST_RANKS,
    DispatchConfig,
    DispatchProblem,
    scale_shape,
)
from jitgen.config.format import Format
from jitgen.errors import InputError
from jitgen.ops import tensors as common
from jitgen.ops.dispatch.rounds import FLAGS, MASKING_WORDS, WORDS, Link

if TYPE_CHECKING:
    from jitgen.ops.dispatch.call import Tokens

ALIGNMENT = 8
"""Bytes of the columns of one vector."""

_INBOX_ALIGNMENT = 16

_QUANTISED = 16
"""Columns, and bytes of alignment, of tokens that are quantised before they are sent."""


def check_tokens(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    prefix: str = "",
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Require tokens with their experts and weights; `prefix` begins their names in errors."""
    ids_name = f"{prefix}ids" if prefix else "topk_ids"
    like, pairs = (f"{prefix}x", x.device), (2, "(T, top_k)")
    check_rows(f"{prefix}x", x, like, dtype)
    common.require(ids_name, topk_ids, [torch.int32], rank=pairs, like=like, contiguous=-1)
    if len(topk_ids) != len(x) or not 1 <= topk_ids.shape[1] <= MOST_PLACES:
        allowed = f"({len(x)}, 1 to {MOST_PLACES}), as {prefix}x"
        raise InputError(ids_name, f"must have shape {allowed} (got {tuple(topk_ids.shape)})")
    common.require(
        f"{prefix}weights" if prefix else "topk_weights",
        topk_weights,
        [torch.float32],
        shape=(tuple(topk_ids.shape), f"as {ids_name}"),
        like=like,
        contiguous=-1,
    )


def check_received(out: Tokens, form: Format, columns: int) -> None:
    """Require memory for tokens of `columns` columns that are sent as `form`."""
    if form is Format.NONE:
        check_tokens(*out[:3], "out_")
        return
    check_tokens(*out[:3], "out_", torch.float8_e4m3fn)
    like = ("out_x", out.x.device)
    common.check_memory([("out_x", out.x, _QUANTISED)], like, has_memory=True)
    shape = scale_shape(len(out.x), columns, form)
    check_scales("out_scale", out.scale, shape, form, like)  # type: ignore[arg-type]  # None fails


def check_scales(
    name: str,
    scale: Tensor,
    shape: tuple[int, ...],
    form: Format,
    like: tuple[str, torch.device],
) -> None:
    """Require scales of tokens that were quantised to `form`, as `like` names these in errors."""
    common.require(
        name, scale, [torch.float32], shape=(shape, f"as {like[0]} is {form}"), like=like
    )
    if not scale.is_contiguous():
        raise InputError(name, f"must be contiguous (got strides {scale.stride()})")
    alignment = scale.element_size() if form is Format.ROW else _QUANTISED
    common.check_memory([(name, scale, alignment)], like, has_memory=True)


def check_quantised(x: Tensor, form: Format) -> None:
    """Require tokens that can be quantised before they are sent, if they are."""
    if form is Format.NONE:
        return
    if x.shape[1] % _QUANTISED:
        raise InputError(
            "x", f"must have a multiple of {_QUANTISED} columns, sent as {form} (got {x.shape[1]})"
        )
    if x.is_cuda:
        common.check_memory([("x", x, _QUANTISED)], ("x", x.device), has_memory=True)


def check_rows(
    name: str,
    rows: Tensor,
    like: tuple[str, torch.device],
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Require rows that are whole vectors."""
    common.require(name, rows, [dtype], rank=(2, "(rows, H)"), like=like, contiguous=-1)
    if not rows.shape[1] or rows.shape[1] % 4:
        raise InputError(name, f"must have a multiple of 4 columns (got {rows.shape[1]})")
    common.check_memory([(name, rows, ALIGNMENT)], like, has_memory=True)


def check_link(link: Link, like: tuple[str, torch.device]) -> None:
    """Require an inbox, addresses and a state that belong together."""
    common.require(
        "peers", link.peers, [torch.int64], rank=(1, "(ranks,)"), like=like, contiguous=-1
    )
    if not 1 <= link.ranks <= MOST_RANKS:
        raise InputError("peers", f"must be 1 to {MOST_RANKS} addresses (got {link.ranks})")
    inbox = link.inbox
    common.require("inbox", inbox, [torch.int32], rank=(3, "(ranks, places, 4)"), like=like)
    if (inbox.shape[0], inbox.shape[2]) != (link.ranks, 4):
        shape = f"({link.ranks}, places, 4), as peers"
        raise InputError("inbox", f"must have shape {shape} (got {tuple(inbox.shape)})")
    if not inbox.is_contiguous():
        raise InputError("inbox", f"must be contiguous (got strides {inbox.stride()})")
    common.check_memory([("inbox", inbox, _INBOX_ALIGNMENT)], like, has_memory=True)
    if link.notes is not None:
        of_notes = ((link.ranks,), "as peers")
        common.require("notes", link.notes, [torch.int64], shape=of_notes, like=like, contiguous=-1)
    of_state = ((MASKING_WORDS if link.can_mask else len(WORDS),), "its words")
    common.require("state", link.state, [torch.int32], shape=of_state, like=like, contiguous=-1)


def require_kind(config: DispatchConfig, link: Link, form: Format) -> None:
    """Require a config that masks ranks if and only if the link does, and sends this format."""
    require_masking(config, link)
    if config.format is not form:
        raise InputError("config", f"must have format={form}, as asked for (got {config.format})")


def require_room_to_sort(config: DispatchConfig, problem: DispatchProblem) -> None:
    """Require a config that sorts pairs if and only if the call does, with enough threads."""
    for name in ("sorts", "leaves"):
        have, wanted = getattr(config, name), getattr(problem, name)
        if have != wanted:
            raise InputError("config", f"must have {name}={wanted} here (got {have})")
    threads, needed = config.tiling.threads, problem.most_in_a_cta
    if threads < needed:
        raise InputError(
            "config",
            f"must have {needed} threads or more, one for each pair of a token and an expert, and "
            f"for each local expert (got {threads})",
        )


def check_order(found: Mapping[str, Any], config: DispatchConfig) -> None:
    """Require memory for the order of the pairs in `out_ids`, of which a thread has one each."""
    ids, threads = found["out_ids"], config.tiling.threads
    like = ("out_ids", ids.device)
    shapes = {"permutation": (ids.numel(),), "inverse": tuple(ids.shape)}
    for name in ("offs", *shapes):
        common.require(name, found[name], [torch.int32], like=like)
        if name in shapes:
            common.require(name, found[name], shape=(shapes[name], "as out_ids"))
        if not found[name].is_contiguous():
            raise InputError(name, f"must be contiguous (got strides {found[name].stride()})")
    offs = found["offs"]
    if offs.dim() != 1 or not 1 <= len(offs) <= threads:
        raise InputError("offs", f"must be (1 to {threads},) (got {tuple(offs.shape)})")
    if ids.numel() > threads:
        raise InputError("out_ids", f"must have at most {threads} pairs (got {ids.numel()})")
    first = found["first_expert"]
    if type(first) is not int or first < 0:
        raise InputError("first_expert", f"must be an integer of at least 0 (got {first!r})")


def require_masking(config: DispatchConfig | CombineRanksConfig, link: Link) -> None:
    """Require a config that masks ranks, or has flags, if and only if the link does."""
    if config.can_mask != link.can_mask:
        notes = "with" if link.can_mask else "without"
        raise InputError(
            "config",
            f"must have can_mask={link.can_mask}, for a link {notes} notes (got {config.can_mask})",
        )
    if config.by_flags != link.by_flags:
        raise InputError(
            "config", f"must have by_flags={link.by_flags}, as the link (got {config.by_flags})"
        )


def room_of(name: str, rows: Tensor, link: Link, tokens: int, vectors: int) -> int:
    """
    Return the number of rows of each rank in `rows`, which has those of all ranks.

    Args:
        name: Name of the argument in errors.
        rows: (ranks * room, ...).
        link: The connection of this rank to its peers, whose inbox must have places for these rows.
        tokens: Number of tokens of this rank: at most as many as rows of a rank.
        vectors: Number of vectors of a row.
    """
    room = len(rows) // link.ranks
    if len(rows) != link.ranks * room or room < max(1, tokens):
        least = max(1, tokens)
        raise InputError(
            name, f"must have {link.ranks} times {least} rows or more (got {len(rows)})"
        )
    require_places(link, room, vectors)
    return room


def require_places(link: Link, room: int, vectors: int) -> None:
    """Require an inbox for `room` rows of each rank."""
    places = link.inbox.shape[1]
    have = max(0, 2 * places - FLAGS if link.by_flags else places) // vectors
    if room > have:
        raise InputError("room", f"must be at most {have}, which the inbox is for (got {room})")
