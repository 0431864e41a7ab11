# SPDX-License-Identifier: Apache-2.0
"""
The orders in which Marlin's threads read rows, weights and scales, and the numbers that it stores
for scales.

========  ======================================================================================
scales    what Marlin stores
========  ======================================================================================
UE8M0     the same bytes
bfloat16  of groups the same; of rows times 2**120, because it reads the bits of an e4m3 as
          those of a bfloat16
e4m3      the five bits of exponent and three of mantissa of the float16 that is 2**7 times a
          scale; the factor of a group is multiplied by 2**119
========  ======================================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.bench.hopper_fp4.plain import Plain

TILE = 16
_BLOCKS = (8, 16, 32, 48, 64)
_FULL = 0.9
"""vLLM chooses the smallest block of rows that groups fill to less than this part."""

_IN_WORD = {4: (0, 2, 4, 6, 1, 3, 5, 7), 8: (0, 2, 1, 3)}
"""The order of a thread's codes in a word, by the bits of a code."""

_OF_GROUPS = tuple(first + 8 * eight for first in range(8) for eight in range(8))
_OF_BYTES = tuple(_OF_GROUPS[four + each] for four in range(0, 64, 4) for each in (0, 2, 1, 3))
_OF_ROWS = tuple(
    2 * pair + eight + each for pair in range(4) for eight in (0, 8, 16, 24) for each in (0, 1)
)
"""The order of scales along N: of groups along K, of such of one byte, and of rows."""

_ROW_EXPONENT, _FACTOR_EXPONENT, _SHIFT = 120, 119, 7


def block_of_rows(mean: float) -> int:
    """Return the number of rows in a block of Marlin if groups have `mean` rows on average."""
    return next((block for block in _BLOCKS if mean / block < _FULL), _BLOCKS[-1])


def blocks_of_rows(row_counts: tuple[int, ...], block: int) -> tuple[Tensor, Tensor]:
    """
    Return the rows of all blocks, one block after the other, and the group of each block.

    Args:
        row_counts: Rows of each group; groups follow each other.
        block: Rows of a block. Places of a block after a group's last row contain the total number
            of rows.
    """
    ids: list[int] = []
    experts: list[int] = []
    first, rows = 0, sum(row_counts)
    for group, count in enumerate(row_counts):
        blocks = -(-count // block)
        ids += [*range(first, first + count), *[rows] * (blocks * block - count)]
        experts += [group] * blocks
        first += count
    return torch.tensor(ids, dtype=torch.int32), torch.tensor(experts, dtype=torch.int32)


def repack(codes: Tensor, bits: int) -> Tensor:
    """
    Return weights in the order in which Marlin's threads read them.

    Four neighbouring tiles of 16 x 16 (K, N) form 1024 codes. A thread has eight codes of each
    tile, from two columns of tensor core fragments: in one word if they have four bits, in two if
    they have eight.

    Args:
        codes: (G, N, K / 2) uint8 with two codes each, or (G, N, K) of one byte.
        bits: Bits of a code: 4 or 8.

    Returns:
        (G, K / 16, N * bits / 2) int32.
    """
    codes = codes.view(torch.uint8)
    groups, n, size = codes.shape
    k = size * 8 // bits
    order = _order_of_codes(bits).to(codes.device)
    words = codes.new_empty((groups, k // TILE, n * bits // 2), dtype=torch.int32)
    for word, each in zip(words, codes, strict=True):
        single = each if bits == 8 else torch.stack((each & 15, each >> 4), -1).flatten(-2)
        tiles = single.T.reshape(k // TILE, TILE, n // TILE, TILE).transpose(1, 2)
        ordered = tiles.reshape(-1, len(order))[:, order]
        if bits == 4:
            pairs = ordered.view(-1, 2)
            ordered = pairs[:, 0] | pairs[:, 1] << 4
        word.copy_(ordered.contiguous().view(torch.int32).view(word.shape))
    return words


def scales_of(found: Plain) -> tuple[Tensor, Tensor | None]:
    """
    Return scales in the order in which Marlin's threads read them, and factors of groups.

    Returns:
        scale: (G, S, N): float8_e8m0fnu, bfloat16, or the bits above as float8_e4m3fn.
        factor: (G,) float32; None where weights have none.
    """
    scale = found.scale
    if scale.shape[2] == 1:
        return _ordered(scale * 2.0**_ROW_EXPONENT, _OF_ROWS), None
    if scale.dtype is torch.bfloat16:
        return _ordered(scale, _OF_GROUPS), None
    if found.factor is None:
        return _ordered(scale, _OF_BYTES).view(torch.float8_e8m0fnu), None
    halves = (scale.float() * 2.0**_SHIFT).half().view(torch.int16)
    ordered = _ordered((halves >> 7).to(torch.uint8), _OF_BYTES)
    return ordered.view(torch.float8_e4m3fn), found.factor * 2.0**_FACTOR_EXPONENT


def _ordered(scale: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return scales (G, N, S) as (G, S, N), with those of each run along N in an order."""
    groups, n, count = scale.shape
    places = torch.tensor(order, device=scale.device)
    ordered = scale.transpose(1, 2).reshape(-1, len(order))[:, places]
    return ordered.reshape(groups, count, n)


def _order_of_codes(bits: int) -> Tensor:
    """Return the source index of each of 1024 codes of four tiles."""
    order = []
    for thread in range(32):
        column, row = thread // 4, 2 * (thread % 4)
        of_tile = [
            TILE * each + column + 8 * half
            for half in (0, 1)
            for each in (row, row + 1, row + 8, row + 9)
        ]
        for tile in range(4):
            codes = torch.tensor(of_tile) + TILE * TILE * tile
            order.append(codes.view(-1, 32 // bits)[:, _IN_WORD[bits]].flatten())
    return torch.cat(order)
