# SPDX-License-Identifier: Apache-2.0
"""Kernels of sm_120a to make mistakes in, and problems that show them."""

from __future__ import annotations

from jitgen.verify.problem import Sizes

MIXED = "packed weights"
WIDE = "wide tiles of packed weights"
LOW = "low tiles in the lines of an atom"
TWO_ATOMS = "tiles that meet two atoms"
PACKED = "two packed operands"
ALPHA = "scales of groups"
PROMOTED = "promotion"
FULL = "promotion in all registers"
CONTIGUOUS = "contiguous rows"
SAFE = "scales of two lanes"

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
    SAFE: (
        "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t32x32x128_c1x1_acc1_ab2_safesel_sm_120a",
        Sizes(rows=(35, 0, 70), n=40, k=544, num_sms=1),
    ),
}
"""Kernels, and problems that wrap their ring and give each CTA several tiles."""

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
What is right all the same, or what the emulator cannot see: a name; the kernel, the text and what
stands there instead; and why.
"""
