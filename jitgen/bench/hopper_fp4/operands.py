# SPDX-License-Identifier: Apache-2.0
"""
Operands of the compared sides: weights of one size, activations of one case, and the product to
compare with.

Weights are random bits. Their scales lie within a factor of 2**8, as in checkpoints. The reference
of a side is the float32 product of the side's own quantised operands, so that its error is that of
its kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Self, TypeVar, cast

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.cases import Case
from jitgen.bench.runner import Ready
from jitgen.formats.mx32 import VALUES

SETS = 3
"""
Copies of the weights. After a flush of L2 each launch reads another copy, so that no launch finds
its weights in L2.
"""

LARGEST_ERROR = 4e-3
"""
Largest error of any row, in the Frobenius norm, relative to the exact result: rounding to bfloat16
gives 1.65e-3, one lost value in a row of 4096 gives 1.6e-2.
"""

LONG_ROWS = 1024
"""Rows of a group from which a call takes milliseconds."""

_EXPONENTS = (115, 124)
_NAN_BITS = 127
"""Code of e4m3's NaN, without the sign; the code before it is that of the largest number."""

_SEED = 0
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Weights:
    """
    MXFP4 weights of all groups, in the layout of checkpoints.

    Attributes:
        packed: (G, N, K / 2) uint8: two neighbours along K in a byte, the first one in the low
            half.
        scale: (G, N, K / 32) uint8, UE8M0.
        made: Tensors that sides made of the weights, by name: the cases of a size share them.
    """

    packed: Tensor
    scale: Tensor
    made: dict[str, object] = field(default_factory=dict)

    @classmethod
    def random(cls, groups: int, n: int, k: int, device: str) -> Self:
        """Return random bits, the same in every run."""
        chance = torch.Generator(device).manual_seed(_SEED)

        def bits(low: int, high: int, size: int) -> Tensor:
            shape = (groups, n, size)
            return torch.randint(
                low, high, shape, dtype=torch.uint8, device=device, generator=chance
            )

        return cls(packed=bits(0, 256, k // 2), scale=bits(*_EXPONENTS, k // VALUES))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of groups, N and K of the weights."""
        groups, n, half = self.packed.shape
        return groups, n, half * 2

    def once(self, name: str, make: Callable[[], T]) -> T:
        """
        Return ``make()``; the result of the first call with this `name` is kept for later ones.
        """
        if name not in self.made:
            self.made[name] = make()
        return cast("T", self.made[name])


class Tokens:
    """
    Activations of one case.

    Attributes:
        case: The sizes.
        row_counts: Rows of each group.
        x: (M, K) bfloat16.
        offs: (G,) int32, where groups end.
    """

    def __init__(self, case: Case, device: str) -> None:
        self.case = case
        self.row_counts = case.row_counts
        m = sum(self.row_counts)
        chance = torch.Generator(device).manual_seed(_SEED)
        x = torch.randn(m, case.k, device=device, generator=chance)
        self.x = x.bfloat16()
        self.offs = torch.tensor(self.row_counts).cumsum(0).int().to(device)
        self._products: dict[str, Tensor] = {}

    @cached_property
    def ends(self) -> list[int]:
        """The index after the last row of each group."""
        return [int(end) for end in self.offs.tolist()]

    def groups(self) -> Iterator[tuple[int, slice]]:
        """Yield every group that has rows, with its rows."""
        for group, (end, count) in enumerate(zip(self.ends, self.row_counts, strict=True)):
            if count:
                yield group, slice(end - count, end)

    def ready(
        self,
        sets: Sequence[T],
        call: Callable[[T, Tensor], Call],
        expected: Tensor,
        *,
        num_bytes: int,
        kernel: str = "",
    ) -> Ready:
        """
        Return a side whose calls have separate weights and results.

        A result is (M, N) bfloat16 full of NaN, so that unwritten values are found. Long calls need
        only one copy of the weights: weights are a small part of their traffic, and results fill
        the memory.

        Args:
            sets: Copies of the weights.
            call: Returns the call for one of them and its result.
            expected: (M, N) float32.
            num_bytes: Bytes of weights, scales and activations, each counted once.
            kernel: Name of the kernel, where one was chosen.
        """
        count = 1 if self.is_long else len(sets)
        like = self.x.new_full((1,), float("nan"))
        every = [like.expand(len(self.x), self.case.n).clone() for _ in range(count)]
        out = every[0]
        return Ready(
            calls=tuple(map(call, sets, every)),
            check=partial(check, out, expected),
            out=out,
            num_bytes=num_bytes + out.nbytes,
            kernel=kernel,
        )

    @property
    def is_long(self) -> bool:
        """Whether a call takes milliseconds, because its groups have many rows."""
        return self.case.rows_per_group >= LONG_ROWS

    def product(self, name: str, a: Callable[[], Tensor], weights: Callable[[], Tensor]) -> Tensor:
        """
        Return the float32 product with the weights of each row's group, kept under `name`.

        Args:
            name: Name under which the product is kept.
            a: Returns (M, K) float32.
            weights: Returns (G, N, K) float32.
        """
        if name not in self._products:
            left, right = a(), weights()
            out = left.new_empty(len(left), right.shape[1])
            for group, rows in self.groups():
                torch.mm(left[rows], right[group].T, out=out[rows])
            self._products[name] = out
        return self._products[name]


def check(out: Tensor, expected: Tensor) -> float:
    """
    Return the error of a result over all rows, in the Frobenius norm, relative to the expected
    result.

    Raises:
        WrongResult: A row is further from the float32 product than rounding explains.
    """
    wrong, right = out.float().sub_(expected).norm(dim=1), expected.norm(dim=1)
    worst = float((wrong / right.clamp(min=1e-30)).max())
    if not worst <= LARGEST_ERROR:
        raise WrongResult(f"a row is wrong by {worst:.3g} of its norm, {LARGEST_ERROR} is the most")
    return float(wrong.norm() / right.norm())


def fp8_bits(weights: Weights) -> Tensor:
    """Return random e4m3 of the size of some weights, without NaN."""
    device = weights.packed.device
    chance = torch.Generator(device).manual_seed(1)
    bits = torch.randint(0, 256, weights.sizes, dtype=torch.uint8, device=device, generator=chance)
    bits -= (bits & _NAN_BITS == _NAN_BITS).to(torch.uint8)
    return bits.view(torch.float8_e4m3fn)


def copies(x: Tensor) -> list[Tensor]:
    """Return `x` and copies of it, one for each call."""
    return [x, *(x.clone() for _ in range(SETS - 1))]
