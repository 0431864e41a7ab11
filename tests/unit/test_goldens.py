# SPDX-License-Identifier: Apache-2.0
"""Whole generated files, so that a change of a template shows what it does to the kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitgen.codegen.render import render
from jitgen.config import Config

FOLDER = Path(__file__).parents[1] / "goldens"
NAMES = [
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x192x128_c2x1_acc1_sm_90a",
    "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a",
    "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_raster1_streamb_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x128x128_c1x2_acc1_streamb_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_raster1_streamb_splitk2_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_row_bf16_t256x128x128_c1x1_acc1_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_row_bf16_t128x192x128_c2x1_acc1_bias_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_raster1_streamb_splitk2_bias_sm_90a",
    "grouped_gemm_ragged_bf16_bf16_tensor_bf16_t128x256x64_c2x1_acc1_bias_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_tensor_bf16_t64x64x128_c1x1_acc1_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_block128_f32_t64x128x128_c1x1_acc1_sm_90a",
    "grouped_gemm_ragged_bf16_bf16_tensor_bf16_t128x128x64_c2x1_acc1_sm_90a",
    "grouped_gemm_contiguous_bf16_bf16_row_f16_t256x128x64_c1x1_acc1_sm_90a",
    "grouped_gemm_ragged_bf16_bf16_tensor_bf16_bnmajor_t128x192x64_c2x1_acc1_sm_90a",
    "grouped_gemm_ragged_f16_f16_tensor_f16_bnmajor_t128x192x64_c1x1_acc1_sm_90a",
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_asrow_bexact1_t8x256x128_c1x1_acc1_streamb_sm_90a",
    "grouped_gemm_ragged_bf16_e2m1_mx32_f16_asnone_bwide1_t16x128x128_c1x1_acc1_streamb_bias_sm_90a",
    "grouped_gemm_masked_e4m3x2_e2m1_mx32_bf16_asrow_bfolded1_t16x128x128_c1x1_acc1_streamb_sm_90a",
    "grouped_gemm_contiguous_e4m3_e2m1_mx32_f32_asblock128_bfolded1_t64x256x128_c1x1_acc1_streamb_sm_90a",
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_asblock128_bexact1_t8x128x128_c1x1_acc1_nopdl_sm_90a",
    "grouped_gemm_ragged_e4m3x2_e2m1_mx32_bf16_asrow_bexact1_t8x128x128_c1x1_acc1_streamb_splitk2_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc4_sm_100a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t256x128x128_c2x1_acc4_twocta_sm_100a",
    "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t256x192x128_c2x1_acc2_twocta_sm_100a",
    "grouped_gemm_masked_e4m3_e4m3_block128_f32_t128x64x128_c2x1_acc3_sm_100a",
    "grouped_gemm_ragged_e4m3_e4m3_row_f16_t128x32x128_c1x2_acc2_sm_100a",
    "grouped_gemm_masked_e4m3_e4m3_tensor_f32_t256x32x128_c2x1_acc1_twocta_sm_100a",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_bf16_t128x64x256_c1x1_acc2_bias_sm_100a",
    "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t128x64x128_c1x1_acc4_streamb_splitk2_bias_sm_100a",
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t8x64x512_c1x1_acc1_raster1_streamb_sm_120a",
    "grouped_gemm_masked_e4m3_e2m1_mx32_f32_t24x32x128_c1x1_acc1_bias_sm_120a",
    "grouped_gemm_contiguous_e2m1_e2m1_mx32_f16_t16x32x256_c1x1_acc1_safesel_sm_120a",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_bf16_t128x128x128_c1x1_acc1_sm_120a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_120a",
    "grouped_gemm_ragged_bf16_e2m1_mx32_bf16_asnone_t8x128x256_c1x1_acc1_raster1_streamb_sm_120a",
    "grouped_gemm_masked_bf16_e2m1_mx32_f32_asnone_t64x128x128_c1x1_acc1_bias_sm_120a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t32x64x128_c1x1_acc1_cpu",
    "grouped_gemm_masked_bf16_bf16_row_f32_t16x64x128_c1x1_acc1_cpu",
    "grouped_gemm_contiguous_f32_f32_tensor_f16_t64x128x128_c1x1_acc1_cpu",
    "grouped_gemm_masked_bf16_bf16_tensor_bf16_bnmajor_t16x64x128_c1x1_acc1_cpu",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_bf16_t32x128x128_c1x1_acc1_cpu",
    "grouped_gemm_masked_e4m3_e2m1_mx32_f32_t16x64x128_c1x1_acc1_cpu",
    "grouped_gemm_contiguous_bf16_bf16_tensor_bf16_t8x128x128_c1x1_acc1_bias_cpu",
    "grouped_gemm_ragged_f16_f16_tensor_f16_t16x128x128_c1x1_acc1_bias_cpu",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_f32_t16x128x128_c1x1_acc1_bias_cpu",
    "grouped_gemm_ragged_bf16_e2m1_mx32_bf16_asnone_bwide1_t8x128x128_c1x1_acc1_cpu",
    "grouped_gemm_contiguous_bf16_e2m1_mx32_bf16_asnone_t16x128x128_c1x1_acc1_cpu",
    "grouped_gemm_masked_e4m3_e2m1_mx32_f16_asblock128_bfolded1_t16x64x128_c1x1_acc1_bias_cpu",
    "grouped_gemm_contiguous_e4m3x2_e2m1_mx32_f32_asrow_bexact1_t32x128x128_c1x1_acc1_cpu",
    "silu_mul_quantize_ragged_block128_swiglu_once_sm_90a",
    "silu_mul_quantize_masked_row_swiglu_oai_interleaved_pow2_r2_t256_c2_sm_90a",
    "silu_mul_quantize_contiguous_block128_swiglu_cpu",
    "route_sigmoid_f32_e256_bias_grouped_t512_c2_spread_pdl_sm_90a",
    "route_softmax_bf16_e128_t512_c1_pdl_sm_90a",
    "route_sigmoid_f32_e256_bias_grouped_cpu",
    "permute_quantize_ragged_block128_scatter_v16_relayed_sm_90a",
    "permute_quantize_ragged_block128_sort_t64_c16_sm_90a",
    "permute_quantize_masked_row_gather_pow2_r2_t256_c2_persistent_sm_90a",
    "permute_quantize_ragged_nvfp4_gather_r2_c7_sm_100a",
    "permute_quantize_contiguous_block128_gather_cpu",
    "combine_bf16_shared_l8_c6_sm_90a",
    "combine_bf16_cpu",
    "quantize_contiguous_mxfp8_once_sm_90a",
    "quantize_ragged_nvfp4_r2_c5_v16_sm_90a",
    "quantize_masked_mxfp4_floor_r1_t64_c16_sm_90a",
    "grouped_gemm_wgrad_ragged_bf16_bf16_t128x256x64_c2x1_sm_90a",
    "grouped_gemm_wgrad_masked_bf16_f32_t256x128x64_c1x2_ab3_sm_90a",
    "grouped_gemm_wgrad_masked_f16_f16_t64x128x128_c1x1_cpu",
    "grouped_gemm_wgrad_ragged_f32_f32_t64x128x128_c1x1_cpu",
    "unpack_weights_exact1_sm_90a",
    "unpack_weights_folded1_k4_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_raster1_streamb_earlyb_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_streamb_splitk2_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_f32_t128x64x128_c2x1_acc1_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x64x128_c1x2_acc1_streamb_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t8x128x128_c1x1_acc1_cpu",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc4_streamb_splitk2_sm_100a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t256x128x128_c2x1_acc4_twocta_sm_100a",
    "moe_fc2_dense_e4m3_e4m3_mx32_bf16_t128x128x128_c1x1_acc3_streamb_splitk2_sm_100a",
    "moe_fc2_dense_e2m1_e2m1_nv16_bf16_t256x128x256_c2x1_acc3_twocta_sm_100a",
]


@pytest.mark.parametrize("name", NAMES)
def test_golden(name: str) -> None:
    """The source is the accepted one; ACCEPT_GOLDENS=1 accepts the new one."""
    path = FOLDER / f"{name}.py"
    text = render(*Config.parse(name)).text
    if os.environ.get("ACCEPT_GOLDENS"):
        path.write_text(text, encoding="utf-8")

    assert path.read_text(encoding="utf-8") == text


def test_no_golden_is_left_over() -> None:
    """Every file in the folder belongs to a config of the list."""
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(NAMES)
