# SPDX-License-Identifier: Apache-2.0
"""Wrong values are told by group and tile, with what they have in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.ops.grouped_gemm.cases import Sizes, make, tile
from jitgen.ops.grouped_gemm.samples import Solved
from jitgen.verify.places import of_case

NAME = "grouped_gemm_{}_e4m3_e4m3_row_bf16_t64x64x128_c1x2_acc1_sm_90a"
SIZES = Sizes(rows=(5, 0, 130), n=136, k=32, num_sms=4)


def solved(layout: str) -> tuple[GroupedGemmConfig, Solved]:
    config = GroupedGemmConfig.parse(NAME.format(layout))[0]
    case = make(config, SIZES, is_exact=True)
    case.out.copy_(torch.where(case.is_owned, case.expected, float("nan")))
    return config, case


def rows_of(case: Solved, group: int) -> Tensor:
    """Return the rows of a group, as they lie one after the other."""
    return (case.call.owners[0].flatten() == group).nonzero().flatten()


def told(layout: str, group: int, rows: slice, columns: slice) -> list[str]:
    """Return what is told when values of a group, by row and column, are wrong."""
    config, case = solved(layout)
    flat = case.out.view(-1, case.out.shape[-1])
    for row in rows_of(case, group)[rows]:
        flat[row, columns] += 99
    return list(of_case(case, tile(config)))


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        (slice(64, 128), slice(64, 128), "group 2, tile (1, 1): the whole tile"),
        (slice(128, 130), slice(128, 136), "group 2, tile (2, 2): the whole tile"),
        (slice(70, 71), slice(0, 64), "group 2, tile (1, 0): row 6"),
        (slice(64, 128), slice(65, 128, 2), "tile (1, 1): every 2nd column, 1..63"),
        (slice(64, 128), slice(64, 66), "tile (1, 1): columns 0..1"),
        (slice(72, 128, 8), slice(0, 8), "tile (1, 0): every 8th row, 8..56 x columns 0..7"),
        (slice(3, 4), slice(9, 10), "tile (0, 0): row 3 x column 9"),
    ],
)
def test_patterns(layout: str, rows: slice, columns: slice, words: str) -> None:
    head, only = told(layout, 2, rows, columns)

    assert words in only
    assert "in 1 tiles of 64 x 64" in head
    assert f"in group 2, row {rows.start}, column {columns.start}" in head


def test_values_without_a_pattern() -> None:
    config, case = solved("ragged")
    for row, column in ((1, 2), (3, 7), (4, 9)):
        case.out[row, column] = 1e6

    _, only = of_case(case, tile(config))
    assert only == "group 0, tile (0, 0): 3 values here and there in rows 1..4, columns 2..9"


def test_many_tiles_are_counted() -> None:
    lines = told("masked", 2, slice(None), slice(None))

    assert len(lines) == 6
    assert lines[-1] == "and in 5 tiles more"


@pytest.mark.parametrize("layout", list(Layout))
def test_padding_rows_are_named(layout: str) -> None:
    config, case = solved(layout)
    flat = case.out.view(-1, case.out.shape[-1])
    flat[rows_of(case, -1)[0], 3] = 0

    head, only = of_case(case, tile(config))
    assert "padding rows" in head
    assert "is 0 instead of what was there, in" in head
    assert "padding rows" in only
    assert case.wrong() == 1


def test_nothing_is_said_of_what_is_right() -> None:
    config, case = solved("contiguous")
    assert list(of_case(case, tile(config))) == []
