# SPDX-License-Identifier: Apache-2.0
"""The words of configs: element types, scale granularities, layouts of rows and of weights."""

from __future__ import annotations

from enum import StrEnum


class DType(StrEnum):
    """An element type, under the name that configs, kernel names and the command line use."""

    E4M3 = "e4m3"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return _BITS[self]

    @property
    def torch_name(self) -> str:
        """Attribute of the torch module that holds the same type, for example ``float8_e4m3fn``."""
        return _TORCH[self]


_BITS = {DType.E4M3: 8, DType.BF16: 16, DType.F16: 16, DType.F32: 32}
_TORCH = {
    DType.E4M3: "float8_e4m3fn",
    DType.BF16: "bfloat16",
    DType.F16: "float16",
    DType.F32: "float32",
}


class ScaleGranularity(StrEnum):
    """How many values share one scale."""

    TENSOR = "tensor"
    """One float32 for all of a, one for each group's b."""

    ROW = "row"
    """One float32 for each row of a, one for each row (output column) of b."""

    BLOCK128 = "block128"
    """One float32 for each 1x128 of a and each 128x128 of b."""


class Layout(StrEnum):
    """How the rows of a belong to groups."""

    RAGGED = "ragged"
    """Groups lie one after the other without padding; ``offs`` holds their cumulative ends."""

    CONTIGUOUS = "contiguous"
    """One group id for each row; a group starts at a multiple of 128 rows, -1 marks padding."""

    MASKED = "masked"
    """Every group owns M_max rows, of which the first ``masked_m[g]`` are valid."""


class BLayout(StrEnum):
    """How b lies in memory."""

    PLAIN = "plain"
    """(G, N, K), as it was quantised."""

    PREPARED1 = "prepared1"
    """Reordered once, when it was loaded, for the way in which kernels read it; version 1."""


SCALE_BLOCK = 128
"""Values along K (and, for b, along N) that share one scale in ``block128``."""
