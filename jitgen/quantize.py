# SPDX-License-Identifier: Apache-2.0
"""
FP8 and FP4 quantisation, with scales in the layout that kernels read.

A float32 scale is ``s = max(abs(x)) / 448`` over the values that share it, and ``q = x / s``
rounded to float8_e4m3fn, whose largest value is 448 (OCP 8-bit Floating Point Specification, E4M3);
``q * s`` gives x back to 1/16 of a value, or to s / 1024 where q is subnormal. Values that are all
zero have scale 1. With ``power_of_two`` the scale is rounded up to a power of two, so that
multiplying by it is exact. An infinity or NaN makes its whole block NaN.

`mxfp8`, `mxfp4` and `nvfp4` have scales of a byte, in atoms; each docstring describes its own.
`to_atoms` and similar functions bring the scales of checkpoints and of other libraries into that
order, and back: see `jitgen.formats.convert`.

`prepack_mxfp4`, `prepack_nvfp4`, `prepack_int4` and `prepack_mxfp8` reorder weights for Hopper,
which has no tensor cores for them, and `split_bf16` splits bfloat16 activations into the FP8 parts
that kernels multiply with these weights: see `jitgen.formats.prepacked`. `unpack_mxfp4` turns
prepacked weights into FP8 ones.

Everything runs on the device of its input and does not wait for it. On GPUs that have a kernel for
them, `mxfp8`, `mxfp4` and `nvfp4` launch it: one pass over bfloat16. The file of each format in
`jitgen.formats` describes its functions and its scales.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.formats.block128 import is_kernel_layout, kernel_layout, per_block, per_token_group
from jitgen.formats.convert import (
    from_atoms,
    from_torch,
    from_trtllm,
    from_words,
    to_atoms,
    to_torch,
    to_trtllm,
    to_words,
)
from jitgen.formats.prepacked import (
    PrepackedWeights,
    prepack_mxfp4,
    prepack_mxfp4_from,
    spread,
)
from jitgen.formats.prepacked_files import load_prepacked, save_prepacked
from jitgen.formats.prepacked_int4 import int4_from_awq, int4_from_gptq, prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.row import per_row
from jitgen.formats.split import split_bf16
from jitgen.formats.tensor import per_matrix, per_tensor
from jitgen.ops.quantize.call import mxfp4, mxfp8, nvfp4
from jitgen.ops.unpack_weights.call import unpack_mxfp4
from jitgen.support.moved import renamed

__all__ = [
    "PrepackedWeights",
    "from_atoms",
    "from_torch",
    "from_trtllm",
    "from_words",
    "int4_from_awq",
    "int4_from_gptq",
    "is_kernel_layout",
    "kernel_layout",
    "load_prepacked",
    "mxfp4",
    "mxfp8",
    "nvfp4",
    "per_block",
    "per_matrix",
    "per_row",
    "per_tensor",
    "per_token_group",
    "prepack_int4",
    "prepack_mxfp4",
    "prepack_mxfp4_from",
    "prepack_mxfp8",
    "prepack_nvfp4",
    "save_prepacked",
    "split_bf16",
    "spread",
    "to_atoms",
    "to_torch",
    "to_trtllm",
    "to_words",
    "unpack_mxfp4",
]


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
