# SPDX-License-Identifier: Apache-2.0
"""
The encodings of the values of experts. They are independent of the names of tensors: see
`jitgen.layer.checkpoints.family`.

============  ====================================================  ==========================
encoding      roles of its tensors                                  how a layer stores it
============  ====================================================  ==========================
bf16          weight                                                unchanged
fp8_block128  weight; weight_scale_inv, weight_scale or scale       unchanged
fp8_row       the same, a scale for each row                        unchanged
fp8_tensor    the same, one scale for the matrix                    as fp8_row
mxfp4         blocks and scales; weight_packed or weight (uint8 or  prepacked
              int8), and scales named as above (uint8 or e8m0)
mxfp8         weight (e4m3), and scales as of mxfp4                 prepacked
fp8_block32   the same, a scale for each 32 x 32                    prepacked, as mxfp8
nvfp4         weight, weight_scale, weight_scale_2; or              prepacked
              weight_packed, weight_scale, weight_global_scale
int4          weight_packed (int32), weight_scale, weight_shape     prepacked, in groups of 32
                                                                    or 128; others as bfloat16
                                                                    if it is requested
int4_gptq     qweight (int32), scales, qzeros, with or without      as int4, symmetric only
              g_idx
int4_awq      qweight (int32), scales, qzeros                       as int4, symmetric only
============  ====================================================  ==========================
"""

from __future__ import annotations

from jitgen.layer.checkpoints.encodings.fp4 import Mxfp4, Nvfp4
from jitgen.layer.checkpoints.encodings.fp8 import Fp8Block, Fp8Row, Fp8Square, Fp8Tensor, Mxfp8
from jitgen.layer.checkpoints.encodings.int4 import Int4
from jitgen.layer.checkpoints.encodings.int4_turned import Awq, Gptq
from jitgen.layer.checkpoints.encodings.plain import Plain
from jitgen.layer.checkpoints.encodings.protocol import Encoding

_SCALES = ("weight_scale_inv", "weight_scale", "scale")
"""Roles of tensors with factors of the values; the last is that of DeepSeek-V4."""

ENCODINGS: tuple[Encoding, ...] = (
    Mxfp4("blocks", "scales"),
    Nvfp4("weight_packed", "weight_scale", "weight_global_scale"),
    Nvfp4("weight", "weight_scale", "weight_scale_2"),
    Int4("weight_packed", "weight_scale", "weight_shape"),
    Gptq("qweight", "scales", "qzeros", "g_idx"),
    Gptq("qweight", "scales", "qzeros"),
    Awq("qweight", "scales", "qzeros"),
    Mxfp4("weight_packed", "weight_scale"),
    *(
        kind("weight", scale)
        for kind in (Mxfp4, Fp8Block, Fp8Row, Fp8Tensor, Mxfp8, Fp8Square)
        for scale in _SCALES
    ),
    Plain("weight"),
)
"""Every encoding with every name of its roles; the first that fits a layer is taken."""

__all__ = ["ENCODINGS", "Encoding"]
