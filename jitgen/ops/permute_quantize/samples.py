# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `permute_quantize` that test a kernel, with their right results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.config.operation import Excuse
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Walk
from jitgen.formats import atoms
from jitgen.ops.dispatch import reference as of_ranks
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.call import Tokens
from jitgen.ops.dispatch.reference import quantised
from jitgen.ops.edges import around, in_pairs, rows_around
from jitgen.ops.permute_quantize import reference
from jitgen.ops.permute_quantize.dispatch import new_by_token, new_tensors
from jitgen.ops.permute_quantize.validate import Arguments
from jitgen.ops.quantize.samples import COLUMNS, drawn, global_scales, owned_scales
from jitgen.ops.route import reference as of_route
from jitgen.ops.sizes import GROUPS, ROWS, AnySizes, Number, grouped_rows, unequal_rows
from jitgen.ops.solved import Output, Solved, nothing_unreachable, untouched
from jitgen.ops.tensors import owned_rows
from jitgen.support.frozen import frozen

_WARP = 32
_ROUND = 7  # of the inbox that tokens are taken from

FIRST_EXPERT = 3
"""
The first local expert. The experts before it, and two after the last one, are on other devices.
"""


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        rows: Rows of each group. Together with the rows of no group, they have the pairs of all
            tokens.
        top_k: Number of places of a token.
        k: Columns of a token.
    """

    numbers = (
        GROUPS,
        ROWS,
        Number("K", "K", multiple=COLUMNS),
        Number("TOP", "places of a token", most=_WARP),
    )
    words = "rows {rows}, top {top_k}, K {k}"

    rows: tuple[int, ...]
    top_k: int
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: PermuteQuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: more groups than lanes, which are empty, tiny, one row
        short of a tile and one row beyond it; more places than a loop takes at once; and more
        columns than the threads of a CTA hold, with a tail.
        """
        tiling = config.tiling
        vectors = tiling.threads * tiling.held if config.format is Format.ROW else _WARP
        tall = atoms.ROWS + 1 if config.format.has_atoms else 2 * tiling.rows
        rows = (3, 0, tiling.rows + 1, *[0] * _WARP, tiling.rows - 1, tall, 9 * tiling.rows)
        return (cls(rows=rows, top_k=7, k=vectors * tiling.vector + 8 * COLUMNS + COLUMNS),)

    @classmethod
    def edges(cls, config: PermuteQuantizeConfig, arch: Arch) -> tuple[Self, ...]:
        tiling, (columns, places) = config.tiling, cls.numbers[2:]
        lanes = tiling.vector * _WARP
        per_cta = tiling.vector * tiling.threads * tiling.held
        is_row = config.format is Format.ROW
        heights = (tiling.rows, atoms.ROWS) if config.format.has_atoms else (tiling.rows,)
        sizes = in_pairs(
            rows_around(*heights),
            around(places, _WARP),
            around(columns, lanes, per_cta if is_row else 3 * lanes),
        )
        return tuple(cls(rows=rows, top_k=top, k=k) for rows, top, k in sizes)

    @classmethod
    def of_numbers(cls, config: PermuteQuantizeConfig, *numbers: int) -> Self:
        groups, m, k, top_k = numbers
        return cls(rows=unequal_rows(m, groups), top_k=top_k, k=k)


def unreachable(config: PermuteQuantizeConfig) -> tuple[Excuse, ...]:
    """Return the branches that no sample reaches: those of waits, if a kernel takes tokens."""
    if config.walk is not Walk.TAKE:
        return nothing_unreachable(config)
    reason = "tokens are in the inbox before the kernel begins"
    return (Excuse(condition="is_waiting", reason=reason, function="is_over"),)


