# SPDX-License-Identifier: Apache-2.0
"""`silu_mul_quantize` on an emulated GPU: every layout, scale and edge, and no finding."""

from __future__ import annotations

from dataclasses import fields

import pytest

from jitgen.config.silu_mul_quantize import Tiling
from jitgen.ops.silu_mul_quantize import reference
from tests import needs
from tests.compile.silu_kernels import KERNELS, emulated, label
from tests.silu_cases import Kernel, accurate, make, special, ties, tiny

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

BLOCKS = Tiling(rows=4, threads=64, ctas_per_sm=1)
ROWS = Tiling(rows=2, threads=64, ctas_per_sm=1)
"""Few warps, which all get several tiles; 1,040 columns are more than these threads hold."""


def test_the_kernels_of_a_push_have_every_value() -> None:
    for field in fields(Kernel):
        values = [getattr(kernel, field.name) for kernel in KERNELS]
        assert {values[number] for number in OFTEN} == set(values), field.name
    assert {number % 3 for number in OFTEN} == {0, 1, 2}, "they have all sizes between them"


def tiling_of(kernel: Kernel) -> Tiling:
    return ROWS if kernel.scale_granularity == "row" else BLOCKS


OFTEN = {0, 1, 3, 5, 8}
"""Kernels with every value of every field between them: for every push."""


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, marks=() if number in OFTEN else pytest.mark.nightly, id=label(kernel))
        for number, kernel in enumerate(KERNELS)
    ],
)
class TestEveryKernel:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(
        ("is_exact", "step"),
        [(True, 3), *(pytest.param(x, 1, marks=pytest.mark.nightly) for x in (True, False))],
    )
    def test_right(self, kernel: Kernel, is_exact: bool, step: int) -> None:
        """
        Equal bits where y is the same however exp() is computed, else a step now and then; on every
        push a third of the sizes, another one for the next kernel.
        """
        for rows, columns in SIZES[KERNELS.index(kernel) % step :: step]:
            case = make(kernel, rows, columns, is_exact=is_exact)
            report = emulated(case, tiling_of(kernel))

            assert case.wrong(is_exact=is_exact) == "", (rows, columns)
            assert report.is_clean, report.findings

    def test_infinities_and_nan(self, kernel: Kernel) -> None:
        case = special(kernel)
        emulated(case, tiling_of(kernel), modes="eager")

        assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[3]], ids=label)
def test_tiny_values_keep_their_bits(kernel: Kernel) -> None:
    case = tiny(kernel)
    emulated(case, tiling_of(kernel), modes="eager")

    assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize(
    "kernel", [KERNELS[0], pytest.param(KERNELS[4], marks=pytest.mark.nightly)], ids=label
)
def test_ties_go_to_the_even_value(kernel: Kernel) -> None:
    """Where a quotient is one unit off, one of them falls to the wrong side."""
    case = ties(kernel)
    emulated(case, tiling_of(kernel), modes="eager")

    assert case.wrong(is_exact=True) == ""


@pytest.mark.sampled(2)
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
    "kernel", [KERNELS[0], pytest.param(KERNELS[1], marks=pytest.mark.nightly)], ids=label
)
def test_every_way_to_share_the_work(kernel: Kernel, tiling: Tiling) -> None:
    for rows, columns in (SIZES[0], SIZES[3]):
        case = make(kernel, rows, columns, is_exact=True)
        report = emulated(case, tiling, num_sms=1)

        assert case.wrong(is_exact=True) == ""
        assert report.is_clean, report.findings


def test_rows_that_are_held() -> None:
    case = make(KERNELS[4], [3, 0, 2], 520, is_exact=True)
    report = emulated(case, Tiling(rows=1, threads=32, held=2, ctas_per_sm=1))

    assert case.wrong(is_exact=True) == ""
    assert report.is_clean, report.findings


@pytest.mark.sampled(2)
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_y_is_accurate(activation: str) -> None:
    """The scale of a block with one value shows it whole."""
    case, y = accurate(activation)
    emulated(case, BLOCKS, modes="eager")

    assert case.scale is not None
    found = case.scale[:, 0].double() * 448
    assert ((found - y).abs() <= 1e-6 * y).all()
