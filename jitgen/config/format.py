# SPDX-License-Identifier: Apache-2.0
"""Formats of the results of quantising calls; each config names those that its kernels write."""

from __future__ import annotations

from jitgen.config.config import DType, ScaleGranularity
from jitgen.config.grammar import Vocabulary


class Format(Vocabulary):
    """
    Element type and scales of a result, in a form that the next GEMM takes as its operand `a`; see
    `jitgen.formats`.
    """

    BLOCK128 = "block128"
    """e4m3 with a float32 for each 1x128, computed by the kernel."""

    ROW = "row"
    """e4m3 with a float32 for each row, computed by the kernel."""

    TENSOR = "tensor"
    """e4m3 with one float32 for all values, given by the caller."""

    NONE = "none"
    """bfloat16, without scales."""

    MXFP8 = "mxfp8"
    """e4m3 with a power of two for every 32 along K, in atoms."""

    MXFP4 = "mxfp4"
    """e2m1 with a power of two for every 32 along K, in atoms."""

    NVFP4 = "nvfp4"
    """
    e2m1 with an e4m3 for every 16 along K, in atoms, and a global float32 scale given by the
    caller.
    """

    @property
    def q_dtype(self) -> DType:
        """Element type of the results."""
        if self is Format.NONE:
            return DType.BF16
        return DType.E2M1 if self in (Format.MXFP4, Format.NVFP4) else DType.E4M3

    @property
    def scales(self) -> ScaleGranularity:
        """Granularity of the scales: how many values share one."""
        return _SCALES.get(self) or ScaleGranularity(str(self))

    @property
    def values(self) -> int:
        """Values along K that share a scale; only of formats with scales in atoms."""
        return 16 if self is Format.NVFP4 else 32

    @property
    def has_atoms(self) -> bool:
        """Whether scales are stored in atoms of 512 bytes."""
        return self in _SCALES

    @property
    def has_float_scales(self) -> bool:
        """Whether scales of this format are float32, computed by the kernel."""
        return self in (Format.BLOCK128, Format.ROW)

    @property
    def has_given_scale(self) -> bool:
        """
        Whether callers give a scale: that of all values, or a global one beside the block scales.
        """
        return self in (Format.TENSOR, Format.NVFP4)

    @property
    def has_own_scales(self) -> bool:
        """Whether kernels that write this format write scales, too."""
        return self.has_atoms or self.has_float_scales


_SCALES = {
    Format.MXFP8: ScaleGranularity.MX32,
    Format.MXFP4: ScaleGranularity.MX32,
    Format.NVFP4: ScaleGranularity.NV16,
}
IN_ATOMS = (*_SCALES,)
"""Formats with scales in atoms."""

IN_ROWS = (Format.BLOCK128, Format.ROW, Format.TENSOR, Format.NONE)
"""Formats without scales in atoms."""
