# SPDX-License-Identifier: Apache-2.0
"""Connects the ranks of a group: by shared memory if possible, otherwise by collectives."""

from __future__ import annotations

import socket
import zlib

import torch
from torch.distributed import ProcessGroup

from jitgen.config.dispatch import MOST_PLACES, MOST_RANKS
from jitgen.errors import InputError
from jitgen.events import warn_once
from jitgen.parallel.collectives import Collectives
from jitgen.parallel.memory import Shared, least, shared
from jitgen.parallel.windows import Windows
from jitgen.parallel.wire import Wire, chosen_flags, require_flags
from jitgen.selection.numerics import is_invariant, require_word

LIMIT_S = 30.0
"""How long a rank waits for another one."""

_KINDS = ("auto", "windows", "collectives")
_LATE = ("fail", "mask")


def connect(  # noqa: PLR0913  # each is one thing to say
    group: ProcessGroup,
    *,
    hidden: int,
    top_k: int,
    max_tokens: int,
    device: torch.device | str,
    kind: str = "auto",
    limit_s: float = LIMIT_S,
    late: str = "fail",
    numerics: str | None = None,
    micro_batches: int = 1,
    quantise: bool = True,
    flags_from: int | None = None,
) -> Wire:
    """
    Return the connection of this rank to the others. All ranks of the group call it, with equal
    arguments except for the device.

    Args:
        group: The ranks, such as ``torch.distributed.group.WORLD``.
        hidden: Columns of a token, a multiple of 4.
        top_k: Most experts of a token.
        max_tokens: Most tokens of a rank in a call; a layer computes more tokens in several passes.
        device: Where this rank's tokens are.
        kind: ``windows``: memory that all ranks see, of which each has ``ranks * max_tokens * (8 *
            hidden + 16 * top_k)`` bytes; ``collectives`` of torch; ``auto``: windows where ranks
            are on one host and can have them.
        limit_s: How long a rank waits for another one in its windows, in seconds.
        late: What happens if a rank is late by more than `limit_s`. ``fail``: results are invalid
            from then on, and `check` raises `PeerTimeout`. ``mask``: the others go on without the
            tokens and experts of the late rank; needs windows.
        numerics: ``invariant``: windows have room for one row per expert of a token, which layers
            with these numerics need: ``ranks * max_tokens * (8 * hidden + 16 * top_k)`` bytes
            become ``ranks * max_tokens * (4 * hidden * (1 + top_k) + 16 * (1 + top_k))``. Not with
            ``late="mask"``. None: as JITGEN_NUMERICS says.
        micro_batches: In how many parts layers compute a call with `max_tokens` tokens; those with
            fewer tokens take fewer parts of the same size. Products of one part overlap the
            exchanges of others, which run on a stream of their own. With 2 parts windows have the
            bytes above; with n parts 2 / n of them.
        quantise: Whether each rank quantises its tokens before it sends them, for layers that
            quantise tokens to ``block128`` or ``row``, which does not change their results. Only
            windows do so: collectives send bfloat16.
        flags_from: The number of tokens of a rank from which on words travel without the number of
            the round, which is half the bytes, and a flag of each CTA says that they have come.
            At least 2, or 0: never; for windows on GPUs, not with ``late="mask"``, invariant
            numerics or micro-batches. Windows have ``ranks * max_tokens * (4 * hidden + 8 *
            top_k)`` bytes for such calls, and those above only for fewer tokens. None: 128 where
            this is possible and `max_tokens` is at least 128, else never.

    Raises:
        InputError: An argument is wrong, or `kind` is ``windows`` and windows are not possible.
    """
    if not isinstance(group, ProcessGroup):
        raise InputError(
            "group",
            "must be a group of torch.distributed, such as torch.distributed.group.WORLD after "
            f"init_process_group() (got {type(group).__name__})",
        )
    _check(hidden, top_k, max_tokens, kind, limit_s)
    _check_kinds(late, numerics, kind)
    _check_ways(max_tokens, micro_batches, quantise)
    require_flags(flags_from)
    if flags_from:
        _check_flags(late, numerics, micro_batches, kind)
    try:
        device = torch.empty(0, device=device).device  # with its number
    except (RuntimeError, TypeError):
        raise InputError(
            "device", f"must be one that torch has here, such as cpu or cuda:0 (got {device!r})"
        ) from None
    if flags_from and device.type == "cpu":
        raise InputError("flags_from", "must be None on a CPU, whose kernels have no flags")
    if kind != "collectives":
        sizes = (hidden, top_k, max_tokens)
        kinds = {"can_mask": late == "mask", "is_invariant": is_invariant(numerics)}
        possible = device.type == "cuda" and micro_batches == 1 and not any(kinds.values())
        flags = chosen_flags(flags_from, max_tokens, possible=possible)
        kinds["quantises"] = quantise
        made, why = _windows(group, sizes, device, limit_s, micro_batches, flags, **kinds)
        if made is not None:
            return made
        if kind == "windows":
            raise InputError("kind", f"windows cannot be had: {why}; use collectives")
        if late == "mask":
            raise InputError("late", f"must be fail, as windows cannot be had: {why}")
        warn_once("ranks without windows", "ranks are connected by collectives: %s", why)
    return Collectives(group, max_tokens, device, micro_batches)


