# SPDX-License-Identifier: Apache-2.0
"""Problems that put a kernel to the test."""

from __future__ import annotations

import pytest
import torch

from jitgen import reference
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import ConfigError
from jitgen.ops.grouped_gemm.cases import Sizes, make, unreachable
from jitgen.targets.sm_90a.rules import SCALE_CHUNK

NAME = "grouped_gemm_{}_e4m3_e4m3_{}_bf16_t64x64x128_c1x2_acc1_sm_90a"
CONFIG = GroupedGemmConfig.parse(NAME.format("ragged", "block128"))[0]
SIZES = Sizes(rows=(5, 0, 130), n=72, k=272, num_sms=4)


def config(layout: str, scales: str) -> GroupedGemmConfig:
    return GroupedGemmConfig.parse(NAME.format(layout, scales))[0]


def test_sizes_wrap_the_pipelines() -> None:
    wide, deep = Sizes.of(CONFIG, Arch.SM_90A)

    assert wide.k > 10 * 128
    assert wide.n > 64 * 2  # a second tile of the cluster, and only its first CTA's
    assert min(wide.rows) == 0
    assert wide.num_sms == 4
    assert deep.k > (SCALE_CHUNK + 1) * 128


@pytest.mark.parametrize("split_k", [1, 2, 4])
def test_sizes_reach_the_loops_of_each_part_of_k(split_k: int) -> None:
    """The main loop of 8 k-blocks and what is left of it, and a second chunk of scales."""
    split = f"_splitk{split_k}" if split_k > 1 else ""
    name = NAME.replace("_c1x2_acc1", f"_c1x1_acc1{split}").format("ragged", "block128")
    sizes = Sizes.of(GroupedGemmConfig.parse(name)[0], Arch.SM_90A)

    blocks = -(-sizes[1].k // 128)
    parts = [blocks * (i + 1) // split_k - blocks * i // split_k for i in range(split_k)]
    assert all(part > SCALE_CHUNK and (part - SCALE_CHUNK) % 8 for part in parts)
    assert sizes[1].k % 128
    assert (len(sizes) == 3) == (split_k > 1)
    assert sizes[-1].k < 128 or split_k == 1


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("ragged_e4m3_e2m1_mx32_bf16_t8x32x128_c1x1_acc1", 131, 136),
        ("ragged_e4m3_e2m1_mx32_bf16_t128x128x128_c1x1_acc1", 129, 136),
        ("ragged_bf16_e2m1_mx32_bf16_asnone_t16x32x256_c1x1_acc1", 17, 136),
        ("ragged_e4m3_e4m3_block128_bf16_t16x64x128_c1x1_acc1", 17, 72),
    ],
)
def test_sizes_go_beyond_the_first_atom(name: str, rows: int, columns: int) -> None:
    """A kernel of small tiles that took the first atom of scales for all was called right."""
    sizes = Sizes.of(*GroupedGemmConfig.parse(f"grouped_gemm_{name}_ab2_sm_120a"))

    assert max(max(each.rows) for each in sizes) == rows
    assert max(each.n for each in sizes) == columns


def test_weights_of_groups_without_rows_are_no_numbers() -> None:
    b, empty = make(CONFIG, SIZES, is_exact=True).tensors[1].float(), 1

    assert b[empty].isnan().all()
    assert not b[[0, 2]].isnan().any()


def test_sizes_of_a_text() -> None:
    sizes = Sizes.parse("3:1000:256:512", CONFIG)

    assert (sum(sizes.rows), len(sizes.rows), sizes.n, sizes.k) == (1000, 3, 256, 512)
    assert len(set(sizes.rows)) == 3


@pytest.mark.parametrize(
    "text", ["1:2:3", "0:1:2:3", "1:1:0:3", "a:b:c:d", "1:2:3:4:5", "-1:2:3:4"]
)
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="G:M:N:K"):
        Sizes.parse(text, CONFIG)


@pytest.mark.parametrize("scales", ["block128", "row", "tensor"])
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("is_exact", [True, False])
def test_the_right_answer_is_right(layout: str, scales: str, is_exact: bool) -> None:
    problem = make(config(layout, scales), SIZES, is_exact=is_exact)
    a, b, a_scale, b_scale, groups, out = problem.tensors
    name = {"ragged": "offs", "contiguous": "m_indices", "masked": "masked_m"}[layout]

    assert problem.wrong() == int(problem.is_owned.sum())
    reference.grouped_gemm(a, b, a_scale, b_scale, **{name: groups}, out=out)
    assert problem.wrong() == 0
    frobenius, largest = problem.errors()
    assert frobenius < 2.0**-8
    assert largest < 2.0**-8


def test_one_wrong_bit_is_wrong() -> None:
    problem = make(CONFIG, SIZES, is_exact=True)
    problem.out.copy_(torch.where(problem.is_owned, problem.expected, float("nan")))
    assert problem.wrong() == 0

    problem.out.view(torch.int16)[3, 7] ^= 1
    assert problem.wrong() == 1


def test_a_padding_row_must_not_be_written() -> None:
    problem = make(CONFIG, SIZES, is_exact=True)
    problem.out.copy_(torch.where(problem.is_owned, problem.expected, float("nan")))

    problem.out[-1, 0] = 0
    assert problem.wrong() == 1


@pytest.mark.parametrize(
    ("layout", "shape", "is_excused"),
    [
        ("ragged", "t64x64x128_c1x1", True),
        ("masked", "t64x64x128_c1x2", False),  # a tile beyond N is one without rows
        ("contiguous", "t64x64x128_c1x2", True),
        ("contiguous", "t64x64x128_c2x1", False),  # one of a pair may be padding
        ("ragged", "t128x64x128_c1x1", False),  # the second warpgroup may have no rows
    ],
)
def test_which_kernels_have_no_tiles_without_rows(
    layout: str, shape: str, is_excused: bool
) -> None:
    name = NAME.replace("t64x64x128_c1x2", shape).format(layout, "block128")

    assert bool(unreachable(GroupedGemmConfig.parse(name)[0])) == is_excused
