# SPDX-License-Identifier: Apache-2.0
"""Weights that kernels of sm_120a decode to bf16: tables, scales, and what meets which tokens."""

from __future__ import annotations

from tests.compile.mutations_sm_100a import source
from tests.compile.mutations_sm_120a import DECODED, DECODED_PARTS

DECODING = (
    source(
        DECODED,
        "both bytes of a weight are looked up in one table",
        "wrong",
        ("low = looked_up(LOW_BYTES,", "low = looked_up(HIGH_BYTES,"),
    ),
    source(
        DECODED,
        "an entry of a table is another one",
        "wrong",
        ("HIGH_BYTES = 0x3E3E3E00, 0x3F3F3F3F", "HIGH_BYTES = 0x3E3F3E00, 0x3F3F3F3F"),
    ),
    source(
        DECODED,
        "all weights have one sign",
        "wrong",
        ("SIGNS = 0x40404040, 0x40404040", "SIGNS = 0, 0"),
    ),
    source(
        DECODED,
        "signs are looked up without the bit that they are",
        "wrong",
        ("looked_up(SIGNS, codes)", "looked_up(SIGNS, magnitudes)"),
    ),
    source(
        DECODED,
        "magnitudes are looked up with signs",
        "wrong",
        ("magnitudes = codes & 0x7777", "magnitudes = codes"),
    ),
    source(
        DECODED,
        "the sum keeps the factor of its weights",
        "wrong",
        ("    sums.store(sums.load() * SUM_FACTOR)\n", ""),
    ),
    source(
        DECODED,
        "a word has four values twice",
        "wrong",
        ("for codes in (word, word >> 16)", "for codes in (word, word)"),
    ),
    source(
        DECODED,
        "the two values of a pair change places",
        "wrong",
        ("prmt(low, high, 0x5140)", "prmt(low, high, 0x4051)"),
    ),
    source(
        DECODED,
        "weights are multiplied by each other instead of a scale",
        "wrong",
        ("mul.rn.bf16x2 {$w0}, {$r0}, {$r1};", "mul.rn.bf16x2 {$w0}, {$r0}, {$r0};"),
    ),
    source(DECODED, "sums of bf16 begin with those before", "wrong", ("    sums.fill(0.0)\n", "")),
)
"""Mistakes in the values that weights are decoded to."""

FACTORS = (
    source(
        DECODED,
        "two places share a scale",
        "wrong",
        ("for order in (0x1010, 0x3232)", "for order in (0x1010, 0x1010)"),
    ),
    source(
        DECODED,
        "half of a word of scales counts twice",
        "wrong",
        ("for scales in (word, word >> 16)", "for scales in (word, word)"),
    ),
    source(
        DECODED,
        "both halves of 16 decoded weights have the same scales",
        "wrong",
        ("columns = [first + i * 8 for", "columns = [first + i // 2 * 16 for"),
    ),
    source(
        DECODED,
        "weights 32 apart have the same scales",
        "wrong",
        ("column % 32 * 4 + column // 32", "column % 32 * 4"),
    ),
    source(
        DECODED,
        "all tiles of decoded weights take the first ones' scales",
        "wrong",
        ("work.b_tile * TILE_N % 128 + own.column", "own.column"),
    ),
    source(
        DECODED,
        "all blocks of decoded weights have the first one's scales",
        "wrong",
        ("0, work.b_tile * TILE_N // 128, 32, 1),)", "0, 0, 32, 1),)"),
    ),
    source(
        DECODED,
        "all groups have the scales of the first one's weights",
        "wrong",
        ("copies_of_box(scales.b, work.group, 0,", "copies_of_box(scales.b, 0, 0,"),
    ),
    source(
        DECODED,
        "both places of a step have one scale",
        "wrong",
        ("[i][place % 4]", "[i][place % 4 // 2 * 2]"),
    ),
    source(
        DECODED,
        "a word of scales is taken for both of a stage",
        "wrong",
        ("factors[place // 4]", "factors[0]"),
    ),
    source(
        DECODED_PARTS,
        "both parts of decoded weights have the first one's scales",
        "wrong",
        ("[part_n * 2 + i][place % 4]", "[i][place % 4]"),
    ),
)
"""Mistakes in the scales that weights are multiplied with."""

TOKENS = (
    source(
        DECODED,
        "tokens of bf16 are in another order where they are stored",
        "wrong",
        ("row = first + token_of(lane // 4)", "row = first + lane // 4"),
    ),
    source(
        DECODED,
        "all lanes of a quad read the same tokens",
        "wrong",
        ("swizzled(row, 4 * i + lane % 4,", "swizzled(row, 4 * i,"),
    ),
    source(
        DECODED,
        "all places take the same tokens",
        "wrong",
        ("load_words(places[place]", "load_words(places[0]"),
    ),
    source(
        DECODED,
        "all parts take the same tokens of bf16",
        "wrong",
        ("load_words(places[place] + part * (8", "load_words(places[place] + 0 * (8"),
    ),
    source(
        DECODED,
        "both instructions of a place take the same tokens",
        "wrong",
        ("tokens[part_m][pair]", "tokens[part_m][0]"),
    ),
    source(
        DECODED,
        "all steps take the same decoded weights",
        "wrong",
        ("load_matrices(places[step]", "load_matrices(places[0]"),
    ),
    source(
        DECODED,
        "both places of a step take the same weights",
        "wrong",
        ("enumerate(packed[0][half])", "enumerate(packed[0][0])"),
    ),
    source(
        DECODED_PARTS,
        "both parts take the same decoded weights",
        "wrong",
        ("load_matrices(places[step] + part * (16", "load_matrices(places[step] + 0 * (16"),
    ),
    source(
        DECODED,
        "rows of an instruction come before its K",
        "wrong",
        (
            "row[2 * pair + i] for i in range(2) for row in rows",
            "row[2 * pair + i] for row in rows for i in range(2)",
        ),
    ),
)
"""Mistakes in the tokens that weights are multiplied with."""

TAILS_OF_WEIGHTS = (
    source(
        DECODED,
        "scales of weights beyond K count",
        "wrong",
        ("mask if k * SCALE_WORDS + i == last else Int32(-1)", "Int32(-1)"),
    ),
)
"""Mistakes that show only where scales that no value of K has are NaN."""
