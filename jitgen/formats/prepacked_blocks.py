# SPDX-License-Identifier: Apache-2.0
"""
Positions of the bits of prepacked weights: blocks of 64 rows x 128 of K, 4352 bytes each, or 4608
where a row has two words of scales. Weights of eight bits: see `jitgen.formats.mxfp8`.

Hopper's kernels make weights the first operand of WGMMA and decode them into registers. So a block
holds, word by word, what one thread of a warpgroup decodes: 8 codes of one row and 32 of K. Thread
t of warp w has two rows of the 64, ``16 w + 2 (t / 4)`` and the next: neighbours, so that it stores
two columns of the result at once. Of e4m3 operands it has four neighbours in each half of the 32
along K, the first of them ``4 (t % 4)``; of bfloat16 ones two in each quarter, from ``2 (t % 4)``.

======================  ==========================================================================
words                   what
======================  ==========================================================================
0 to 1023               two planes, for the first and the last 64 of K; in each the threads, 0 to
                        127, and of a thread 4 words: (first 32, first row), (first 32, second row),
                        (last 32, first row), (last 32, second row)
from 1024 on            the scales of a row each, for 128 of K: 64 words, or 64 times two
======================  ==========================================================================

Type and layout decide which bit of a word belongs to which code, so that few instructions decode
it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import BLayout, DType
from jitgen.config.prepacked import BLOCK_DEPTH, BLOCK_ROWS, PrepackedFormat
from jitgen.formats.protocol import ceil_div

ROWS = BLOCK_ROWS
"""Rows of a block: those of one WGMMA."""

DEPTH = BLOCK_DEPTH
"""K of a block."""

VALUE_WORDS = 1024
"""32-bit words of the values of a block, of four bits each."""

_CODES = 8
"""Codes of a word."""


class Bits(NamedTuple):
    """
    The layout of codes in a word.

    Attributes:
        neighbours: Number of codes next to each other along K that a thread has.
        places: For each code, in the order of K, the places of its four bits, the highest first: of
            e2m1 its sign, its exponent (two) and its mantissa.
    """

    neighbours: int
    places: tuple[tuple[int, ...], ...]


def _repeated(first: tuple[tuple[int, ...], ...], step: int) -> Bits:
    """
    Return a layout in which each code lies `step` bits above the one before it in its run of
    neighbours; `first` has the places of the first code of each run.
    """
    neighbours = 32 // step
    places = (tuple(step * i + bit for bit in bits) for bits in first for i in range(neighbours))
    return Bits(neighbours=neighbours, places=tuple(places))


BITS = {
    # A mask leaves e4m3 values: sign, the exponent's low bits, the mantissa's first. The others are
    # shifted to these places.
    (DType.E2M1, BLayout.EXACT1): _repeated(((7, 4, 3, 2), (5, 6, 1, 0)), 8),
    # Magnitudes are nibbles by which PRMT chooses from a table of eight bytes; it ignores their
    # fourth bits, where signs are, in the places where four bytes have theirs.
    (DType.E2M1, BLayout.FOLDED1): Bits(
        neighbours=4,
        places=tuple(
            (8 * i + sign, *(4 * i + bit for bit in magnitude))
            for sign, magnitude in ((7, (2, 1, 0)), (3, (18, 17, 16)))
            for i in range(4)
        ),
    ),
    # Masks and shifts leave bfloat16 values times 2**-126.
    (DType.E2M1, BLayout.WIDE1): _repeated(
        ((15, 8, 7, 6), (12, 5, 4, 3), (9, 2, 1, 0), (14, 13, 11, 10)), 16
    ),
    # Nibbles in the order of K: see `jitgen.formats.int4`.
    (DType.INT4, BLayout.EXACT1): _repeated(((3, 2, 1, 0), (7, 6, 5, 4)), 8),
    (DType.INT4, BLayout.WIDE1): _repeated(
        ((3, 2, 1, 0), (7, 6, 5, 4), (11, 10, 9, 8), (15, 14, 13, 12)), 16
    ),
}


def pieces(places: tuple[int, ...]) -> dict[int, int]:
    """
    Return for each distance the mask of the bits of a code that are shifted by it to their places.
    """
    found: dict[int, int] = {}
    for bit, place in zip((3, 2, 1, 0), places, strict=True):
        found[place - bit] = found.get(place - bit, 0) | 1 << bit
    return found


def runs(x: Tensor, size: int) -> Tensor:
    """Return `x` (..., K) with neighbours along K in a dimension of their own: (..., K/s, s)."""
    return x.reshape(*x.shape[:-1], -1, size)


def joined(codes: Tensor, layout: BLayout, dtype: DType = DType.E2M1) -> Tensor:
    """
    Pack codes into the words of prepacked blocks.

    Args:
        codes: (64 * blocks, 128 * columns) uint8, a code in each byte.
        layout: Layout that they are prepacked for.
        dtype: Type of the codes.

    Returns:
        (blocks, columns, 1024) int32.
    """
    bits = BITS[dtype, layout]
    rows, depth = codes.shape
    blocks, columns = rows // ROWS, depth // DEPTH
    parts = codes.view(rows, columns, 4, _CODES // bits.neighbours, 4, bits.neighbours)
    parts = parts.movedim(-2, 3).flatten(4)  # row, column, 32 of K, thread of four, code
    words = torch.zeros(parts.shape[:-1], dtype=torch.int32, device=codes.device)
    for i, places in enumerate(bits.places):
        code = parts[..., i].int()
        for distance, mask in pieces(places).items():
            words |= (code & mask) << distance
    words = words.view(blocks, 4, 8, 2, columns, 2, 2, 4)  # warp, lane / 4, row, half, 32, thread
    return words.permute(0, 4, 5, 1, 2, 7, 6, 3).reshape(blocks, columns, VALUE_WORDS)


def separated(words: Tensor, layout: BLayout, dtype: DType = DType.E2M1) -> Tensor:
    """
    Return the codes of blocks; the inverse of `joined`.

    Args:
        words: (blocks, columns, 1024) int32.
        layout: Layout that they are prepacked for.
        dtype: Type of the codes.

    Returns:
        (64 * blocks, 128 * columns) uint8.
    """
    bits = BITS[dtype, layout]
    blocks, columns, _ = words.shape
    words = words.view(blocks, columns, 2, 4, 8, 4, 2, 2).permute(0, 3, 4, 7, 1, 2, 6, 5)
    words = words.reshape(blocks * ROWS, columns, 4, 4)  # row, column, 32 of K, thread
    codes = []
    for places in bits.places:
        code = torch.zeros_like(words, dtype=torch.uint8)
        for distance, mask in pieces(places).items():
            code |= ((words >> distance) & mask).to(torch.uint8)
        codes.append(code)
    parts = runs(torch.stack(codes, -1), bits.neighbours)
    return parts.movedim(3, -2).reshape(blocks * ROWS, columns * DEPTH)


def blocked(values: Tensor, scales: Tensor, out: Tensor) -> None:
    """
    Write blocks: the words of values, then those of scales.

    Args:
        values: (blocks, columns, size) int32.
        scales: (64 * blocks, columns * words) int32: `words` of them for each row of a block.
        out: (blocks, columns, size + 64 * words) int32.
    """
    blocks, columns, size = values.shape
    out[..., :size] = values
    of_rows = scales.view(blocks, ROWS, columns, -1).movedim(1, 2)
    out[..., size:] = of_rows.flatten(2)


def scale_words(blocks: Tensor, value_words: int = VALUE_WORDS) -> Tensor:
    """
    Return the words of scales of each row: (blocks, columns, value_words + 64 * words) to
    (64 * blocks, columns * words).
    """
    size, columns, _ = blocks.shape
    of_rows = blocks[..., value_words:].reshape(size, columns, ROWS, -1)
    return of_rows.movedim(2, 1).reshape(size * ROWS, -1)


def spare_scales(shape: tuple[int, ...], scale: Tensor, values: int) -> int:
    """
    Return how many more scales blocks have along K than `scale` has; each is for `values` values.
    """
    return shape[2] * DEPTH // values - scale.shape[-1]


def shape_of(
    groups: int, n: int, k: int, form: PrepackedFormat = PrepackedFormat.MXFP4
) -> tuple[int, int, int, int]:
    """Return the shape of prepacked weights of `groups` matrices (n, k)."""
    return groups, ceil_div(n, ROWS), ceil_div(k, DEPTH), form.facts.block_words
