# SPDX-License-Identifier: Apache-2.0
"""
Instructions that lanes of a warp execute together: shuffles, votes, elections, matches, reductions.

PTX ISA, sections "shfl.sync", "vote.sync", "match.sync", "activemask", "redux.sync", "elect.sync".
All but activemask wait for the lanes of their member mask; that this orders memory is said of
"bar.warp.sync" alone, see `jitgen.emulator.machine.lanes`.

The functions lay the threads of a fragment out as a table [warps, 32]; a lane that is not there
takes no part. Blocks with these instructions are entered by whole warps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import Integers, PerThread, Scalar
from jitgen.emulator.machine.fragment import WARP, Fragment
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

Table = NDArray[np.int64]
Votes = NDArray[np.bool_]
"""Votes of the lanes [warps, 32]."""

LANES = np.arange(WARP)

_ALL = {"-1", "0xffffffff", "4294967295"}

EVERYONE = np.uint32(0xFFFFFFFF)


def is_whole_warp(instruction: Instruction) -> bool:
    """Return whether all lanes are named: any member mask but an immediate one with zeros."""
    members = instruction.operands[-1]
    return members.startswith("%") or members.lower() in _ALL


def members_of(instruction: Instruction) -> int:
    """Return an immediate member mask that leaves lanes out, else 0."""
    members = instruction.operands[-1]
    return 0 if is_whole_warp(instruction) else int(members.rstrip("Uu"), 0) & 0xFFFFFFFF


def table(f: Fragment, values: NDArray[Scalar] | Scalar, absent: int = 0) -> NDArray[Scalar]:
    """Return values [n] as [warps, 32], with `absent` where a lane is not in the fragment."""
    values = f.spread(values)
    if f.n == len(f.warps) * WARP:
        return values.reshape(-1, WARP)
    laid_out = np.full(len(f.warps) * WARP, absent, values.dtype)
    laid_out[f.threads.in_warps] = values
    return laid_out.reshape(-1, WARP)


def untable(f: Fragment, laid_out: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return the values [n] of a table [warps, 32]."""
    flat = laid_out.reshape(-1)
    return flat if f.n == len(flat) else flat[f.threads.in_warps]


def _names_all(members: PerThread) -> bool:
    """Return whether a member mask, or each of [n], names all lanes."""
    return not np.count_nonzero(members != EVERYONE)


def meet(
    f: Fragment, at: int, mask: NDArray[np.bool_] | None, members: PerThread, orders: bool
) -> None:
    """
    Note that the lanes of a member mask wait for each other.

    Args:
        f: The fragment that executes the instruction.
        at: Index of the instruction.
        mask: The threads whose guard holds [n]; None: all.
        members: The member mask, [n] or a scalar.
        orders: Whether the lanes' memory accesses are ordered, too.
    """
    del at
    clocks, agents = f.cluster.clocks, f.selected_warps(mask)
    lanes, vector = clocks.lanes, clocks.vector
    if _names_all(members):
        (lanes.bring if orders else lanes.wait)(vector, agents)
        return
    chosen = f.selected(mask)
    named = f.spread(members)[chosen]
    for agent in agents.tolist():
        for group in set(named[f.agent_of[chosen] == agent].tolist()):
            if not is_all_alive(f, agent, group):
                lanes.meet(vector, agent, group, orders=orders)
            else:
                (lanes.bring if orders else lanes.wait)(vector, np.array([agent]))


def is_all_alive(f: Fragment, agent: int, members: int) -> bool:
    """Return whether a member mask names at least as many lanes as live in a warp."""
    return members.bit_count() >= int(f.cta.live[agent - f.cta.agent0])


def present(f: Fragment, at: int, members: PerThread) -> NDArray[np.bool_]:
    """
    Return which lanes take part [warps, 32]: those that the member mask of their warp names.

    They wait for each other here.

    Raises:
        MachineFault: A named lane that lives is not in the fragment, or the caller is not named.
    """
    here = f.threads.is_here
    meet(f, at, None, members, False)
    if _names_all(members):
        return here
    masks = f.spread(members)[f.warp_starts].astype(np.uint32)
    named = (masks[:, None] >> LANES.astype(np.uint32) & np.uint32(1)).astype(np.bool_)
    missing = int((named & ~here).sum())
    if missing and not f.is_whole():
        f.fault(at, f"{missing} lanes of the member mask are elsewhere, which is not modelled")
    if (here & ~named).any():
        f.fault(at, "a lane executes the instruction that its member mask does not name")
    return here & named


# --- elect, activemask ---------------------------------------------------------------------------


@emits("elect.sync", whole_warp=is_whole_warp, members=members_of)
def elect(builder: Builder, instruction: Instruction) -> None:
    """Translate ``elect.sync d|p, members``: the lowest lane that takes part."""
    lane, _, predicate = instruction.operands[0].partition("|")
    members = builder.value(instruction.operands[1], "b32")
    chosen = builder.temporary()
    builder.do(f"{chosen} = {builder.call(elect_lane, members)}")
    if lane != "_":
        builder.define(lane, f"{chosen}[0]", "b32", instruction)
    builder.define(predicate, f"{chosen}[1]", "pred", instruction)


