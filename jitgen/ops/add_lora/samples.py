# SPDX-License-Identifier: Apache-2.0
"""Sample calls of `add_lora` that test a kernel, with their right results."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.add_lora import RANKS, AddLoraConfig
from jitgen.ops.add_lora import reference
from jitgen.ops.edges import around, in_pairs
from jitgen.ops.sizes import AnySizes, Number
from jitgen.ops.solved import Output, Solved, further_than, nothing_unreachable, untouched
from jitgen.support.frozen import frozen

_WARP, _VECTOR = 32, 8
_EXPERTS, _FIRST, _ADAPTERS, _TOP_K = 3, 2, 2, 2
_SLICE, _SLICES = 128, 16  # columns of x: every 16th 128 of them are one sum
_STEP = 64  # columns of y that a warp computes at once


@frozen
class Sizes(AnySizes):
    """
    The sizes of a call.

    Attributes:
        tokens: Tokens, of two experts each.
        n: Columns of y.
        k: Columns of x.
        rank: Columns of b.
        parts: Parts of y's columns.
    """

    numbers = (
        Number("T", "tokens"),
        Number("N", "columns", multiple=2 * _VECTOR),
        Number("K", "K", multiple=_VECTOR),
        Number("R", "rank", most=RANKS[-1]),
    )
    words = "{tokens} tokens, N {n}, K {k}, {parts} x rank {rank}"

    tokens: int
    n: int
    k: int
    rank: int
    parts: int = 1
    num_sms: int = 1

    @classmethod
    def of(cls, config: AddLoraConfig, arch: Arch) -> tuple[Self, ...]:
        """
        Return sizes that test `config`: slices of x with one chunk and with two, and a tail of one
        vector, and more of b than the stages hold; several windows of rows, with more rows of one
        adapter and expert than are computed at once, and two parts.
        """
        wide = 2 * _STEP * (config.tiling.threads // _WARP) + 2 * _VECTOR
        return (
            cls(tokens=2, n=wide, k=_SLICES * _SLICE + _VECTOR, rank=64),
            cls(tokens=_WARP + 2, n=16, k=_VECTOR, rank=64, parts=2),
        )

    @classmethod
    def edges(cls, config: AddLoraConfig, arch: Arch) -> tuple[Self, ...]:
        tokens, columns, size_k, _ = cls.numbers
        sizes = in_pairs(
            around(tokens, _WARP // _TOP_K),
            around(columns, _STEP, _STEP * (config.tiling.threads // _WARP)),
            around(size_k, _SLICE, _SLICES * _SLICE),
            RANKS,
            (1, 2),
        )
        return tuple(cls(tokens=t, n=n, k=k, rank=r, parts=p) for t, n, k, r, p in sizes)

    @classmethod
    def of_numbers(cls, config: AddLoraConfig, *numbers: int) -> Self:
        tokens, n, k, rank = numbers
        return cls(tokens=tokens, n=n, k=k, rank=next(each for each in RANKS if each >= rank))


unreachable = nothing_unreachable


def tile(_config: AddLoraConfig) -> tuple[int, int]:
    """Return the rows and columns of the tiles by which wrong results are reported."""
    return _VECTOR, _STEP


def make(
    config: AddLoraConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
    device: str = "cpu",
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed` on the same `device`.

    Rows are in the order of experts; rows without a pair follow them. Every fifth token has no
    adapter, and some tokens have a number that belongs to no adapter; some pairs have experts of
    other devices. With `by_row`, rows of x without a pair are NaN. Values of exact calls are small
    integers, and their scales powers of two. Results of other calls may differ from the right ones
    by one step of bfloat16 and by the rounding errors of float32 sums.
    """
    chance = torch.Generator(device).manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=chance, device=device)

    def values(*shape: int) -> Tensor:
        if is_exact:
            return draw(-2, 2, *shape).bfloat16()
        return torch.randn(shape, generator=chance, device=device).bfloat16()

    topk_ids = draw(_FIRST - 1, _FIRST + _EXPERTS, sizes.tokens, _TOP_K).int()
    topk_ids[0, 0] = _FIRST
    adapter_ids = draw(0, _ADAPTERS, sizes.tokens).int()  # the last is none's
    adapter_ids[::3] = 0
    adapter_ids[4::5] = -1
    limits = torch.iinfo(torch.int32)
    for token, number in ((7, limits.min), (11, limits.max)):
        adapter_ids[token : token + 1] = number
    flat = topk_ids.flatten()
    pairs = torch.argsort(flat, stable=True)
    here = ((flat >= _FIRST) & (flat < _FIRST + _EXPERTS))[pairs]
    rows = pairs.new_full((len(pairs) + 2,), -1)
    rows[: int(here.sum())] = pairs[here]
    permutation = rows.int()
    count, inner = len(permutation), sizes.parts * sizes.rank
    x = values(count if config.by_row else sizes.tokens, sizes.k)
    if config.by_row:
        x[permutation < 0] = float("nan")
    a = values(_ADAPTERS, _EXPERTS, inner, sizes.k)
    b = values(_ADAPTERS, _EXPERTS, sizes.n, sizes.rank)
    scales = torch.tensor([0.5, 2.0] if is_exact else [0.3, 1.7], device=device)
    if is_exact:  # few values are not 0, so that sums fit in bfloat16's eight bits
        a *= (draw(0, sizes.k, *a.shape) < 2).bfloat16()
        b *= (draw(0, sizes.rank, *b.shape) < 2).bfloat16()
    named = {
        "y": values(count, sizes.n),
        "x": x,
        "a": a,
        "b": b,
        "scales": scales,
        "adapter_ids": adapter_ids,
        "topk_ids": topk_ids,
        "permutation": permutation,
    }
    more = {"first_expert": _FIRST, "by_row": config.by_row}
    expected = reference.add_lora(**named, **more)  # type: ignore[arg-type]
    allowed: Tensor | float = 0.0
    if not is_exact:
        floats = ("y", "x", "a", "b")
        magnitudes = {
            name: named[name].nan_to_num().abs() if name in floats else named[name]
            for name in named
        }
        lost = reference.add_lora(**magnitudes, **more).float() * 2.0**-18  # type: ignore[arg-type]
        allowed = expected.float().abs() * 2.0**-7 + lost
    out = untouched(torch.empty_like(expected))
    return Solved(
        tensors=(*named.values(), out, _FIRST),
        arguments=named | more | {"out": out},
        is_exact=is_exact,
        outputs=(
            Output(
                name="out",
                found=out,
                expected=expected,
                owned=permutation >= 0,
                differ=further_than(allowed),
            ),
        ),
    )
