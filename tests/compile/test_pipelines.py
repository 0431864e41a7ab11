# SPDX-License-Identifier: Apache-2.0
"""The table of pipelines at the head of a kernel has what its barriers are initialised with."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from jitgen.codegen.render import render
from jitgen.config import Config
from jitgen.verify.artifacts import compiled
from tests import needs

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = (
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_raster1_streamb_splitk2_bias_sm_90a",
    "grouped_gemm_masked_e4m3x2_e2m1_mx32_bf16_asrow_bfolded1_t16x128x128_c1x1_acc1_streamb_sm_90a",
    "grouped_gemm_wgrad_ragged_bf16_bf16_t128x256x64_c2x1_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_f32_t128x64x128_c2x1_acc1_sm_90a",
    "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t256x192x128_c2x1_acc2_twocta_sm_100a",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_bf16_t128x64x256_c1x1_acc2_bias_sm_100a",
    "moe_fc2_dense_e4m3_e4m3_mx32_bf16_t128x128x128_c1x1_acc3_streamb_splitk2_sm_100a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_120a",
)
"""Of each family and operation, split K and a pair of CTAs among them."""

_ROW = re.compile(r"^    \w+ +(\d+) +(\d+)  (?! ).{29}  +(\d+)  \S.*$", re.MULTILINE)
_INIT = re.compile(r"mbarrier\.init\.shared\S*\s+\[[^\]]+\],\s+(%r\d+|\d+);")
OF_TENSOR_MEMORY = 32
"""Arrivals at the one barrier of a pair of CTAs before tensor memory is given back."""


def of_table(text: str) -> Counter[int]:
    """Return how many barriers count up to each number, as the head of a source says."""
    head = text.partition("free after\n")[2].partition("\n\n")[0]
    rows = _ROW.findall(f"{head}\n")
    assert len(rows) == len(head.split("\n")), head
    found: Counter[int] = Counter()
    for stages, full, free in rows:
        found[int(full)] += int(stages)
        found[int(free)] += int(stages)
    return found


def of_ptx(ptx: str) -> Counter[int]:
    """Return the same as the kernel initialises them."""
    constants = {name: int(value) for name, value in re.findall(r"mov\.b32\s+(%r\d+), (\d+);", ptx)}
    return Counter(
        constants[count] if count.startswith("%") else int(count) for count in _INIT.findall(ptx)
    )


@pytest.mark.parametrize("name", KERNELS)
def test_the_table_says_what_barriers_count(name: str) -> None:
    source = render(*Config.parse(name))
    said, found = of_table(source.text), of_ptx(compiled(source).ptx)
    if "_twocta_" in name:
        said[OF_TENSOR_MEMORY] += 1

    assert found
    assert said == found
