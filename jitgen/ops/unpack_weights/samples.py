# SPDX-License-Identifier: Apache-2.0
"""Calls of `unpack_weights` that put a kernel to the test, and what they must give."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.operation import Result
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.errors import ConfigError
from jitgen.formats import prepared_blocks as blocks
from jitgen.formats.mx32 import VALUES
from jitgen.formats.prepared import PreparedWeights, prepare_mxfp4
from jitgen.formats.prepared_scales import NAN
from jitgen.formats.unpacked import unpacked
from jitgen.ops.solved import Compared, compared, nothing_unreachable, numbers_of
from jitgen.support.frozen import frozen

_N_MULTIPLE = 8
_SCANNED = 2 * 8
"""Blocks that 8 threads look at together in one pass of their loop for the largest exponents."""

_NEAR, _FAR = 14, 24
"""How far exponents of exact problems differ, and those of others: more than e4m3 reaches."""

_UNTOUCHED = 77


@frozen
class Sizes:
    """
    The sizes of a call.

    Attributes:
        groups: Matrices.
        n: Rows of each.
        k: Columns.
        num_sms: SMs of the GPU.
    """

    groups: int
    n: int
    k: int
    num_sms: int = 1

    @classmethod
    def of(cls, config: UnpackWeightsConfig, arch: Arch) -> tuple[Self, ...]:  # noqa: ARG003
        """
        Return sizes that test `config`: two parts of K of which the last is short, more blocks than
        threads look at together, and tails of N and K; and less than a block.
        """
        columns = max(config.tiling.columns, _SCANNED) + 2
        long = cls(groups=1, n=blocks.ROWS + _N_MULTIPLE, k=columns * blocks.DEPTH + VALUES)
        return long, cls(groups=3, n=blocks.ROWS - _N_MULTIPLE, k=3 * VALUES)

    @classmethod
    def parse(cls, text: str, config: UnpackWeightsConfig) -> Self:  # noqa: ARG003  # any serves
        """
        Return the sizes that ``G:N:K`` stands for.

        Raises:
            ConfigError: `text` is something else.
        """
        groups, n, k = numbers_of(text, 3)
        if min(groups, n, k) < 1 or n % _N_MULTIPLE or k % VALUES:
            raise ConfigError(
                f"problem {text!r} is not G:N:K: groups, rows of each, a multiple of "
                f"{_N_MULTIPLE}, columns, a multiple of {VALUES}"
            )
        return cls(groups=groups, n=n, k=k)

    def __str__(self) -> str:
        """Return the sizes in words."""
        return f"{self.groups} groups, N {self.n}, K {self.k}, {self.num_sms} SMs"


@frozen
class Solved(Compared):
    """
    A call with its answer.

    Attributes:
        tensors: What kernels take, in order, without the number of SMs.
        is_exact: Whether values are those of the weights; results are the same bits either way.
        b, b_scale: What the kernel writes.
        expected_b, expected_scale: What they must be.
    """

    tensors: tuple[Any, ...]
    is_exact: bool
    b: Tensor
    b_scale: Tensor
    expected_b: Tensor
    expected_scale: Tensor

    def results(self) -> list[Result]:
        """Return the results: bytes of values, and scales."""
        pairs = ((self.b, self.expected_b), (self.b_scale, self.expected_scale))
        return [
            _result(name, found, expected)
            for name, (found, expected) in zip(("b", "b_scale"), pairs, strict=True)
        ]

    def errors(self) -> tuple[float, float]:
        """Return the part of the values that are wrong, and whether one is."""
        wrong = self.wrong()
        return wrong / (self.b.numel() + self.b_scale.numel()), float(wrong > 0)


def _result(name: str, found: Tensor, expected: Tensor) -> Result:
    groups, rows = found.shape[:2]
    group, row = torch.arange(groups).repeat_interleave(rows), torch.arange(rows).repeat(groups)
    return compared(name, found, expected, differ(found, expected), group, row)


def differ(found: Tensor, expected: Tensor) -> Tensor:
    """Return which values differ in their bits; of NaNs none does."""
    kind = torch.uint8 if found.element_size() == 1 else torch.int32
    both_nan = found.float().isnan() & expected.float().isnan()
    return (found.view(kind) != expected.view(kind)) & ~both_nan


unreachable = nothing_unreachable


def tile(config: UnpackWeightsConfig) -> tuple[int, int]:  # noqa: ARG001
    """Return rows and columns of what is told of wrong results together."""
    return blocks.ROWS, blocks.DEPTH


def make(
    config: UnpackWeightsConfig,
    sizes: Sizes,
    *,
    is_exact: bool,
    seed: int = 0,
) -> Solved:
    """
    Return a call of `config` with `sizes`, the same for the same `seed`.

    There are NaNs among the scales, rows of nothing else, rows and blocks of zeros, and exponents
    that differ as far as is exact, or farther.
    """
    chance = torch.Generator().manual_seed(seed)
    groups, n, k = sizes.groups, sizes.n, sizes.k
    packed = torch.randint(256, (groups, n, k // 2), dtype=torch.uint8, generator=chance)
    reach = _NEAR if is_exact else _FAR
    spread = torch.randint(reach + 1, (groups, n, 1), generator=chance)
    scale = 120 - (torch.rand((groups, n, k // VALUES), generator=chance) * (spread + 1)).int()
    zeros = torch.rand((groups, n, k // VALUES), generator=chance) < 1 / 8
    packed[zeros.repeat_interleave(VALUES // 2, -1)] = 0
    scale[:, 1::7, -1] = NAN
    scale[:, 3] = NAN
    packed[:, 5] = 0
    weights = prepare_mxfp4(packed, scale.to(torch.uint8), layout=config.b_layout)
    beyond = n - weights.values.shape[1] * blocks.ROWS
    if beyond:
        weights.values[:, -1, :, beyond:] = -1  # the scales of rows that there are not
    return solved(weights, is_exact=is_exact)


def solved(weights: PreparedWeights, *, is_exact: bool = False) -> Solved:
    """Return the call for `weights`."""
    expected_b, expected_scale = unpacked(weights)
    b, b_scale = torch.empty_like(expected_b), torch.full_like(expected_scale, -3.0)
    b.view(torch.uint8).fill_(_UNTOUCHED)
    return Solved(
        tensors=(weights.values, weights.factor, b, b_scale),
        is_exact=is_exact,
        b=b,
        b_scale=b_scale,
        expected_b=expected_b,
        expected_scale=expected_scale,
    )
