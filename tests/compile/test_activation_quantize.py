# SPDX-License-Identifier: Apache-2.0
"""`activation_quantize` on the cpu: every layout, scale and activation against float32 torch."""

from __future__ import annotations

import pytest
import torch

from jitgen.config.activation_quantize import Activation, ActivationQuantizeConfig
from jitgen.ops.activation_quantize import reference
from tests import needs
from tests.activation_cases import (
    TOLERANCE,
    accurate,
    make,
    numbers_of,
    of_input,
    special,
    ties,
    tiny,
)
from tests.compile.activation_kernels import BLOCKS, ID, KERNELS, ROUNDED, ROWS, run_on_cpu

pytestmark = [needs.compiler, pytest.mark.usefixtures("shared_cache")]

SIZES = [
    ([3, 0, 9, 5], 264),
    ([0, 1], 128),
    ([40], 7),
    ([1] * 40, 137),
    ([7, 2], 1041),
    ([0, 0], 3),
]
"""Rows and I: odd, shorter than a block, empty groups, more groups than a warp has lanes."""


@pytest.mark.parametrize("kernel", KERNELS, ids=ID)
class TestEveryKernel:
    @pytest.mark.sampled(16)
    @pytest.mark.parametrize("is_exact", [True, False])
    def test_right(self, kernel: ActivationQuantizeConfig, is_exact: bool) -> None:
        """Equal bits where y is the same however exp() is computed, else a step now and then."""
        for rows, columns in SIZES:
            case = make(kernel, rows, columns, is_exact=is_exact)
            run_on_cpu(case)

            assert case.wrong(is_exact=is_exact) == "", (rows, columns)

    def test_infinities_and_nan(self, kernel: ActivationQuantizeConfig) -> None:
        case = special(kernel)
        run_on_cpu(case)

        assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("kernel", [BLOCKS, ROUNDED], ids=ID)
def test_tiny_values_keep_their_bits(kernel: ActivationQuantizeConfig) -> None:
    case = tiny(kernel)
    run_on_cpu(case)

    assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("kernel", [BLOCKS, ROWS], ids=ID)
def test_ties_go_to_the_even_value(kernel: ActivationQuantizeConfig) -> None:
    """Where a quotient is one unit off, one of them falls to the wrong side."""
    case = ties(kernel)
    run_on_cpu(case)

    assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("activation", Activation)
def test_y_is_accurate(activation: Activation) -> None:
    """
    The scale of a block with one value shows it whole.

    With an alpha the argument of exp(), up to 51, is rounded before, as in the reference.
    """
    case, y = accurate(activation)
    tolerance = TOLERANCE.get(activation, 4e-6 if numbers_of(case.kernel) else 1e-6)
    run_on_cpu(case)

    assert case.scale is not None
    found = case.scale[:, 0].double() * 448
    assert ((found - y).abs() <= tolerance * y).all()


def test_groups_that_lie() -> None:
    """An end beyond the rows, and a count beyond a matrix, never leave the tensors."""
    x = torch.randn(4, 32).bfloat16()
    ragged = of_input(BLOCKS, x, {"offs": torch.tensor([2, 9], dtype=torch.int32)})
    many = {"masked_m": torch.tensor([9, -3], dtype=torch.int32)}
    masked = of_input(ROWS, torch.stack([x, x]), many)
    for case in (ragged, masked):
        run_on_cpu(case)

        assert case.wrong() == ""


def test_the_reference_quantises_what_torch_computes() -> None:
    """In other words: a product of torch's own silu, quantised by hand."""
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    offs = torch.tensor([3], dtype=torch.int32)
    q, scale = reference.activation_quantize(x, offs=offs)
    y = torch.nn.functional.silu(x[:, :128].float()) * x[:, 128:].float()

    assert scale is not None
    assert torch.allclose(scale[:, 0], y.abs().amax(-1) / 448, rtol=1e-6)
    assert ((q.float() * scale - y).abs() <= y.abs() / 16 + scale / 1000).all()