def tile(config: PermuteQuantizeConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return config.tiling.rows, _WARP * config.tiling.vector


def make(
    config: PermuteQuantizeConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Every fifth token has no row, except the last one; the first and the last pair have rows; and
    every layout has rows of no group. Some rows of the inverse are out of range, and some pairs if
    the kernel gathers.
    """
    chance = torch.Generator(device).manual_seed(seed)
    rows = sum(sizes.rows)
    tokens = -(-rows * 5 // (4 * sizes.top_k)) + 2
    x = drawn(chance, (tokens,), sizes.k, config.format, is_exact=is_exact)
    wanted = torch.arange(tokens * sizes.top_k, device=device)
    token = wanted // sizes.top_k
    wanted = wanted[(token % 5 != 4) | (token == tokens - 1)]
    order = torch.randperm(len(wanted) - 2, generator=chance, device=device) + 1
    ends = torch.tensor([len(wanted) - 1, 0], device=device)
    pairs = wanted[torch.cat([ends, order])[:rows]]
    pairs = pairs[torch.randperm(rows, generator=chance, device=device)].int()
    if config.walk is Walk.GATHER:
        is_last = pairs == tokens * sizes.top_k - 1
        pairs = _spoilt(pairs, (pairs % 9 == 4) & ~is_last, tokens * sizes.top_k)
    return solved(config, x, pairs, sizes, is_exact=is_exact)


def _copied(config: PermuteQuantizeConfig, x: Tensor, case: Solved) -> Solved:
    """Return the call of a kernel that quantises and scatters `x`, of tokens quantised before."""
    given, x_scale = quantised(x, config.format)
    inverse, permutation, out = (case.arguments[name] for name in ("inverse", "permutation", "out"))
    relay = (permutation,) if config.tiling.is_relayed else ()
    return replace(
        case,
        tensors=(given, x_scale, inverse, *out, *relay),
        arguments={
            "x": given,
            "x_scale": x_scale,
            "inverse": inverse,
            "permutation": permutation,
            "form": config.format,
            "out": out,
        },
    )


def _taken(x: Tensor, case: Solved) -> Solved:
    """Return the call of a kernel that quantises and scatters `x`, of tokens in an inbox."""
    inverse, out = case.arguments["inverse"], case.arguments["out"]
    weights = torch.ones(inverse.shape, device=x.device)
    sent = of_ranks.vectors(Tokens(x, inverse, weights))
    ranks = 2 if len(x) % 2 == 0 else 1
    inbox = of_ranks.tagged(sent, _ROUND).view(ranks, -1, 4)
    state = rounds.new_state(0, 1000, str(x.device))
    state[rounds.DISPATCHED] = _ROUND
    scales = [each for each in out[1:] if each is not None]
    link = rounds.Link(inbox, torch.zeros(ranks, dtype=torch.int64, device=x.device), state)
    named = {"link": link, "inverse": inverse, "columns": x.shape[1], "out": out}
    return replace(
        case,
        tensors=(inbox, state, inverse, out[0], *scales),
        arguments={**named, "form": Format(case.arguments["format"])},
    )


def _spoilt(numbers: Tensor, chosen: Tensor, count: int) -> Tensor:
    """
    Return int32 `numbers` in which the `chosen` ones are replaced by negative numbers and by
    numbers of at least `count`.
    """
    limits = torch.iinfo(torch.int32)
    others = torch.tensor([-1, count, limits.max, limits.min, count + 1], device=numbers.device)
    places = torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)
    return torch.where(chosen, others[places % len(others)].int(), numbers)


def solved(
    config: PermuteQuantizeConfig, x: Tensor, pairs: Tensor, sizes: Sizes, *, is_exact: bool
) -> Solved:
    """
    Return the call that permutes `x` by `pairs`, with its right results. `pairs` are numbers of
    (token, place) in the order of the result's rows. Rows of pairs out of range are not written; if
    scales lie in atoms, which have no gaps, these rows are those of the last token.
    """
    if config.walk is Walk.COPY:
        scatter = replace(config, walk=Walk.SCATTER)
        return _copied(config, x, solved(scatter, x, pairs, sizes, is_exact=is_exact))
    if config.walk is Walk.TAKE:
        scatter = replace(config, walk=Walk.SCATTER)
        return _taken(x, solved(scatter, x, pairs, sizes, is_exact=is_exact))
    is_sorting = config.walk is Walk.SORT
    if is_sorting:
        pairs = in_order(pairs, sizes.rows)
    form = config.format
    lead, groups = grouped_rows(config.layout, sizes.rows)
    if config.layout is Layout.RAGGED:
        lead = (len(x) * sizes.top_k,)
    groups = groups.to(x.device)
    rows: dict[str, Any] = dict.fromkeys(ARGUMENT.values()) | {ARGUMENT[config.layout]: groups}
    owned = owned_rows(lead[-1], **rows)
    permutation = torch.full(lead, -1, dtype=torch.int32, device=x.device)
    permutation[owned] = pairs
    count = len(x) * sizes.top_k
    exists = (pairs >= 0) & (pairs < count)
    inverse = torch.full((count,), -1, dtype=torch.int32, device=x.device)
    inverse[pairs[exists].long()] = torch.arange(len(pairs), device=x.device)[exists].int()
    inverse = _spoilt(inverse, inverse < 0, lead[-1])
    given = _given(config, x, len(groups))
    options: dict[str, Any] = {
        "top_k": sizes.top_k,
        **rows,
        "format": str(form),
        "global_scale": given,
        "power_of_two": config.power_of_two,
        "rounding": str(config.rounding),
    }
    of_pairs = permutation
    if form.has_atoms:
        of_pairs = permutation.clone()
        of_pairs[owned] = pairs.where(exists, count - 1)
    else:
        owned = owned.masked_scatter(owned, exists)
    expected_q, expected_scale = reference.permute_quantize(x, of_pairs, **options)
    named = options | {
        "permutation": permutation,
        "inverse": inverse.view(len(x), -1) if config.walk is Walk.SCATTER else None,
    }
    q, scale = new_tensors(Arguments(x=x, **named))
    outputs = [Output(name="q", found=untouched(q), expected=expected_q, owned=owned)]
    if scale is not None and expected_scale is not None:
        has_scale = owned_scales(scale, owned, rows["offs"]) if form.has_atoms else owned
        outputs.append(
            Output(name="scale", found=untouched(scale), expected=expected_scale, owned=has_scale)
        )
    index: tuple[Tensor, ...] = (permutation, groups)
    last: tuple[Any, ...] = (sizes.top_k,)
    if config.walk is Walk.SCATTER:
        index = (named["inverse"],)
        last = (permutation, untouched(new_by_token(x))) if config.tiling.is_relayed else ()
    elif is_sorting:
        ids = experts_of(pairs, sizes.rows, len(x), sizes.top_k)
        order = order_of(ids, len(groups))
        index, last = (ids,), (*(each.found for each in order), FIRST_EXPERT)
        outputs += order
        named = named_of(ids, len(groups), given, config)
    scales = [each for each in (scale, given) if each is not None]
    return Solved(
        tensors=(x, *index, q, *scales, *last),
        arguments={"x": x, "out": (q, scale), **named},
        is_exact=is_exact,
        outputs=tuple(outputs),
    )


def _given(config: PermuteQuantizeConfig, x: Tensor, groups: int) -> Tensor | None:
    """
    Return the argument `global_scale`; None if the format needs none. Some for NVFP4 are so small
    that values are clipped.
    """
    if config.format is Format.TENSOR:
        return torch.tensor([0.0117], device=x.device)
    if config.format is not Format.NVFP4:
        return None
    return global_scales(x, groups if config.layout is Layout.MASKED else 1)


def in_order(pairs: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the pairs sorted within each group; `rows` are the rows of each group."""
    parts = torch.split(pairs, list(rows))
    return torch.cat([part.sort().values for part in parts])


def experts_of(pairs: Tensor, rows: tuple[int, ...], tokens: int, top_k: int) -> Tensor:
    """
    Return (T, k) experts whose local pairs are `pairs`, in groups of `rows`; all other pairs have
    an expert of another device, or none.
    """
    groups = len(rows)
    others = torch.tensor(
        [-1, 0, FIRST_EXPERT - 1, FIRST_EXPERT + groups, FIRST_EXPERT + groups + 1]
    )
    ids = others.repeat(-(-tokens * top_k // len(others)))[: tokens * top_k].to(torch.int32)
    local = torch.arange(groups).repeat_interleave(torch.tensor(rows))
    ids[pairs.cpu().long()] = (local + FIRST_EXPERT).to(torch.int32)
    return ids.view(tokens, top_k).to(pairs.device)


def order_of(topk_ids: Tensor, groups: int) -> list[Output]:
    """
    Return the expected order of the pairs (offs, permutation, inverse), each with a tensor that the
    kernel writes.
    """
    expected = of_route.sort_pairs(
        topk_ids, experts=FIRST_EXPERT + groups + 2, first_expert=FIRST_EXPERT, local_experts=groups
    )
    return [
        Output(name=name, found=untouched(torch.empty_like(each)), expected=each)
        for name, each in expected._asdict().items()
    ]


def named_of(topk_ids: Tensor, groups: int, given: Tensor | None, config: Any) -> dict[str, Any]:
    """Return the arguments of `sort_quantize` by name, without x."""
    kind: PermuteQuantizeConfig = config
    return {
        "topk_ids": topk_ids,
        "experts": FIRST_EXPERT + groups + 2,
        "first_expert": FIRST_EXPERT,
        "local_experts": groups,
        "format": str(kind.format),
        "global_scale": given,
        "power_of_two": kind.power_of_two,
    }
