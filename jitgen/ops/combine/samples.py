# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `combine` that test a kernel, with their right results."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch

from jitgen.config import Arch
from jitgen.config.combine import MOST_PLACES, CombineConfig
from jitgen.ops.combine import reference
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import Output, Solved, further_than, nothing_unreachable, untouched
from jitgen.support.frozen import frozen

_WARP, _VECTOR = 32, 8


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        tokens: Number of tokens.
        top_k: Number of places of a token.
        n: Columns of a token.
    """

    numbers = (
        Number("T", "tokens", least=0),
        Number("N", "columns", multiple=_VECTOR),
        Number("TOP", "places of a token", most=MOST_PLACES),
    )
    words = "{tokens} tokens, top {top_k}, N {n}"

    tokens: int
    top_k: int
    n: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: CombineConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: a tile that is not full, more places than are loaded at
        once, and more columns than a warp adds up at once, with a tail of one vector; and tokens
        that have no places at all, for which compilers write code of their own.
        """
        tiling = config.tiling
        top_k = min(MOST_PLACES, 2 * tiling.loads + 1)
        wide = cls(tokens=9 * tiling.rows + 1, top_k=top_k, n=_VECTOR * (_WARP + 1))
        return wide, replace(wide, top_k=0)

    @classmethod
    def edges(cls, config: CombineConfig, arch: Arch) -> tuple[Self, ...]:
        tokens, columns, places = cls.numbers
        sizes = in_pairs(
            around(tokens, config.tiling.rows, config.tiling.threads // _WARP),
            around(places, config.tiling.loads, MOST_PLACES),
            around(columns, _WARP * _VECTOR, 3 * _WARP * _VECTOR),
        )
        return tuple(cls(tokens=t, top_k=top, n=n) for t, top, n in sizes)

    @classmethod
    def of_numbers(cls, config: CombineConfig, *numbers: int) -> Self:
        tokens, n, top_k = numbers
        return cls(tokens=tokens, n=n, top_k=top_k)


unreachable = nothing_unreachable


def tile(config: CombineConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return config.tiling.rows, _WARP * _VECTOR


def make(
    config: CombineConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Rows are in random order, and about one place in four has no row; nor have those of the second
    token. Then, in each place, one token gets the first row, one the last row, and three get
    indices outside of y. Rows of y without a token are NaN, so that a kernel that adds them is
    found. Weights of exact calls are powers of two. Results of other calls may differ from the
    right ones by one step of bfloat16 and by the rounding errors of float32 sums.
    """
    chance = torch.Generator(device).manual_seed(seed)
    shape = (sizes.tokens, sizes.top_k)
    pairs = sizes.tokens * sizes.top_k
    rows = torch.randperm(pairs + 3, generator=chance, device=device)[:pairs].view(shape).int()
    no_row = torch.randint(4, shape, generator=chance, device=device) == 0
    no_row[1:2] = True
    inverse = rows.masked_fill(no_row, -1)
    places = torch.arange(sizes.top_k, device=device)
    if sizes.tokens:
        limits = torch.iinfo(torch.int32)
        for token, row in enumerate((0, pairs + 2, pairs + 3, limits.min, limits.max)):
            inverse[(seed + 5 * places + token) % sizes.tokens, places] = row
    all_rows = (pairs + 3, sizes.n)
    if is_exact:
        values = torch.randint(-8, 9, all_rows, generator=chance, device=device).float()
        powers = torch.randint(-2, 1, shape, generator=chance, device=device)
        weights = torch.exp2(powers.float())
        shared = torch.randint(-8, 9, (sizes.tokens, sizes.n), generator=chance, device=device)
    else:
        values = torch.randn(all_rows, generator=chance, device=device)
        weights = torch.rand(shape, generator=chance, device=device)
        shared = torch.randn(sizes.tokens, sizes.n, generator=chance, device=device)
    is_read = torch.zeros(pairs + 3, dtype=torch.bool, device=device)
    is_read[inverse[(inverse >= 0) & (inverse < pairs + 3)].long()] = True
    y = values.where(is_read[:, None], float("nan"))
    named = {"y": y.bfloat16(), "inverse": inverse, "topk_weights": weights}
    if config.has_shared:
        named["shared"] = shared.bfloat16()
    if config.is_weighted:
        of_shared = torch.randint(-2, 1, (sizes.tokens,), generator=chance, device=device)
        named["shared_weights"] = torch.exp2(of_shared.float()) * (1.0 if is_exact else 0.7)
    expected = reference.combine(**named)
    magnitudes = {name: each if name == "inverse" else each.abs() for name, each in named.items()}
    lost = reference.combine(**magnitudes).float() * 2.0**-20
    allowed = 0.0 if is_exact else expected.abs().float() * 2.0**-7 + lost
    out = untouched(torch.empty_like(expected))
    return Solved(
        tensors=(*named.values(), out),
        arguments=named | {"out": out},
        is_exact=is_exact,
        outputs=(Output(name="out", found=out, expected=expected, differ=further_than(allowed)),),
    )