def elect_lane(
    f: Fragment, at: int, members: PerThread
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the elected lane of each thread's warp, and whether the thread is it."""
    if _names_all(members):
        meet(f, at, None, members, False)
        lanes = f.threads.lowest_lanes
    else:
        lanes = _per_warp(f, present(f, at, members).argmax(axis=1).astype(np.uint32))
    return lanes, lanes == f.threads.lane_ids


@emits("activemask")
def active(builder: Builder, instruction: Instruction) -> None:
    """Translate ``activemask.b32 d``: the lanes that happen to be at the same place."""
    builder.define(instruction.operands[0], builder.call(active_mask), "b32", instruction)


def active_mask(f: Fragment, at: int) -> NDArray[np.uint32]:
    """Return the lanes of each thread's warp that are in the fragment."""
    return _per_warp(f, _ballot(f.threads.is_here))


def _ballot(votes: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return bit masks [warps] of votes [warps, 32]."""
    weights = np.left_shift(np.uint64(1), LANES.astype(np.uint64))
    sums: NDArray[np.uint32] = (votes * weights).sum(axis=1).astype(np.uint32)
    return sums


def _per_warp(f: Fragment, values: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return values of warps [warps] for each thread [n]."""
    return np.repeat(values, f.threads.counts)


# --- shfl ----------------------------------------------------------------------------------------


@emits("shfl.sync", whole_warp=is_whole_warp, members=members_of)
def shuffle(builder: Builder, instruction: Instruction) -> None:
    """Translate ``shfl.sync.mode.b32 d|p, a, b, c, members``."""
    mode = instruction.parts[2]
    if mode not in _SOURCES or instruction.parts[3:] != ("b32",):
        raise Unsupported(f"shfl {mode}")
    value, predicate = _pair(instruction.operands[0])
    operands = [builder.value(operand, "b32") for operand in instruction.operands[1:]]
    result = builder.temporary()
    builder.do(f"{result} = {builder.call(shuffle_lanes, repr(mode), *operands)}")
    builder.define(value, f"{result}[0]", "b32", instruction)
    if predicate != "_":
        builder.define(predicate, f"{result}[1]", "pred", instruction)


def _pair(operand: str) -> tuple[str, str]:
    """Return the two registers of ``d|p``; "_" for one that is missing."""
    value, _, predicate = operand.partition("|")
    return value, predicate or "_"


_SOURCES: dict[str, Callable[[Table, Table, Table, Table], tuple[Table, Votes]]] = {
    "up": lambda lane, b, _, last: (lane - b, lane - b >= last),
    "down": lambda lane, b, _, last: (lane + b, lane + b <= last),
    "bfly": lambda lane, b, _, last: (lane ^ b, (lane ^ b) <= last),
    "idx": lambda _, b, first, last: (first | b, (first | b) <= last),
}
"""The lane that a lane reads and whether that is in its segment, of (lane, b, first, last)."""


def shuffle_lanes(
    f: Fragment,
    at: int,
    mode: str,
    values: PerThread,
    lanes: PerThread,
    clamp: PerThread,
    members: PerThread,
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return what each thread reads of another lane, and whether that lane is in its segment."""
    here = present(f, at, members)
    if isinstance(lanes, np.generic) and isinstance(clamp, np.generic):
        source, is_inside = _common_sources(mode, int(lanes), int(clamp))
        moved, is_there = table(f, values)[:, source], here[:, source]
        is_inside = np.broadcast_to(is_inside, moved.shape)
    else:
        b, c = (table(f, operand).astype(np.int64) for operand in (lanes, clamp))
        source, is_inside = _sources(mode, b, c)
        warps = np.arange(len(source))[:, None]
        moved, is_there = table(f, values)[warps, source], here[warps, source]
    if np.count_nonzero(here & ~is_there):
        f.warn(at, "uninitialised", "a shuffle reads a lane that takes no part")
    return untable(f, moved.astype(np.uint32, copy=False)), untable(f, is_inside)


def _sources(mode: str, b: Table, c: Table) -> tuple[Table, Votes]:
    """Return the lane that each lane reads, and if that is in its segment; operands [..., 32]."""
    segments, b = c >> 8 & 31, b & 31
    first = LANES & segments
    last = first | (c & 31 & ~segments)
    source, is_inside = _SOURCES[mode](LANES, b & ~segments if mode == "idx" else b, first, last)
    return np.where(is_inside, source, LANES) & 31, is_inside


@lru_cache(maxsize=256)
def _common_sources(mode: str, b: int, c: int) -> tuple[Table, Votes]:
    """Return `_sources` of operands that all threads share, [32]; do not write to it."""
    return _sources(mode, np.full(WARP, b), np.full(WARP, c))


# --- vote, match, redux --------------------------------------------------------------------------


@emits("vote.sync", whole_warp=is_whole_warp, members=members_of)
def vote(builder: Builder, instruction: Instruction) -> None:
    """
    Translate ``vote.sync.{all,any,uni}.pred p, a, members`` and ``vote.sync.ballot.b32 d, a,
    members``.
    """
    mode = instruction.parts[2]
    if mode not in _VOTES:
        raise Unsupported(f"vote {mode}")
    destination, predicate, members = instruction.operands
    operands = (repr(mode), builder.value(predicate, "pred"), builder.value(members, "b32"))
    result_type = "b32" if mode == "ballot" else "pred"
    builder.define(destination, builder.call(count_votes, *operands), result_type, instruction)


def _all_lanes(votes: Votes) -> Votes:
    outcome: Votes = np.logical_and.reduce(votes, axis=1)
    return outcome


def _any_lane(votes: Votes) -> Votes:
    outcome: Votes = np.logical_or.reduce(votes, axis=1)
    return outcome


_VOTES: dict[str, Callable[[Votes, Votes], NDArray[np.bool_ | np.uint32]]] = {
    "all": lambda votes, here: _all_lanes(votes | ~here),
    "any": lambda votes, here: _any_lane(votes & here),
    "uni": lambda votes, here: _all_lanes(votes | ~here) | ~_any_lane(votes & here),
    "ballot": lambda votes, here: _ballot(votes & here),
}
"""The result of each warp, of votes and lanes that take part [warps, 32]."""


def count_votes(
    f: Fragment, at: int, mode: str, votes: Votes | np.bool_, members: PerThread
) -> NDArray[np.bool_ | np.uint32]:
    """Return the outcome of the vote of each thread's warp."""
    return _per_warp(f, _VOTES[mode](table(f, votes), present(f, at, members)))


@emits("match.any.sync", "match.all.sync", whole_warp=is_whole_warp, members=members_of)
def match(builder: Builder, instruction: Instruction) -> None:
    """Translate ``match.any.sync.b32 d, a, members`` and ``match.all.sync.b32 d|p, a, members``."""
    mode, value_type = instruction.parts[1], instruction.parts[-1]
    if value_type not in {"b32", "b64"}:
        raise Unsupported(f"type .{value_type}")
    value, predicate = _pair(instruction.operands[0])
    _, data, members = instruction.operands
    operands = (repr(mode), builder.value(data, value_type), builder.value(members, "b32"))
    result = builder.temporary()
    builder.do(f"{result} = {builder.call(match_lanes, *operands)}")
    builder.define(value, f"{result}[0]", "b32", instruction)
    if predicate != "_":
        builder.define(predicate, f"{result}[1]", "pred", instruction)


def match_lanes(
    f: Fragment, at: int, mode: str, values: PerThread, members: PerThread
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """
    Return the lanes with the same value as each thread's, and whether that is all of them.

    Mode "all" gives no lanes where one differs.
    """
    here = present(f, at, members)
    data = table(f, values)
    equal = (data[:, :, None] == data[:, None, :]) & here[:, None, :]
    lanes = _ballot(equal.reshape(-1, WARP)).reshape(-1, WARP)
    is_all = (equal | ~here[:, None, :]).all(axis=2)
    if mode == "all":
        lanes = np.where(is_all, lanes, np.uint32(0))
    return untable(f, lanes), untable(f, is_all)


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@emits("redux.sync", whole_warp=is_whole_warp, members=members_of)
def redux(builder: Builder, instruction: Instruction) -> None:
    """Translate ``redux.sync.op.type d, a, members``; .f32 has min and max, with .abs and .NaN."""
    _, _, operation, *modifiers, value_type = instruction.parts
    is_float = value_type == "f32"
    if operation not in _REDUCTIONS or value_type not in {"u32", "s32", "b32", "f32"}:
        raise Unsupported(f"redux .{operation}.{value_type}")
    if not set(modifiers) <= ({"abs", "NaN"} if is_float else set()):
        raise Unsupported(f"modifier .{modifiers[0]}")
    destination, data, members = instruction.operands
    value = builder.value(data, value_type)
    if "abs" in modifiers:
        value = f"abs({value})"
    function = _REDUCTIONS[operation]
    if is_float and "NaN" not in modifiers:
        function = np.fmin if operation == "min" else np.fmax
    operands = (
        builder.constant(function, f"reduce_{operation}"),
        value,
        builder.value(members, "b32"),
    )
    builder.define(destination, builder.call(reduce_lanes, *operands), value_type, instruction)


def reduce_lanes(
    f: Fragment, at: int, function: np.ufunc, values: PerThread, members: PerThread
) -> Integers:
    """Return the reduction of the values of each thread's warp; a sum of integers wraps around."""
    here, data = present(f, at, members), table(f, values)
    results = [function.reduce(row[mine]) for row, mine in zip(data, here, strict=True)]
    return _per_warp(f, np.array(results).astype(data.dtype))
