# SPDX-License-Identifier: Apache-2.0
"""Operands, scales and sums of sm_120a: what lanes read, select and multiply."""

from __future__ import annotations

from tests.compile.mutations import swap
from tests.compile.mutations_sm_100a import ptx, source
from tests.compile.mutations_sm_120a import (
    ALPHA,
    CONTIGUOUS,
    LOW,
    MIXED,
    PACKED,
    PROMOTED,
    SAFE,
    TWO_ATOMS,
    WIDE,
)

_SORTED = "cute.arch.prmt(low, high, 0x6420), cute.arch.prmt(low, high, 0x7531)"

OPERANDS = (
    source(
        MIXED,
        "nibbles stay where they are",
        "padding",
        (
            "((word << 2) & NIBBLES, (word >> 2) & NIBBLES)",
            "(word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F)",
        ),
    ),
    source(
        MIXED,
        "the other nibble stays beside one",
        "padding",
        ("((word << 2) & NIBBLES, (word >> 2) & NIBBLES)", "(word << 2, word >> 2)"),
    ),
    source(
        MIXED,
        "even and odd nibbles change places",
        "wrong",
        (
            "((word << 2) & NIBBLES, (word >> 2) & NIBBLES)",
            "((word >> 2) & NIBBLES, (word << 2) & NIBBLES)",
        ),
    ),
    source(
        MIXED,
        "even and odd tokens change places",
        "wrong",
        (f"even, odd = {_SORTED}", f"odd, even = {_SORTED}"),
    ),
    source(
        MIXED,
        "bytes of tokens are not sorted",
        "wrong",
        (f"even, odd = {_SORTED}", "even, odd = low, high"),
    ),
    source(
        MIXED,
        "both rows of weights come before their second halves",
        "wrong",
        (
            "(low[0], low[1], high[0], high[1]), (low[2]",
            "(low[0], high[0], low[1], high[1]), (low[2]",
        ),
    ),
    source(
        MIXED,
        "both instructions of a step take the same tokens",
        "wrong",
        ("load_pair(places[2 * step + half]", "load_pair(places[2 * step]"),
    ),
    source(
        PACKED,
        "both instructions of a step take the same packed weights",
        "wrong",
        ("load_matrices(places[2 * step + 1] + rows)", "load_matrices(places[2 * step] + rows)"),
    ),
    source(
        MIXED,
        "all steps take the same weights",
        "wrong",
        ("load_matrices(places[step] + part * (16", "load_matrices(places[0] + part * (16"),
    ),
    source(
        MIXED,
        "all parts take the same tokens",
        "wrong",
        ("places[2 * step + half] + part * (8", "places[2 * step + half] + 0 * (8"),
    ),
    source(
        WIDE,
        "both parts take the same weights",
        "wrong",
        ("places[step] + part * (16", "places[step] + 0 * (16"),
    ),
    source(
        MIXED,
        "rows of 128 bytes are not swizzled",
        "wrong",
        ("(chunk % 8 ^ (row % 8)) * 16", "chunk % 8 * 16"),
    ),
    source(
        MIXED,
        "rows of 64 bytes are swizzled like those of 128",
        "wrong",
        ("(chunk ^ (row // 2 % 4)) * 16", "(chunk ^ (row % 4)) * 16"),
    ),
    source(
        WIDE,
        "the second 128 bytes of rows follow the first",
        "wrong",
        ("chunk // 8 * (rows * 128)", "chunk // 8 * 1024"),
    ),
    source(
        WIDE,
        "warps take weights and tokens of each other",
        "wrong",
        (
            "warp // WARPS_N * (PARTS_M * 8), warp % WARPS_N",
            "warp % WARPS_M * (PARTS_M * 8), warp // WARPS_M % (WARPS_N - 1)",
        ),
    ),
    source(
        MIXED,
        "a stage of tokens is as long as one of weights",
        "wrong",
        ("place + stage * (TILE_M * A_ROW_BYTES)", "place + stage * (TILE_N * B_ROW_BYTES)"),
    ),
    source(MIXED, "sums begin with those before", "wrong", ("    sums.fill(0.0)\n", "")),
    ptx(
        LOW,
        "the scales of another byte are selected",
        "wrong",
        swap("mma.sync...{(#), 0};", "3", count=1),
    ),
)
"""Mistakes in the operands of instructions."""

