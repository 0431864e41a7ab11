# SPDX-License-Identifier: Apache-2.0
"""`activation_quantize` on an emulated GPU: every layout, scale and edge, and no finding."""

from __future__ import annotations

import pytest

from jitgen.config.activation_quantize import Activation, ActivationQuantizeConfig, Tiling
from jitgen.config.format import Format
from tests import needs
from tests.activation_cases import TOLERANCE, accurate, make, special, ties, tiny
from tests.compile.activation_kernels import (
    BLOCKS,
    ID,
    INTERLEAVED,
    KERNELS,
    OFTEN,
    ROUNDED,
    ROWS,
    emulated,
)

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SIZES = [
    ([3, 0, 9, 5], 264),
    ([0, 1], 128),
    ([40], 8),
    ([1] * 40, 136),
    ([7, 2], 1040),
    ([9, 8], 520),
    ([0, 0], 8),
]
"""Rows and I: shorter than a block, empty groups, more groups than a warp has lanes."""

TILES = Tiling(rows=4, threads=64, ctas_per_sm=1)
WHOLE_ROWS = Tiling(rows=2, threads=64, ctas_per_sm=1)
"""Few warps, which all get several tiles; 1,040 columns are more than these threads hold."""


def test_the_kernels_of_a_push_have_all_sizes() -> None:
    assert KERNELS[: len(OFTEN)] == OFTEN
    assert len(OFTEN) >= 3, "they have all sizes between them"


def tiling_of(kernel: ActivationQuantizeConfig) -> Tiling:
    return WHOLE_ROWS if kernel.scale_granularity is Format.ROW else TILES


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, marks=() if kernel in OFTEN else pytest.mark.nightly, id=ID(kernel))
        for kernel in KERNELS
    ],
)
class TestEveryKernel:
    @pytest.mark.sampled(8)
    @pytest.mark.parametrize(
        ("is_exact", "step"),
        [(True, 3), *(pytest.param(x, 1, marks=pytest.mark.nightly) for x in (True, False))],
    )
    def test_right(self, kernel: ActivationQuantizeConfig, is_exact: bool, step: int) -> None:
        """
        Equal bits where y is the same however exp() is computed, else a step now and then; on every
        push a third of the sizes, another one for the next kernel.
        """
        for rows, columns in SIZES[KERNELS.index(kernel) % step :: step]:
            case = make(kernel, rows, columns, is_exact=is_exact)
            report = emulated(case, tiling_of(kernel))

            assert case.wrong(is_exact=is_exact) == "", (rows, columns)
            assert report.is_clean, report.findings

    @pytest.mark.sampled(9)
    def test_infinities_and_nan(self, kernel: ActivationQuantizeConfig) -> None:
        case = special(kernel)
        emulated(case, tiling_of(kernel), modes="eager")

        assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("kernel", [BLOCKS, ROUNDED], ids=ID)
def test_tiny_values_keep_their_bits(kernel: ActivationQuantizeConfig) -> None:
    case = tiny(kernel)
    emulated(case, tiling_of(kernel), modes="eager")

    assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("kernel", [BLOCKS, pytest.param(ROWS, marks=pytest.mark.nightly)], ids=ID)
def test_ties_go_to_the_even_value(kernel: ActivationQuantizeConfig) -> None:
    """Where a quotient is one unit off, one of them falls to the wrong side."""
    case = ties(kernel)
    emulated(case, tiling_of(kernel), modes="eager")

    assert case.wrong(is_exact=True) == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "tiling",
    [
        Tiling(rows=1, threads=64, ctas_per_sm=16, is_persistent=False),
        Tiling(rows=2, threads=64, ctas_per_sm=1, loads_ahead=True),
        Tiling(rows=8, threads=32, ctas_per_sm=1, use_pdl=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "kernel", [BLOCKS, pytest.param(INTERLEAVED, marks=pytest.mark.nightly)], ids=ID
)
def test_every_way_to_share_the_work(kernel: ActivationQuantizeConfig, tiling: Tiling) -> None:
    for rows, columns in (SIZES[0], SIZES[3]):
        case = make(kernel, rows, columns, is_exact=True)
        report = emulated(case, tiling, num_sms=1)

        assert case.wrong(is_exact=True) == ""
        assert report.is_clean, report.findings


def test_rows_that_are_held() -> None:
    case = make(ROWS, [3, 0, 2], 520, is_exact=True)
    report = emulated(case, Tiling(rows=1, threads=32, held=2, ctas_per_sm=1))

    assert case.wrong(is_exact=True) == ""
    assert report.is_clean, report.findings


@pytest.mark.sampled(12)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("activation", Activation)
def test_y_is_accurate(activation: Activation, step: int) -> None:
    """The scale of a block with one value shows it whole; a push takes every fifth value."""
    case, y = accurate(activation, step)
    emulated(case, TILES, modes="eager")

    assert case.scale is not None
    found = case.scale[:, 0].double() * 448
    assert ((found - y).abs() <= TOLERANCE.get(activation, 1e-6) * y).all()
