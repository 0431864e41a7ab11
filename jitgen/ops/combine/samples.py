# SPDX-License-Identifier: Apache-2.0
"""Calls of `combine` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.combine import MOST_PLACES, CombineConfig
from jitgen.config.operation import Result
from jitgen.errors import ConfigError
from jitgen.ops.combine import reference
from jitgen.ops.solved import Compared, compared, nothing_unreachable, numbers_of, relative_errors
from jitgen.support.frozen import frozen

UNTOUCHED = 77
"""What bytes of the result hold before."""

_WARP, _VECTOR = 32, 8


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        tokens: Tokens.
        top_k: Places of a token.
        n: Columns.
        num_sms: SMs of the GPU: few, so that a warp gets several tiles.
    """

    tokens: int
    top_k: int
    n: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: CombineConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: a tile that is not full, more places than are loaded at
        once, and more columns than a warp has, with a tail of one vector; and tokens that have no
        places at all, for which compilers write code of their own.
        """
        tiling = config.tiling
        top_k = min(MOST_PLACES, 2 * tiling.loads + 1)
        wide = cls(tokens=9 * tiling.rows + 1, top_k=top_k, n=_VECTOR * (_WARP + 1))
        return wide, replace(wide, top_k=0)

    @classmethod
    def parse(cls, text: str, config: CombineConfig) -> Self:  # noqa: ARG003  # any serves
        """
        Return the sizes that ``T:N:TOP`` stands for.

        Raises:
            ConfigError: `text` is something else.
        """
        tokens, n, top_k = numbers_of(text, 3)
        if min(n, top_k) < 1 or n % _VECTOR or top_k > MOST_PLACES:
            raise ConfigError(
                f"problem {text!r} is not T:N:TOP: tokens, columns, a multiple of {_VECTOR}, and "
                f"places of a token, at most {MOST_PLACES}"
            )
        return cls(tokens=tokens, top_k=top_k, n=n)

    def __str__(self) -> str:
        """Return the sizes in words."""
        return f"{self.tokens} tokens, top {self.top_k}, N {self.n}, {self.num_sms} SMs"


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        named: What `jitgen.combine` takes, by its names, without out.
        is_exact: Whether sums are the same however often they are rounded.
        out: What the kernel writes.
        expected: What it must be.
        allowed: How far a value may be from it: a step of bfloat16, and what float32 sums lose.
    """

    tensors: tuple[Any, ...]
    named: dict[str, Any]
    is_exact: bool
    out: Tensor
    expected: Tensor
    allowed: Tensor

    def solve(self, function: Callable[..., Tensor]) -> int:
        """Let what takes the arguments of `jitgen.combine` solve it; return `wrong`."""
        function(**self.named, out=self.out)
        return self.wrong()

    def results(self) -> list[Result]:
        """Return the result, value by value."""
        found, expected = self.out.float(), self.expected.float()
        is_right = (found == expected) | (found.isnan() & expected.isnan())
        if not self.is_exact:
            is_right |= (found - expected).abs() <= self.allowed
        return [compared("out", found, expected, ~is_right)]

    def errors(self) -> tuple[float, float]:
        """Return the error in the Frobenius norm, and the largest one, relative."""
        return relative_errors(self.out.double(), self.expected.double())


unreachable = nothing_unreachable


def tile(config: CombineConfig) -> tuple[int, int]:
    """Return rows and columns of what is told of wrong results together."""
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

    Every fourth place has no row, the second token none at all; rows come in any order. Those
    of no token are NaN, which must not be read into a sum. Weights of exact calls are powers of
    two.
    """
    chance = torch.Generator(device).manual_seed(seed)
    shape = (sizes.tokens, sizes.top_k)
    pairs = sizes.tokens * sizes.top_k
    rows = torch.randperm(pairs + 3, generator=chance, device=device)[:pairs].view(shape).int()
    no_row = torch.randint(4, shape, generator=chance, device=device) == 0
    no_row[1:2] = True
    inverse = rows.masked_fill(no_row, -1)
    y = torch.full((pairs + 3, sizes.n), float("nan"), device=device)
    if is_exact:
        values = torch.randint(-8, 9, (pairs, sizes.n), generator=chance, device=device).float()
        powers = torch.randint(-2, 1, shape, generator=chance, device=device)
        weights = torch.exp2(powers.float())
        shared = torch.randint(-8, 9, (sizes.tokens, sizes.n), generator=chance, device=device)
    else:
        values = torch.randn(pairs, sizes.n, generator=chance, device=device)
        weights = torch.rand(shape, generator=chance, device=device)
        shared = torch.randn(sizes.tokens, sizes.n, generator=chance, device=device)
    y[rows.flatten().long()] = values
    y[inverse.new_tensor(sorted({*range(pairs + 3)} - {*inverse.flatten().tolist()})).long()] = (
        float("nan")
    )
    extra = shared.bfloat16() if config.has_shared else None
    named = {"y": y.bfloat16(), "inverse": inverse, "topk_weights": weights, "shared": extra}
    return solved(named, is_exact=is_exact)


def solved(named: dict[str, Any], *, is_exact: bool) -> Solved:
    """Return the call with these arguments."""
    y, inverse, weights, shared = named.values()
    expected = reference.combine(y, inverse, weights, shared=shared)
    sizes = reference.combine(
        y.abs(), inverse, weights.abs(), shared=None if shared is None else shared.abs()
    )
    out = torch.empty_like(expected)
    out.view(torch.uint8).fill_(UNTOUCHED)
    extra = () if shared is None else (shared,)
    return Solved(
        tensors=(y, inverse, weights, *extra, out),
        named=named,
        is_exact=is_exact,
        out=out,
        expected=expected,
        allowed=expected.abs().float() * 2.0**-7 + sizes.float() * 2.0**-20,
    )