def _check(hidden: int, top_k: int, max_tokens: int, kind: str, limit_s: float) -> None:
    """Require sizes, a kind and a limit in their allowed ranges."""
    if kind not in _KINDS:
        raise InputError("kind", f"must be one of {', '.join(_KINDS)} (got {kind!r})")
    if type(hidden) is not int or hidden < 4 or hidden % 4:
        raise InputError("hidden", f"must be a multiple of 4 (got {hidden!r})")
    if type(top_k) is not int or not 1 <= top_k <= MOST_PLACES:
        raise InputError("top_k", f"must be 1 to {MOST_PLACES} (got {top_k!r})")
    if type(max_tokens) is not int or max_tokens < 1:
        raise InputError("max_tokens", f"must be an integer of at least 1 (got {max_tokens!r})")
    if type(limit_s) is bool or not isinstance(limit_s, (int, float)) or not 0 < limit_s < 1e6:
        raise InputError("limit_s", f"must be more than 0 seconds, less than 1e6 (got {limit_s!r})")


def _check_kinds(late: str, numerics: str | None, kind: str) -> None:
    """Require a combination of `late`, `numerics` and `kind` that is supported."""
    if late not in _LATE:
        raise InputError("late", f"must be one of {', '.join(_LATE)} (got {late!r})")
    if numerics is not None:
        require_word(numerics)
    if late == "mask" and kind == "collectives":
        raise InputError("late", "must be fail with collectives, in which all ranks wait for all")
    if late == "mask" and is_invariant(numerics):
        raise InputError("late", "must be fail with invariant numerics: sums alone can be masked")


def _check_ways(max_tokens: int, micro_batches: object, quantise: object) -> None:
    """Require what layers can do with a call."""
    if type(micro_batches) is not int or not 1 <= micro_batches <= max_tokens:
        raise InputError(
            "micro_batches", f"must be 1 to max_tokens, {max_tokens} (got {micro_batches!r})"
        )
    if type(quantise) is not bool:
        raise InputError("quantise", f"must be True or False (got {quantise!r})")


def _check_flags(late: str, numerics: str | None, micro_batches: int, kind: str) -> None:
    """Require kernels that have flags."""
    if late == "mask" or is_invariant(numerics):
        raise InputError("flags_from", "must be None with late='mask' or invariant numerics")
    if micro_batches > 1:
        raise InputError("flags_from", f"must be None with micro-batches (got {micro_batches})")
    if kind == "collectives":
        raise InputError("flags_from", "must be None with collectives, which have no flags")


def _windows(  # noqa: PLR0913  # each is one thing to say
    group: ProcessGroup,
    sizes: tuple[int, int, int],
    device: torch.device,
    limit_s: float,
    micro_batches: int,
    flags_from: int | None,
    *,
    can_mask: bool,
    is_invariant: bool,
    quantises: bool,
) -> tuple[Windows | None, str]:
    """
    Return windows, or the reason why they are not possible; all ranks come to the same answer.
    """
    if group.size() > MOST_RANKS:
        return None, f"{group.size()} ranks are more than {MOST_RANKS}"
    host = zlib.crc32(socket.gethostname().encode())
    low, high = least([host, -host], group, device)
    if low != -high:
        return None, "ranks are on several hosts"
    made: list[Shared] = []
    ranks, (hidden, top_k, most) = group.size(), sizes
    few = most if flags_from is None else min(most, flags_from - 1)
    usual = Windows.nbytes(
        ranks, hidden, top_k, few, is_invariant=is_invariant, micro_batches=micro_batches
    )
    every = usual[: 3 if can_mask else 2]
    if flags_from is not None:
        every += Windows.nbytes_by_flags(ranks, *sizes)
    for nbytes in every:
        found = shared(nbytes, group, device)
        if isinstance(found, str):
            return None, found
        made.append(found)
    return Windows(
        group,
        made[0],
        made[1],
        most,
        limit_s,
        made[2] if can_mask else None,
        is_invariant=is_invariant,
        micro_batches=micro_batches,
        quantises=quantises,
        flags_from=flags_from,
        by_flags=() if can_mask else (*made[2:],),
    ), ""
