# SPDX-License-Identifier: Apache-2.0
"""Kernels of sm_120a to make mistakes in, and problems that show them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from jitgen.formats import mx32, nv16
from jitgen.formats.atoms import PLACES, plain, swizzled
from jitgen.ops.grouped_gemm.cases import Sizes
from jitgen.ops.grouped_gemm.draws import POISON
from jitgen.ops.grouped_gemm.samples import Solved

MIXED = "packed weights"
WIDE = "wide tiles of packed weights"
LOW = "low tiles in the lines of an atom"
BLOCKS = "groups of several blocks"
TWO_ATOMS = "tiles that meet two atoms"
PACKED = "two packed operands"
ALPHA = "scales of groups"
PROMOTED = "promotion"
FULL = "promotion in all registers"
CONTIGUOUS = "contiguous rows"
PADDED = "contiguous rows and promotion"
SAFE = "scales of two lanes"
DECODED = "weights decoded for tokens of bf16"
DECODED_PARTS = "two parts of decoded weights"

FORMATS = (mx32.FORMAT, nv16.FORMAT)

PROGRAMS = {
    MIXED: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t32x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(35, 0, 70), n=40, k=544, num_sms=1),
    ),
    WIDE: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t64x128x256_c1x1_acc1_sm_120a",
        Sizes(rows=(35, 0, 70), n=136, k=800, num_sms=2),
    ),
    LOW: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t8x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(3, 0, 30), n=72, k=416, num_sms=2),
    ),
    BLOCKS: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t8x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(70, 140, 5), n=40, k=160, num_sms=4),
    ),
    TWO_ATOMS: (
        "grouped_gemm_masked_e4m3_e2m1_mx32_f32_t24x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(133, 0, 3), n=36, k=288, num_sms=2),
    ),
    PACKED: (
        "grouped_gemm_ragged_e2m1_e2m1_mx32_bf16_t16x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(18, 0, 33), n=40, k=480, num_sms=2),
    ),
    ALPHA: (
        "grouped_gemm_masked_e2m1_e2m1_nv16_f32_t16x32x256_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(18, 0, 5), n=36, k=800, num_sms=2),
    ),
    PROMOTED: (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t16x64x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(18, 0, 33), n=136, k=656, num_sms=2),
    ),
    FULL: (
        "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_120a",
        Sizes(rows=(130, 5), n=136, k=400, num_sms=2),
    ),
    CONTIGUOUS: (
        "grouped_gemm_contiguous_e4m3_e2m1_mx32_f16_t16x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(130, 0, 40), n=40, k=416, num_sms=2),
    ),
    PADDED: (  # where scales are in atoms, those of padding are NaN, and so is what is stored
        "grouped_gemm_contiguous_e4m3_e4m3_block128_f16_t16x32x128_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(130, 0, 40), n=40, k=272, num_sms=2),
    ),
    SAFE: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t32x32x128_c1x1_acc1_ab2_safesel_sm_120a",
        Sizes(rows=(35, 0, 70), n=40, k=544, num_sms=1),
    ),
    DECODED: (
        "grouped_gemm_ragged_bf16_e2m1_mx32_bf16_asnone_t16x32x256_c1x1_acc1_ab2_sm_120a",
        Sizes(rows=(18, 0, 33), n=136, k=800, num_sms=2),
    ),
    DECODED_PARTS: (
        "grouped_gemm_masked_bf16_e2m1_mx32_f32_asnone_t64x128x128_c1x1_acc1_ab2_bias_sm_120a",
        Sizes(rows=(35, 0, 70), n=136, k=416, num_sms=2),
    ),
}
"""Kernels, and problems that wrap their pipeline and give each CTA several tiles."""

JUDGED = {
    "a lane gives back a stage that others read": (
        PACKED,
        (
            "        cute.arch.sync_warp()\n        loads.consumer_release(state)\n",
            "        loads.consumer_release(state)\n",
        ),
        "the emulator runs the lanes of a warp in step, and sees no race among them",
    ),
}
"""
Edits that are no mistakes, or that the emulator cannot see: by name the kernel, the text, what
replaces it, and why.
"""


def spoiled(case: Solved, k: int) -> Solved:
    """Return a problem in which the scales in atoms that no value of K has are NaN."""
    call = case.call
    a_scale = _spoiled(call.a_scale, k) if call.has_a_scale else call.a_scale
    return replace(case, call=replace(call, a_scale=a_scale, b_scale=_spoiled(call.b_scale, k)))


def _spoiled(scale: Tensor, k: int) -> Tensor:
    rows = plain(scale, scale.shape[-2] * PLACES).view(torch.uint8)
    places = -(-k // next(each.values for each in FORMATS if each.dtype is scale.dtype))
    rows[..., places:] = POISON[scale.dtype]
    return swizzled(rows.view(scale.dtype)).view(scale.shape)
