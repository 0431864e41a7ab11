# SPDX-License-Identifier: Apache-2.0
"""Quantisation: values come back, scales have the kernels' layout, edges make no NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from jitgen import quantize
from jitgen.errors import InputError
from jitgen.formats.e4m3 import MAX as E4M3_MAX
from jitgen.quantize import is_kernel_layout, kernel_layout

STEP = 2.0**-4
"""Half the distance of neighbouring e4m3 values, as a part of the value, where it is largest."""


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp(2 * torch.randn(shape, generator=generator))
    return torch.randn(shape, generator=generator) * spread


def assert_near(q: Tensor, scale: Tensor, x: Tensor) -> None:
    """Every value comes back to half a step, or half of the smallest step of its block."""
    assert q.dtype is torch.float8_e4m3fn
    assert q.is_contiguous()
    error = (q.float() * scale - x).abs()

    assert (error <= STEP * x.abs() + scale * 2.0**-10 + 1e-30).all()


def expand(scale: Tensor, x: Tensor, block: int) -> Tensor:
    return scale.repeat_interleave(block, -1)[..., : x.shape[-1]]


@pytest.mark.parametrize("shape", [(5, 256), (3, 7, 300), (1, 128), (4, 1), (2, 129), (8, 16)])
def test_per_token_group(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    q, scale = quantize.per_token_group(x)

    assert q.shape == x.shape
    assert scale.shape == (*shape[:-1], -(-shape[-1] // 128))
    assert is_kernel_layout(scale)
    assert_near(q, expand(scale, x, 128), x)


def test_scales_have_the_kernels_layout() -> None:
    """M is contiguous and the stride of K's blocks is a multiple of 4: what the TMA unit reads."""
    _, scale = quantize.per_token_group(random(5, 300))
    _, masked = quantize.per_token_group(random(2, 5, 300))

    assert scale.stride() == (1, 8)
    assert masked.stride() == (24, 1, 8)


def test_other_group_sizes() -> None:
    x = random(4, 100)
    q, scale = quantize.per_token_group(x, 32)

    assert scale.shape == (4, 4)
    assert_near(q, expand(scale, x, 32), x)


@pytest.mark.parametrize("shape", [(256, 256), (3, 130, 300), (1, 1), (2, 5, 128)])
def test_per_block(shape: tuple[int, ...]) -> None:
    w = random(*shape)
    q, scale = quantize.per_block(w)

    assert q.shape == w.shape
    assert scale.shape == (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    assert scale.is_contiguous()
    full = expand(scale, w, 128).repeat_interleave(128, -2)[..., : w.shape[-2], :]
    assert_near(q, full, w)


def test_per_row_matrix_and_tensor() -> None:
    x = random(3, 5, 70)
    rows, row_scale = quantize.per_row(x)
    matrices, matrix_scale = quantize.per_matrix(x)
    whole, scale = quantize.per_tensor(x)

    assert (row_scale.shape, matrix_scale.shape, scale.shape) == ((3, 5), (3,), (1,))
    assert_near(rows, row_scale.unsqueeze(-1), x)
    assert_near(matrices, matrix_scale[:, None, None], x)
    assert_near(whole, scale, x)


def test_the_largest_value_is_used() -> None:
    q, _ = quantize.per_token_group(random(9, 256))

    assert (q.float().view(9, 2, 128).abs().amax(-1) == E4M3_MAX).all()


def test_power_of_two_scales_are_exact() -> None:
    """The smallest power of two that fits: the scale is at most twice what it need be."""
    x = random(64, 128)
    _, exact = quantize.per_token_group(x)
    q, scale = quantize.per_token_group(x, power_of_two=True)
    mantissa, _ = torch.frexp(scale)

    assert (mantissa == 0.5).all()
    assert ((scale >= exact) & (scale < 2 * exact)).all()
    assert_near(q, scale, x)


def test_a_power_of_two_stays() -> None:
    x = torch.tensor([[E4M3_MAX * 0.25, -1.0]])

    assert quantize.per_row(x, power_of_two=True)[1].item() == 0.25


@pytest.mark.parametrize("power_of_two", [False, True])
def test_zeros_and_tiny_values_make_no_nan(power_of_two: bool) -> None:
    x = torch.zeros(3, 256)
    x[1, 128:] = 1e-45
    x[2] = 1e38
    q, scale = quantize.per_token_group(x, power_of_two=power_of_two)

    assert (scale[0] == 1).all()
    assert scale.isfinite().all()
    assert (scale > 0).all()
    assert (q[0].float() == 0).all()
    assert not q.float().isnan().any()


def test_no_value_becomes_nan_by_rounding() -> None:
    """Dividing by amax / 448 may give a little more than 448."""
    x = torch.linspace(1e-3, 7, 20_000).unsqueeze(1)
    q, _ = quantize.per_row(x)

    assert (q.float() == E4M3_MAX).all()


def test_half_precision_inputs() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = random(4, 200).to(dtype)
        q, scale = quantize.per_token_group(x)
        assert_near(q, expand(scale, x, 128), x.float())


def test_no_rows() -> None:
    q, scale = quantize.per_token_group(torch.empty(0, 256))

    assert q.shape == (0, 256)
    assert scale.shape == (0, 2)
    assert quantize.per_row(torch.empty(0, 256))[1].shape == (0,)
    assert quantize.per_tensor(torch.empty(0, 256))[1].item() == 1


def test_kernel_layout_copies_only_what_it_must() -> None:
    scale = torch.rand(6, 3)
    ours = kernel_layout(scale)

    assert torch.equal(ours, scale)
    assert ours.stride() == (1, 8)
    assert kernel_layout(ours) is ours
    assert kernel_layout(torch.rand(3, 6).t()).stride() == (1, 8)
    one_block = torch.rand(8, 1)
    assert kernel_layout(one_block) is one_block


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize.per_token_group([1.0]), r"x: must be a torch tensor \(got list\)"),
        (lambda: quantize.per_token_group(torch.ones(3)), r"x: must have 2 or 3 dimensions \(got"),
        (lambda: quantize.per_row(torch.ones(2, 2).int()), r"x: must be of a float type \(got tor"),
        (lambda: quantize.per_row(torch.ones(2, 0)), r"x: must have K of at least 1"),
        (lambda: quantize.per_matrix(torch.ones(2, 2)), r"w: must have 3 dimensions"),
        (lambda: quantize.per_block(torch.ones(2, 2), 0), r"block: must be an integer of at least"),
        (lambda: quantize.per_token_group(torch.ones(2, 2), 1.5), r"group: must be an integer"),
    ],
)
def test_mistakes_are_named(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()
