# SPDX-License-Identifier: Apache-2.0
"""
FP8 quantisation, with scales in the layout that kernels read.

A scale is ``s = max(abs(x)) / 448`` over the values that share it, and ``q = x / s`` rounded to
float8_e4m3fn, whose largest value 448 is (OCP 8-bit Floating Point Specification, E4M3); ``q * s``
gives x back to 1/16 of a value, or to s / 1024 where q is subnormal. Values that are all zero have
scale 1. With ``power_of_two`` the scale is rounded up to a power of two, so that multiplying by it
is exact. An infinity or NaN makes its whole block NaN.

Everything runs on the device of its input and does not wait for it. What each function does, and
what its scales look like, stands in the file of its format, in `jitgen.formats`.
"""

from jitgen.formats.block128 import is_kernel_layout, kernel_layout, per_block, per_token_group
from jitgen.formats.row import per_row
from jitgen.formats.tensor import per_matrix, per_tensor

__all__ = [
    "is_kernel_layout",
    "kernel_layout",
    "per_block",
    "per_matrix",
    "per_row",
    "per_tensor",
    "per_token_group",
]
