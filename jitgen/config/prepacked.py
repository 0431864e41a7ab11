# SPDX-License-Identifier: Apache-2.0
"""
The formats of weights that are prepacked for Hopper, as pure data. All formats share one family of
kernels. A format defines how values are decoded, and how scales are stored and applied; see
`jitgen.formats.prepacked`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple

from jitgen.config.config import BLayout, DType, ScaleGranularity

BLOCK_ROWS, BLOCK_DEPTH = 64, 128
"""Rows and values along K of a block: of one warpgroup's WGMMAs, and of one stage."""

K_MULTIPLE = 16
"""K is a multiple of this, because rows of one-byte activations are aligned to 16 bytes."""


class PrepackedFormat(StrEnum):
    """A format of prepacked weights, under the name that files, graphs and errors use."""

    MXFP4 = "mxfp4"
    """e2m1 with a power of two for each 32 along K."""

    INT4_32 = "int4_32"
    """-8 to 7 with a bfloat16 or float16 scale for each 32 along K."""

    INT4_128 = "int4_128"
    """-8 to 7 with a bfloat16 or float16 scale for each 128 along K."""

    NVFP4 = "nvfp4"
    """e2m1 with an e4m3 for each 16 along K, and a float32 for each group."""

    MXFP8 = "mxfp8"
    """e4m3 with a power of two for each 32 along K."""

    @property
    def facts(self) -> Facts:
        """The properties of the format."""
        return _FACTS[self]

    @classmethod
    @cache
    def of(cls, b_dtype: DType, scales: ScaleGranularity) -> PrepackedFormat | None:
        """Return the format with values and scales of these kinds; None if there is none."""
        found = (each for each in cls if each.facts[:2] == (b_dtype, scales))
        return next(found, None)


class Facts(NamedTuple):
    """
    Properties of a format of prepacked weights.

    Attributes:
        b_dtype: Type of its values, as configs name it.
        scale_granularity: How many values share a scale.
        values: The number of consecutive values along K that share a scale; the last group of a row
            may have fewer.
        scale_words: 32-bit words of scales of a row of a block.
        partials: For each layout, the number of partial sums of a block, each promoted with its
            scale; 0 if scales are part of the values, so that one sum is over all of K.
    """

    b_dtype: DType
    scale_granularity: ScaleGranularity
    values: int
    scale_words: int
    partials: dict[BLayout, int]

    def scales_of(self, k: int) -> int:
        """Return the number of scales of a row of `k` values."""
        return -(-k // self.values)

    @property
    def value_words(self) -> int:
        """32-bit words of values of a block."""
        return BLOCK_ROWS * BLOCK_DEPTH * self.b_dtype.bits // 32

    @property
    def block_words(self) -> int:
        """32-bit words of a block: its values, then its scales."""
        return self.value_words + BLOCK_ROWS * self.scale_words


_FACTS = {
    PrepackedFormat.MXFP4: Facts(
        b_dtype=DType.E2M1,
        scale_granularity=ScaleGranularity.MX32,
        values=32,
        scale_words=1,
        partials={BLayout.EXACT1: 4, BLayout.FOLDED1: 1, BLayout.WIDE1: 0},
    ),
    PrepackedFormat.INT4_32: Facts(
        b_dtype=DType.INT4,
        scale_granularity=ScaleGranularity.GROUP32,
        values=32,
        scale_words=2,
        partials={BLayout.EXACT1: 4, BLayout.WIDE1: 0},
    ),
    PrepackedFormat.INT4_128: Facts(
        b_dtype=DType.INT4,
        scale_granularity=ScaleGranularity.GROUP128,
        values=128,
        scale_words=1,
        partials={BLayout.EXACT1: 1, BLayout.WIDE1: 0},
    ),
    PrepackedFormat.NVFP4: Facts(
        b_dtype=DType.E2M1,
        scale_granularity=ScaleGranularity.NV16,
        values=16,
        scale_words=2,
        partials={BLayout.EXACT1: 8, BLayout.WIDE1: 0},
    ),
    PrepackedFormat.MXFP8: Facts(
        b_dtype=DType.E4M3,
        scale_granularity=ScaleGranularity.MX32,
        values=32,
        scale_words=1,
        partials={BLayout.EXACT1: 4, BLayout.WIDE1: 0},
    ),
}