SCALES = (
    source(
        MIXED,
        "the last scale does not count",
        "wrong",
        ("(Int32(1) << (tail * 8)) - 1", "(Int32(1) << (tail * 8 - 8)) - 1"),
    ),
    source(
        MIXED,
        "all tokens take the scales of the first lane",
        "wrong",
        ("(of_tokens[word][group], byte, lane)", "(of_tokens[word][group], byte, 0)"),
    ),
    source(
        SAFE,
        "lanes have scales of four parts, of two of which they are taken",
        "wrong",
        ("of_quad % TOKEN_LANES * 8", "of_quad * 8"),
        ("range(0, PARTS_M, TOKEN_LANES)", "range(0, PARTS_M, 4)"),
        ("part_m // TOKEN_LANES, part_m % TOKEN_LANES", "part_m // 4, part_m % 2"),
    ),
    source(
        WIDE,
        "all weights take the scales of the first lanes",
        "wrong",
        ("(of_weights[word], byte, part_n)", "(of_weights[word], byte, 0)"),
    ),
    source(
        WIDE,
        "a word is taken for both of a k-block",
        "wrong",
        ("word, byte = place // 4, place % 4", "word, byte = 0, place % 4"),
    ),
    source(
        MIXED,
        "both instructions of a step take the same byte",
        "wrong",
        ("(step * STEP_K + half * MMA_K) // SCALE_VECTOR", "step * STEP_K // SCALE_VECTOR"),
    ),
    source(
        MIXED,
        "scales of ragged rows are looked for by their place in a",
        "wrong",
        ("(work.row - start) % 128", "work.row % 128"),
    ),
    source(
        MIXED,
        "all groups have the first group's scales",
        "wrong",
        ("matrix, block = 0, work.scale_block", "matrix, block = 0, 0"),
    ),
    source(
        TWO_ATOMS,
        "the second atom of a tile is taken for the first",
        "wrong",
        ("block = row // 128\n", "block = 0\n"),
    ),
    source(
        TWO_ATOMS,
        "all groups have the first matrix of scales",
        "wrong",
        ("matrix, block = work.group, work.row // 128", "matrix, block = 0, work.row // 128"),
    ),
    source(
        LOW,
        "all tiles take the first lines of an atom",
        "wrong",
        ("% 32 // SCALE_LINES * SCALE_LINES", "% 32 // 32"),
    ),
    source(
        MIXED,
        "rows 32 apart have the same scales",
        "wrong",
        ("row % SCALE_LINES * 4 + row % 128 // 32", "row % SCALE_LINES * 4"),
    ),
    source(
        LOW,
        "all tiles take the first weights' scales",
        "wrong",
        ("work.b_tile * TILE_N % 128 + own.column", "own.column"),
    ),
    source(
        MIXED,
        "both halves of 16 weights have the same scales",
        "wrong",
        ("own.column + quad + of_quad % 2 * 8", "own.column + quad"),
    ),
    source(
        WIDE,
        "all blocks of weights have the first one's scales",
        "wrong",
        (
            "copies_of_box(scales.b, work.group, 0, work.b_tile * TILE_N // 128, 32, 1)",
            "copies_of_box(scales.b, work.group, 0, 0, 32, 1)",
        ),
    ),
    source(
        CONTIGUOUS,
        "contiguous rows take the first atom",
        "wrong",
        ("matrix, block = 0, work.row // 128", "matrix, block = 0, 0"),
    ),
    source(
        ALPHA,
        "groups have no scale",
        "wrong",
        ("        total.store(total.load() * scales.alpha[work.group])\n", ""),
    ),
    source(
        ALPHA,
        "all groups have the first one's scale",
        "wrong",
        ("scales.alpha[work.group]", "scales.alpha[0]"),
    ),
)
"""Mistakes in the scales of instructions."""

PROMOTION = (
    source(
        PROMOTED,
        "sums of k-blocks begin with those before",
        "wrong",
        ("is_first=step + half == 0", "is_first=False"),
    ),
    source(
        PROMOTED,
        "each step begins anew",
        "wrong",
        ("is_first=step + half == 0", "is_first=half == 0"),
    ),
    source(
        PROMOTED,
        "totals begin with those before",
        "wrong",
        ("    total.fill(0.0)\n", ""),
    ),
    source(
        PROMOTED,
        "scales of instructions are 2",
        "wrong",
        ("ONES = 0x7F7F7F7F", "ONES = 0x80808080"),
    ),
    source(
        PROMOTED,
        "both tokens of a lane have the same scale",
        "wrong",
        ("factors[part_m][i % 2]", "factors[part_m][0]"),
    ),
    source(
        PROMOTED,
        "weights and tokens of a lane are mistaken for each other",
        "wrong",
        ("factors[part_m][i % 2]", "factors[part_m][i // 2]"),
    ),
    source(
        PROMOTED,
        "weight scales are those of the k-block before",
        "wrong",
        ("cutlass.min(k + 1, last)", "cutlass.min(k, last)"),
    ),
    source(
        PROMOTED,
        "weight scales are read beyond the last one",
        "fault",
        ("cutlass.min(k + 1, last)", "k + 1 + last"),
    ),
    source(
        PROMOTED,
        "blocks of weights are tiles",
        "fault",
        ("block, last = work.b_tile * TILE_N // 128", "block, last = work.b_tile"),
    ),
    source(
        PROMOTED,
        "rows are looked for where the box of their scales begins",
        "wrong",
        ("    row += work.row % 4  # where the box starts up to 3 rows ahead\n", ""),
    ),
    source(
        PROMOTED,
        "a box of scales begins at any row",
        "fault",
        ("work.row // 4 * 4)", "work.row)"),
    ),
)
"""Mistakes in how sums are promoted."""

TAILS = (
    source(
        MIXED,
        "scales beyond K count",
        "wrong",
        ("mask if k * SCALE_WORDS + i == last else Int32(-1)", "Int32(-1)"),
    ),
    source(
        MIXED,
        "the word behind the last one is masked",
        "wrong",
        ("    last = (num_places + 3) // 4 - 1\n", "    last = (num_places + 3) // 4\n"),
    ),
)
"""Mistakes that show only where scales that no value of K has are NaN: see `spoiled`."""
